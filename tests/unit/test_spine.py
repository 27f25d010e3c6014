"""The spine has a test of every place that README names, or the words why not."""

from __future__ import annotations

import pytest

from support.paths import ROOT
from support.spine import PLACES, spine


def test_every_place_of_the_front_page_is_known() -> None:
    table = (ROOT / "README.md").read_text().partition("## What works where\n")[2].partition("\n## ")[0]
    places = [line[2:] for line in table.splitlines() if line.startswith("| ")][1:]

    assert [known for place, known in zip(places, PLACES, strict=True) if not place.startswith(known)] == []


@pytest.mark.parametrize("place", PLACES)
def test_what_runs_in_a_place_is_a_test_of_the_spine(place: str) -> None:
    for cell in PLACES[place]:
        file, found, test = cell.partition("::")
        assert not found or test in spine().get(file, ("", []))[1], cell
