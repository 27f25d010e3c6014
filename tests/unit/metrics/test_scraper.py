"""A job's own regular expressions: right numbers, or a word about the one that would give them."""

from __future__ import annotations

import re

import pytest

from trainshed.metrics.capture import LONGEST_REGEX
from trainshed.metrics.scraper import Scraper, scan_file

# As Amazon's guides to transformers have them, for what version 4 printed.
GUIDE = [
    (name, rf"'{name}': ([0-9]+(.|e\-)[0-9]+),?")
    for name in ("loss", "learning_rate", "eval_loss", "eval_accuracy", "eval_runtime", "eval_samples_per_second", "epoch")
]
VALUES = {
    "loss": 0.6931,
    "learning_rate": 4.9375e-05,
    "eval_loss": 3e-06,
    "eval_accuracy": 1.0,
    "eval_runtime": 12.5,
    "eval_samples_per_second": 80.123,
    "epoch": 0.5,
}


def log(quote: str) -> bytes:
    first, second = ({n: v for n, v in VALUES.items() if n.startswith("eval_") is evaluated} for evaluated in (False, True))
    lines = [str({name: f"{value}" if quote else value for name, value in one.items()}) for one in (first, second)]
    return "".join(f"{line}\n" for line in lines).encode()


@pytest.mark.parametrize("quote", ["", "'"], ids=["transformers 4", "transformers 5"])
def test_the_guides_expressions_yield_the_right_numbers_or_are_said_not_to(quote: str) -> None:
    scraper = Scraper(GUIDE)
    found = {point.name: point.value for point in scraper.scan(log(quote), 0.0)}
    said = "\n".join(scraper.finish())

    assert {name: found.get(name) for name in VALUES if name != "epoch" or not quote} == {
        name: value for name, value in VALUES.items() if name != "epoch" or not quote
    }
    wrong = ["learning_rate"] if not quote else [name for name, _ in GUIDE]
    assert [name for name, _ in GUIDE if f"metric '{name}':" in said] == wrong


@pytest.mark.parametrize("quote", ["", "'"])
def test_the_expression_that_is_advised_works(quote: str) -> None:
    scraper = Scraper(GUIDE)
    scraper.scan(log(quote), 0.0)
    advised = re.findall(r"metric '(\w+)': .*; this one would match: (.*)", "\n".join(scraper.finish()))

    assert advised and all(len(regex) <= LONGEST_REGEX for _, regex in advised)
    again = Scraper(advised, "off")
    assert {p.name: p.value for p in again.scan(log(quote), 0.0)} == {name: VALUES[name] for name, _ in advised}
    assert again.finish() == []


@pytest.mark.parametrize(
    ("regex", "line", "value", "said"),
    [
        (r"loss=([0-9.]+)", "loss=4.5e-05", 4.5e-05, "captures '4.5' of '4.5e-05'"),
        (r"loss=([0-9]+)", "loss=0.5", 0.5, "captures '0' of '0.5'"),
        (r"loss=([0-9.]*)", "loss=nan", None, "captures nothing"),
        (r"loss=(\w+)", "loss=low", None, "captures 'low', which is not a number"),
        (r"loss=(.*)", "loss=12 %", 12.0, "captures '12 %', which is more than a number"),
        (r"n=(.*)", "n=1,234,567", 1234567.0, "has commas, which are left out"),
        (r"'loss': (\S+)", "'loss': '0.25'", 0.25, "which is more than a number"),
    ],
)
def test_what_is_captured_is_not_taken_on_trust(regex: str, line: str, value: float | None, said: str) -> None:
    scraper = Scraper([("x", regex)], "off")
    found = [point.value for point in scraper.scan(f"{line}\n{line}\n".encode(), 0.0)]
    (remark,) = scraper.finish()

    assert found == ([] if value is None else [value, value])
    assert remark.startswith("metric 'x': its regular expression ") or "has commas" in remark
    assert said in remark and line in remark


@pytest.mark.parametrize(
    ("regex", "line", "value"),
    [
        (r"loss=([0-9.]+)", "loss=0.5, next", 0.5),
        (r"loss: (.+)$", "epoch 1 loss: -3", -3.0),
        (r"acc: ([0-9.]+)", "acc: 95. Next", 95.0),
        (r"loss=(nan|[0-9.]+)", "loss=nan", float("nan")),
        (r"(\d+)/10", "7/10 done", 7.0),
    ],
)
def test_a_good_definition_is_not_spoken_of(regex: str, line: str, value: float) -> None:
    scraper = Scraper([("x", regex)], "off")
    (point,) = scraper.scan(f"{line}\n".encode(), 0.0)

    assert repr(point.value) == repr(value)
    assert scraper.finish() == []


def test_definitions_that_cannot_work_are_said_at_once() -> None:
    scraper = Scraper([("a", "loss=("), ("b", "loss=.*")])

    assert [remark.partition(":")[0] for remark in scraper.remarks()] == ["metric 'a'", "metric 'b'"]


def test_a_definition_that_nothing_resembles_is_named_once_in_a_long_log() -> None:
    scraper = Scraper([("f1", "f1=(.*)")])
    scraper.scan(b"nothing here\n" * 500, 0.0)

    assert scraper.remarks() == ["metric 'f1': its regular expression has matched no line"]
    assert scraper.finish() == []


def test_an_expression_that_takes_for_ever_costs_its_own_metric_alone() -> None:
    scraper = Scraper([("bad", r"^(a+)+$"), ("loss", r"loss=(.*)")], "off")
    lines = b"a" * 60 + b"!\nloss=0.5\n"

    assert [point.value for point in scraper.scan(lines + lines, 0.0)] == [0.5, 0.5]
    assert scraper.remarks() == ["metric 'bad': its regular expression took seconds on one line and was dropped"]


def test_a_metric_that_is_defined_is_not_found_twice() -> None:
    scraper = Scraper([("loss", r"'loss': ([0-9.]+)")])
    points = scraper.scan(b"{'loss': 0.5, 'grad_norm': 2.0, 'epoch': 3.0}\n", 0.0)

    assert [(point.name, point.epoch) for point in points] == [("loss", 3.0), ("grad_norm", 3.0)]


def test_lines_may_be_cut_anywhere_between_two_blocks() -> None:
    text = b"metric loss=0.5\nmetric loss=0.25"
    blocks = [text[number : number + 1] for number in range(len(text))]

    assert [point.value for point in scan_file(Scraper(), blocks, 0.0)] == [0.5, 0.25]


def test_bytes_that_are_no_text_and_endless_lines_do_no_harm() -> None:
    scraper = Scraper([("loss", "loss=(.*)")])
    scraper.scan(b"\xff\xfeloss=1\n" + b"loss" * 100_000 + b"\n" + bytes(range(256)) + b"\n", 0.0)
    scraper.finish()
