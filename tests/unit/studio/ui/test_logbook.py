"""Logs come in pieces that join to the whole, and are searched to their end whatever their size."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainshed.studio.ui import logbook
from trainshed.studio.ui.logbook import piece, search


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log of many pieces and blocks, with long and strange lines."""
    monkeypatch.setattr(logbook, "PIECE", 300)
    monkeypatch.setattr(logbook, "BLOCK", 1000)
    lines = [f"line {number} {'x' * (number % 97)}" for number in range(500)]
    lines[100], lines[200], lines[300] = "y" * 2500, "a needle\x1b[31m in red\x1b[0m \u202e", "10 %\r20 %\r30 % NEEDLE"
    path = tmp_path / "algo-1.log"
    path.write_text("\n".join(lines) + "\nthe last one is not fin")
    return path


def forwards(path: Path) -> list[str]:
    place, found = 0, []
    while (part := piece(str(path), place, back=False))["lines"]:
        assert part["start"] == place and part["end"] > place
        found += [text for _, text in part["lines"]]
        place = part["end"]
    return found


def test_pieces_forwards_and_backwards_join_to_the_same_lines(log: Path) -> None:
    place, back = -1, []
    while True:
        part = piece(str(log), place, back=True)
        back = [text for _, text in part["lines"]] + back
        place = part["start"]
        if not place:
            break

    assert "".join(forwards(log)) + "the last one is not fin" == "".join(back)
    assert len([text for text in back if text.startswith("line ")]) == 497


def test_a_line_is_shown_without_colours_and_as_its_last_frame(log: Path) -> None:
    lines = forwards(log)

    assert "a needle in red \\u202e" in lines and "30 % NEEDLE" in lines


def test_a_search_goes_on_where_it_stopped_and_finds_whatever_lies_on_an_edge(log: Path) -> None:
    place, found = 0, []
    while True:
        told = search(str(log), "needle", place, seconds=0.0)
        found += told["hits"]
        place = told["next"]
        if told["done"]:
            break
    assert [text for _, text in found] == ["a needle in red \\u202e", "30 % NEEDLE"]
    at = piece(str(log), found[0][0], back=False)["lines"][0]
    assert list(at) == list(found[0]), "a hit is a place to read from"

    every, place = 0, 0
    while not (told := search(str(log), "line", place))["done"]:
        every, place = every + len(told["hits"]), told["next"]
    assert every + len(told["hits"]) == 497


def test_what_is_not_there_is_empty(tmp_path: Path) -> None:
    assert piece(str(tmp_path / "no"), -1, back=True)["lines"] == []
    assert search(str(tmp_path / "no"), "x", 0)["done"] and search(str(tmp_path / "no"), "", 5)["done"]


def test_a_log_of_a_gigabyte_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "algo-1.log"
    with path.open("wb") as file:
        file.seek(1 << 30)
        file.write(b"\nthe end\n")
    part = piece(str(path), -1, back=True)

    assert part["lines"][-1][1] == "the end" and part["end"] - part["start"] <= logbook.PIECE
    assert not search(str(path), "the end", 0, seconds=0.0)["done"], "each request has its limit"
