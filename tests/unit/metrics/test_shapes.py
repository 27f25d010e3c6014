"""Lines that differ in their digits alone are read by their shape: what they say is what a search of each would find."""

from __future__ import annotations

import random

import pytest

from trainshed.base.patterns import compiled, needed_by
from trainshed.metrics.points import Point, point_of
from trainshed.metrics.scraper import Scraper
from trainshed.metrics.shapes import shape_of

NAMES = (
    "loss", "train_loss", "eval_accuracy", "lr", "acc1", "top5", "step", "Step", "epoch", "Epoch", "iter", "batch", "rank",
    "time", "global_step", "perplexity", "n%s", "v_num", "a/b.c-d", "seed", "x", "it/s", "val", "metric", "gpu0", "f1",
)  # fmt: skip
JOINS = ("=", ": ", " ", " = ", ":", "  ", "': ", "': '", " : ", "/", " is ")
BETWEEN = (" ", ", ", " | ", " - ", "; ", " (", ") ", "", "', '", ",", "\t", "/", " of ", " │ ", "%", "] ", " [")
NUMBERS = (
    "0", "7", "12", "1234", "0.5", "00.5", "1e-05", "4.9375e-05", "-3", "+2", "nan", "inf", "-0.25", ".5", "5.", "1,234",
    "1E9", "1e999", "9" * 40, "0.1.2", "3/10", "10/10", "1_000", "0x1f", "٣", "1e5",
)  # fmt: skip
WHOLE = (
    "{{'loss': {}, 'grad_norm': {}, 'learning_rate': {}, 'epoch': {}}}", "{{'eval_loss': '{}', 'epoch': '{}'}}",
    "step {}: loss={} lr={}", "Epoch {}/10 | loss {} | acc {}", "metric loss={} step={} rank={}",
    "[rank 3] metric a={} epoch={}",
    "{}/{} - 1s - 5ms/step - loss: {}", "Epoch {}/{}", '{{"step": {}, "loss": {}}}',
    " 10%|# | {}/{} [00:0{}<00:09, 1.0it/s, loss={}]",
    "│ test_loss │ {} │", "INFO 2026-01-0{} {{'loss': {}, 'epoch': {}}} done", "loss: {}",
    "[algo-1] iter {} loss {} time {} batch {}",
    "step {} step {} loss {}", "  loss={}, 100% of {}", "top{} acc {} loss {}", "loss: {}, Accuracy: {}/{} (9%)",
)  # fmt: skip


def made_up(chance: random.Random) -> str:
    if chance.random() < 0.5:
        line = chance.choice(WHOLE)
        return line.format(*(chance.choice(NUMBERS) for _ in range(line.count("{}"))))
    parts = [chance.choice(("", "", "[1] ", "{", "  ", "Epoch 3 ", "{'"))]
    for _ in range(chance.randrange(1, 5)):
        parts += [chance.choice(NAMES), chance.choice(JOINS), chance.choice(NUMBERS), chance.choice(BETWEEN)]
    return "".join(parts) + chance.choice(("", "", "}", "'}", " end", " "))


def alike(line: str, chance: random.Random) -> str:
    """The line with other digits, and sometimes more of them."""
    return "".join(
        "".join(chance.choice("0123456789") for _ in range(chance.choice((1, 1, 1, 2, 3)))) if one in "0123456789" else one
        for one in line
    )


def read(text: str) -> list[Point | None]:
    return [point_of(line) for line in text.splitlines()]


@pytest.mark.exact
@pytest.mark.parametrize("format", ["auto", "hf", "kv", "off", "tqdm", "json"])
@pytest.mark.parametrize("rank", [None, 3])
def test_a_log_says_by_shapes_what_it_says_line_by_line(format: str, rank: int | None) -> None:
    chance = random.Random(f"{format} {rank}")
    by_shapes, by_lines = Scraper(format=format), Scraper(format=format)
    for _ in range(500):
        line = made_up(chance)
        for other in (line, line, *(alike(line, chance) for _ in range(4))):
            block = f"{other}\n".encode()
            expected = by_lines.scan(block, 12.3456, rank)
            told = by_shapes.text(block, 12.3456, rank)
            rounded = [point.replace(time=12.346) for point in expected]
            assert repr(read(told)) == repr(rounded), other
    shaped = sum(shape is not None for shapes in by_shapes._shapes.values() for shape in shapes._shapes.values())
    assert shaped > {"auto": 10, "hf": 0, "kv": 0}.get(format, -1)


@pytest.mark.exact
def test_a_line_without_what_a_definition_needs_is_not_one_of_its_lines() -> None:
    chance = random.Random(5)
    regexes = (
        r"loss=([0-9.]+)",
        r"'loss': '?([-0-9.e]+)",
        r"step (\d+).*loss: (\S+)",
        r"(?i)LOSS.(\d)",
        r"acc|loss",
        r"x?s*: (.)",
    )
    patterns = [compiled(regex) for regex in regexes]
    for _ in range(3000):
        line = made_up(chance)
        for pattern in patterns:
            assert needed_by(pattern) in line or not pattern.search(line), (pattern, line)


def test_a_shape_is_learned_from_the_second_line_on(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[str] = []
    scraper = Scraper()
    search = scraper._formatted
    monkeypatch.setattr(scraper, "_formatted", lambda line, *rest: searched.append(line) or search(line, *rest))
    block = b"".join(b"step %d: loss=0.%d lr=1e-0%d\n" % (step, step, step % 10) for step in range(10, 60))

    points = read(scraper.text(block, 1.0))

    assert [(point.name, point.value, point.step) for point in points[-2:] if point] == [
        ("loss", 0.59, 59),
        ("lr", 1e-9, 59),
    ]
    assert len(points) == 100 and len(searched) == 2


@pytest.mark.parametrize(
    "line",
    ["loss=nan step=1", "step 1 loss 00.5", "metric loss=0.5 rank=2", "loss 0.5\r", "10/10 - loss: 0.5 - acc: 0.1", "x"],
)
def test_what_digits_or_a_state_could_decide_has_no_shape(line: str) -> None:
    assert shape_of(line, Scraper()._chosen(None)) is None


def test_a_log_without_an_end_of_shapes_costs_no_memory() -> None:
    scraper = Scraper()
    for number in range(3000):
        name = "".join(chr(97 + int(digit)) for digit in str(number))
        scraper.text(f"{name}: loss=0.5\n{name}: loss=0.5\n".encode(), 1.0)

    (shapes,) = scraper._shapes.values()
    assert len(shapes._shapes) <= 500 and len(shapes._seen) <= 500
