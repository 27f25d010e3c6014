"""The files of steps: what is written comes back, and what is broken does not break the rest."""

from __future__ import annotations

import json
from pathlib import Path

from trainshed.observe.steps import FOLDER, PHASES, Window, line_of, read_rank, read_steps

WINDOW = Window(
    time=1790000010.5,
    step=120,
    steps=10,
    seconds=1.0,
    longest=0.25,
    phases={"data": 0.75, "rest": 0.25},
    samples=320,
    peaks={"forward": 1 << 30},
    cpu=0.5,
    at=4120,
)


def written(folder: Path, name: str, *lines: str) -> Path:
    path = folder / FOLDER / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines))
    return path


def facts(**fields: object) -> str:
    return json.dumps({"Facts": fields}) + "\n"


def test_a_window_comes_back_as_it_was(tmp_path: Path) -> None:
    path = written(tmp_path, "a", facts(Rank=3, World=4), line_of(WINDOW), facts(Workers=2))
    found = read_rank(str(path))

    assert found is not None and found.windows == (WINDOW,)
    assert (found.rank, found.facts) == (3, {"Rank": 3, "World": 4, "Workers": 2})
    assert (found.steps, found.seconds) == (10, 1.0)
    assert found.phases() == {**dict.fromkeys(PHASES, 0.0), "data": 0.75, "rest": 0.25}


def test_ranks_come_in_order_and_earlier_lives_first(tmp_path: Path) -> None:
    written(tmp_path, "a", facts(Rank=1), line_of(WINDOW))
    written(tmp_path, "b", facts(Rank=0), line_of(WINDOW.replace(time=1790000099.0)))
    written(tmp_path, "c", facts(Rank=0), line_of(WINDOW))
    written(tmp_path, "d", facts(Rank=2))

    assert [(one.rank, one.windows[0].time) for one in read_steps(str(tmp_path))] == [
        (0, 1790000010.5),
        (0, 1790000099.0),
        (1, 1790000010.5),
    ]


def test_broken_lines_are_passed_over(tmp_path: Path) -> None:
    good = line_of(WINDOW)
    broken = ["[]\n", "{}\n", '{"Phases": 1}\n', good.replace("1.0,", '"NaN",'), good.replace("10,", "0,", 1), "{" * 9999]
    path = written(tmp_path, "a", *broken, "\n", good, good[:-9])
    found = read_rank(str(path))

    assert found is not None and found.windows == (WINDOW,)
    assert read_steps(str(tmp_path / "absent")) == []
