"""What the engine of charts is put into pages with, and its colours."""

from __future__ import annotations

import itertools
import json
import math
import re

import pytest

from trainshed.studio.pages import engine
from trainshed.studio.pages.chart import Chart, Line, spec
from trainshed.studio.pages.markup import document
from trainshed.studio.pages.thin import thin

CARDS = ("#ffffff", "#191f29")  # behind the lines, by day and by night


def linear(colour: str) -> list[float]:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def oklab(colour: str) -> list[float]:
    """Ottosson, A perceptual color space for image processing, 2020."""
    r, g, b = linear(colour)
    long = (0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b) ** (1 / 3)
    middle = (0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b) ** (1 / 3)
    short = (0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b) ** (1 / 3)
    return [
        0.2104542553 * long + 0.7936177850 * middle - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * middle + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * middle - 0.8086757660 * short,
    ]


def contrast(one: str, other: str) -> float:
    """WCAG 2.2, relative luminance and contrast ratio."""
    light = [sum(w * part for w, part in zip((0.2126, 0.7152, 0.0722), linear(c), strict=True)) for c in (one, other)]
    return (max(light) + 0.05) / (min(light) + 0.05)


@pytest.mark.parametrize("night", [False, True])
def test_25_colours_can_be_told_apart_and_seen(night: bool) -> None:
    colours = re.findall(r"--c\d+: (#[0-9a-f]{6})", engine.style())[engine.COLOURS * night :][: engine.COLOURS]

    assert len({*colours}) == 25
    assert min(math.dist(oklab(one), oklab(other)) for one, other in itertools.combinations(colours, 2)) > 0.07
    assert min(contrast(colour, CARDS[night]) for colour in colours) >= 3


@pytest.mark.safety
def test_a_figure_is_numbers_that_nothing_breaks_out_of() -> None:
    hostile = "</script><script>alert(1)</script><!-- \u2028\x1b"
    made = engine.figure({"kind": "lines", hostile: [hostile, math.nan, -math.inf, 0.1 + 0.2, 3.0, None]}, "told")
    content = made.partition('<script type="application/json">')[2].partition("</script>")[0]

    assert "<" not in content and "\u2028" not in content and "\x1b" not in content
    (name,) = {*json.loads(content)} - {"kind"}
    assert json.loads(content)[name] == [name, "NaN", "-inf", 0.3, 3, None]
    assert made.count("</script>") == 1


@pytest.mark.safety
def test_a_secret_in_a_figure_is_masked() -> None:
    assert "AKIA" not in engine.embedded({"name": "AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE": 1})


def test_the_engine_is_in_a_page_that_has_figures_once_and_without_comments() -> None:
    figure = engine.figure({"kind": "ranked", "rows": []})
    with_figures, without = document("a", figure * 2, ""), document("a", "<p>words</p>", "")

    assert with_figures.count("<script>") == 1 and "script-src 'sha256-" in with_figures
    assert "<script" not in without and "script-src" not in without
    assert not re.search(r"^\s*//", engine.script("curves", "many"), re.MULTILINE) and len(engine.script()) < 32_000


def test_an_axis_that_begins_at_zero_says_so() -> None:
    told = spec(Chart("CPU", (Line("all cores", thin([0, 1], [99, 100], 20)),), least=0.0, most=100.0))

    assert (told["least"], told["most"]) == (0, 100) and "plain" not in told and "once" not in told
