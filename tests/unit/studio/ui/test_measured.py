"""The machines and steps of a run for the page: read on as they come, only what charts show, only what is new."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from trainshed.observe.steps import PHASES, Window, line_of
from trainshed.observe.system import FOLDER, sample_text
from trainshed.studio.ui import measured
from trainshed.studio.ui.measured import Machines

START = 1_790_000_000


def sampled(folder: Path, minute: int, seconds: range, host: int = 1, more: list[Any] | None = None) -> Path:
    """Adds samples of one minute of a host; its CPUs are used by 1 % more from second to second."""
    path = folder / f"algo-{host}/output/profiler" / FOLDER / "2026092113" / f"{START + 60 * minute}.algo-{host}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        for second in seconds:
            values = [
                ("cpu", "cpu0", "CPUUtilization", 99.0),
                ("cpu", "cpus", "CPUUtilization", float(second)),
                ("network", "eth0", "ReceiveBytesPerSecond", 2e6),
                ("network", "lo", "ReceiveBytesPerSecond", 1e6),
                *(more or []),
            ]
            file.write(sample_text(values, f"algo-{host}", START + 60 * minute + second))
    return path


def stepped(folder: Path, rank: int, life: int, windows: int, seconds: float, data: float) -> Path:
    """What a rank writes in one life: windows of ten steps."""
    path = folder / f"algo-1/output/profiler/steps/algo-1.rank-{rank}.{life}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    phases = {name: 0.0 for name in PHASES} | {"data": data, "forward": seconds - data}
    with path.open("a") as file:
        file.write(json.dumps({"Facts": {"Rank": rank, "World": 2, "Host": "algo-1", "Cpus": 2}}) + "\n")
        for number in range(1, windows + 1):
            file.write(line_of(Window(START + life + number, 10 * number, 10, seconds, seconds / 10, phases)))
    return path


def shown(told: dict[str, Any], title: str) -> dict[str, list[Any]]:
    (chart,) = [chart for chart in told["charts"] if chart["title"] == title]
    return {line["name"]: line["y"] for line in chart["lines"]}


def known(told: dict[str, Any]) -> dict[str, Any]:
    return {"known": {chart["title"]: chart["count"] for chart in told["charts"]}}


def test_samples_come_as_they_are_written_and_only_charts_with_new_ones_are_sent(tmp_path: Path) -> None:
    sampled(tmp_path, 0, range(3))
    held = Machines()
    first = held.charts(str(tmp_path), {})
    assert first["titles"] == ["CPU, % of all cores", "Network, MB/s"] and first["whole"]
    assert shown(first, "CPU, % of all cores") == {"all cores": [0.0, 1.0, 2.0]}
    assert shown(first, "Network, MB/s") == {"in": [3.0, 3.0, 3.0]}
    assert (first["charts"][0]["axis"], first["charts"][0]["most"], first["charts"][1].get("most")) == ("time", 100.0, None)
    assert held.charts(str(tmp_path), known(first))["charts"] == []

    path = sampled(tmp_path, 1, range(4, 5))
    text = path.read_bytes()
    cut = text.index(b"CPUUtilization", text.index(b"cpus"))
    path.write_bytes(text[:cut])  # it is being written
    sampled(tmp_path, 0, range(3, 4))
    again = held.charts(str(tmp_path), known(first))
    assert shown(again, "CPU, % of all cores") == {"all cores": [0.0, 1.0, 2.0, 3.0]}
    with path.open("ab") as file:
        file.write(text[cut:])
    last = held.charts(str(tmp_path), known(again))
    assert shown(last, "CPU, % of all cores") == {"all cores": [0.0, 1.0, 2.0, 3.0, 4.0]}
    assert shown(last, "Network, MB/s") == {"in": [3.0] * 5}


def test_files_that_the_sampler_thins_or_removes_are_followed(tmp_path: Path) -> None:
    old, new = sampled(tmp_path, 0, range(10)), sampled(tmp_path, 1, range(10, 12))
    held = Machines()
    assert len(shown(held.charts(str(tmp_path), {}), "CPU, % of all cores")["all cores"]) == 12

    aside = old.with_suffix(".thinned")
    aside.write_bytes(b"".join(line for line in old.read_bytes().splitlines(True)[-8:]))
    os.replace(aside, old)
    assert shown(held.charts(str(tmp_path), {}), "CPU, % of all cores")["all cores"] == [8.0, 9.0, 10.0, 11.0]
    old.unlink()
    assert shown(held.charts(str(tmp_path), {}), "CPU, % of all cores")["all cores"] == [10.0, 11.0]
    new.unlink()
    assert held.charts(str(tmp_path), {})["titles"] == []


def test_a_long_history_comes_in_pieces_and_a_part_of_it_finely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for minute in range(20):
        sampled(tmp_path, minute, range(60))
    monkeypatch.setattr(measured, "READ_SECONDS", 0.0)
    held = Machines()
    turns = 1
    while not held.charts(str(tmp_path), {})["whole"] and turns < 100:
        turns += 1
        monkeypatch.setattr(measured, "READ_SECONDS", 0.001)
    assert 1 < turns < 100

    coarse = shown(held.charts(str(tmp_path), {"parts": 20}), "CPU, % of all cores")["all cores"]
    assert len(coarse) <= 40 and min(coarse) == 0.0 and max(coarse) == 59.0
    asked = {"title": "CPU, % of all cores", "low": 601.5, "high": 603.5, "parts": 300}
    (part,) = held.charts(str(tmp_path), asked)["charts"]
    assert part["lines"][0]["y"] == [1.0, 2.0, 3.0, 4.0]


def test_the_steps_of_each_ranks_last_life_and_the_verdict(tmp_path: Path) -> None:
    stepped(tmp_path, 0, 0, 3, 9.0, 0.0)
    stepped(tmp_path, 0, 100, 3, 2.0, 1.5)
    live = stepped(tmp_path, 1, 100, 3, 2.0, 1.0)
    held = Machines()
    told = held.charts(str(tmp_path), {})

    assert told["verdict"].startswith("input-bound: ")
    assert told["steps"] == [
        ["rank 0", 200.0, [["data", 150.0], ["forward", 50.0]]],
        ["rank 1", 200.0, [["data", 100.0], ["forward", 100.0]]],
    ]
    assert told["titles"] == ["Milliseconds of a step", "Milliseconds of a step of rank 0, by phase"]
    assert shown(told, "Milliseconds of a step") == {"rank 0": [200.0] * 3, "rank 1": [200.0] * 3}
    with live.open("a") as file:
        file.write(line_of(Window(START + 200.0, 40, 10, 4.0, 0.5, {"forward": 4.0})))
    later = held.charts(str(tmp_path), known(told))
    assert shown(later, "Milliseconds of a step")["rank 1"] == [200.0] * 3 + [400.0]


def test_files_that_nobody_of_ours_writes_are_not_read_to_their_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for minute in range(4):
        sampled(tmp_path, minute, range(10))
    path = stepped(tmp_path, 0, 0, 2, 1.0, 0.5)
    monkeypatch.setattr(measured, "MOST_BYTES", 2000)
    monkeypatch.setattr(measured, "_BLOCK", 1000)
    monkeypatch.setattr(measured, "MOST_STEP_BYTES", path.stat().st_size - 1)
    monkeypatch.setattr(measured, "MOST_FILES", 2)
    told = Machines().charts(str(tmp_path), {})

    seen = shown(told, "CPU, % of all cores")["all cores"]
    assert seen == [float(second) for second in range(len(seen) // 2)] * 2 and 4 <= len(seen) < 20
    assert told["whole"] and told["steps"] == []


def test_hostile_files_cost_their_own_lines_alone(tmp_path: Path) -> None:
    evil = [("gpu", f"gpu{number}<b>", "GPUUtilization", 1.0) for number in range(40)]
    sampled(tmp_path, 0, range(2), more=evil)
    profiler = tmp_path / "algo-1/output/profiler"
    os.mkfifo(profiler / FOLDER / "2026092113" / f"{START + 60}.algo-1.json")
    stepped(tmp_path, 0, 0, 2, 1.0, 0.5)
    os.mkfifo(profiler / "steps/algo-1.rank-1.1.json")
    (profiler / "steps/algo-1.rank-2.1.json").write_text(
        '{"Facts": {"Rank": "x", "Workers": [], "Cpus": {}}}\n[]\n{"Time": 1}\n'
    )
    facts = '{"Facts": {"Rank": 3, "Workers": "many", "Cpus": [], "Batch": {}, "Host": 7}}\n'
    window = line_of(Window(START + 5.0, 20, 20, 8.0, 1.0, {"data": 8.0}))
    (profiler / "steps/algo-1.rank-3.1.json").write_text(facts + window)
    told = Machines().charts(str(tmp_path), {})

    assert len(shown(told, "GPU, %")) == 16
    assert [name for name, *_ in told["steps"]] == ["rank 0", "rank 3"]
    assert told["whole"]
