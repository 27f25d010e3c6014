"""Metrics are read from the log as it goes by."""

from __future__ import annotations

import math

import pytest

from trainshed.runner.files.metrics import Metrics


def test_first_and_last_values_of_every_metric_are_kept() -> None:
    metrics = Metrics()
    for step, loss in enumerate((0.9, 0.5, 0.25)):
        metrics.scan(f"step {step}\nmetric loss={loss} accuracy=0.{step} step={step} epoch=1\nmetrics are fun\n".encode())
    assert {name: (one.first, one.last, one.count) for name, one in metrics.series.items()} == {
        "loss": (0.9, 0.25, 3),
        "accuracy": (0.0, 0.2, 3),
    }
    assert metrics.now() == ["step 2", "epoch 1", "loss 0.25"]


@pytest.mark.parametrize("prefix", ["", "[algo-1:0] ", "[algo-2] [rank1] "])
def test_the_tags_of_hosts_and_ranks_do_not_matter(prefix: str) -> None:
    metrics = Metrics()
    metrics.scan(f"{prefix}metric loss=1.5\n".encode())
    assert metrics.series["loss"].last == 1.5


def test_a_line_only_counts_from_its_beginning() -> None:
    metrics = Metrics()
    metrics.scan(b"the metric x=3 is no metric line\n")
    assert not metrics.series


def test_values_that_are_not_finite_are_kept_and_words_are_not() -> None:
    metrics = Metrics()
    metrics.scan(b"metric a=nan b=inf c=-inf d=word e=1e-3\n\xff\xfe metric f=1\n")
    assert math.isnan(metrics.series["a"].last)
    assert [metrics.series[name].last for name in "bce"] == [math.inf, -math.inf, 1e-3]
    assert metrics.series.keys() == set("abce")


def test_a_metric_line_has_values_and_places() -> None:
    metrics = Metrics()
    metrics.scan(b"metric loss=0.125 val/acc=2.5 step=10\n")
    assert {name: one.last for name, one in metrics.series.items()} == {"loss": 0.125, "val/acc": 2.5}


@pytest.mark.parametrize(("text", "value"), [("4.5e-05", 4.5e-5), ("-3", -3.0), ("12%", 12.0), (" 7.", 7.0), (".5", 0.5)])
def test_a_job_defines_metrics_of_its_own(text: str, value: float) -> None:
    metrics = Metrics.of([("loss", "loss: (.+)$")])
    metrics.scan(f"epoch 1\nepoch 1 loss: {text}\n".encode())
    assert metrics.series["loss"].last == value


def test_a_regular_expression_that_finds_no_number_is_remembered() -> None:
    metrics = Metrics.of([("loss", r"loss=(\w+)")])
    metrics.scan(b"loss=low\n")
    metrics.finish()
    (remark,) = metrics.remarks
    assert "metric 'loss': its regular expression captures 'low', which is not a number: loss=low" in remark
    assert not metrics.series


def test_what_train_itself_says_holds_no_metrics() -> None:
    metrics = Metrics()
    metrics.scan(b"[algo-1] trainshed: warning: metric 'a' has not matched {'loss': 0.5, 'epoch': 1.0}\n")
    assert not metrics.series
