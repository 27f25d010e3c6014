"""A job's own regular expressions: right numbers, or a word about the one that would give them."""

from __future__ import annotations

import ast
import re
import time

import pytest

from trainshed.metrics.scraper import LONGEST_REGEX, Scraper, scan_file

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


# What its Trainer printed: a linear layer, two epochs, `logging_steps=4`, `eval_strategy="epoch"`, `disable_tqdm=True`.
PRINTED = {
    "4.57.6": """\
{'loss': 0.7141, 'grad_norm': 0.47260600328445435, 'learning_rate': 4.0625000000000005e-05, 'epoch': 0.5}
{'loss': 0.8194, 'grad_norm': 0.5627226233482361, 'learning_rate': 2.8125000000000003e-05, 'epoch': 1.0}
{'eval_loss': 0.7666988968849182, 'eval_accuracy': 0.46875, 'eval_runtime': 0.0667, 'eval_samples_per_second': 959.5, \
'eval_steps_per_second': 119.937, 'epoch': 1.0}
{'loss': 0.7886, 'grad_norm': 0.3212383985519409, 'learning_rate': 1.5625e-05, 'epoch': 1.5}
{'loss': 0.7447, 'grad_norm': 0.32293573021888733, 'learning_rate': 3.125e-06, 'epoch': 2.0}
{'eval_loss': 0.7666518688201904, 'eval_accuracy': 0.46875, 'eval_runtime': 0.073, 'eval_samples_per_second': 877.163, \
'eval_steps_per_second': 109.645, 'epoch': 2.0}
{'train_runtime': 0.4884, 'train_samples_per_second': 262.103, 'train_steps_per_second': 32.763, \
'train_loss': 0.7667368799448013, 'epoch': 2.0}
""",
    "5.23.0": """\
{'loss': '0.9339', 'grad_norm': '0.9303', 'learning_rate': '4.063e-05', 'epoch': '0.5'}
{'loss': '0.966', 'grad_norm': '1.098', 'learning_rate': '2.813e-05', 'epoch': '1'}
{'eval_loss': '0.9498', 'eval_accuracy': '0.4219', 'eval_runtime': '0.0569', 'eval_samples_per_second': '1126', \
'eval_steps_per_second': '140.7', 'epoch': '1'}
{'loss': '0.8601', 'grad_norm': '0.3664', 'learning_rate': '1.563e-05', 'epoch': '1.5'}
{'loss': '1.039', 'grad_norm': '0.2396', 'learning_rate': '3.125e-06', 'epoch': '2'}
{'eval_loss': '0.9497', 'eval_accuracy': '0.4219', 'eval_runtime': '0.0617', 'eval_samples_per_second': '1036', \
'eval_steps_per_second': '129.6', 'epoch': '2'}
{'train_runtime': '0.508', 'train_samples_per_second': '252', 'train_steps_per_second': '31.5', \
'train_loss': '0.9498', 'epoch': '2'}
""",
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


@pytest.mark.parametrize("version", PRINTED)
def test_of_what_transformers_printed_each_series_is_right_or_its_definition_is_mended(version: str) -> None:
    """In version 5 all definitions miss the quotes: six series come from the lines' form; epochs are an axis there."""
    text = PRINTED[version].replace("\\\n", "")
    rows = [{name: float(value) for name, value in ast.literal_eval(line).items()} for line in text.splitlines()]
    scraper = Scraper(GUIDE)
    points = scraper.scan(text.encode(), 0.0)
    said = "\n".join(scraper.finish())

    series = {name: [point.value for point in points if point.name == name] for name, _ in GUIDE}
    missing = ["epoch"] if version.startswith("5") else []
    assert series == {name: [row[name] for row in rows if name in row and name not in missing] for name, _ in GUIDE}
    assert all(re.search(f"metric '{name}': .*; this one would match: ", said) for name in missing)


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


def test_an_expression_for_the_platforms_logs_finds_a_tab() -> None:
    """CloudWatch shows a tab as #011, and the requests of the platform's XGBoost have it so."""
    scraper = Scraper([("train:rmse", r"\[\d+\]#011train-rmse:([-+.0-9]+)"), ("b", r"#011b:([0-9.]+)")])
    points = scraper.scan(b"[3]\ttrain-rmse:0.5\n[4]#011train-rmse:0.25\tb:2\n", 0.0)
    assert [(point.name, point.value) for point in points] == [("train:rmse", 0.5), ("train:rmse", 0.25), ("b", 2.0)]


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


def test_an_alarm_outside_of_all_definitions_drops_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: object) -> None:
        end = time.process_time() + 0.5
        while time.process_time() < end:
            pass

    scraper = Scraper([("loss", r"loss=(\S+)")])
    monkeypatch.setattr("trainshed.metrics.scraper.LONGEST_SEARCH", 0.05)
    monkeypatch.setattr(scraper, "_formatted", slow)
    scraper.scan(b"loss=0.5\n", 0.0)

    assert scraper.remarks() == []
