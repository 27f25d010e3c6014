"""Ranks that are killed in the middle of a step or a save, and go on with other degrees as if nothing had been."""

from __future__ import annotations

import json
import signal
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import ranks
from kill_starts import Start

from support.lazy import Lazy

torch = Lazy("torch")
kill_workers = Lazy("kill_workers")
closeness = Lazy("closeness")

pytestmark = [pytest.mark.torch, pytest.mark.exact, pytest.mark.safety]

STAGES: dict[str, Any] = {"partitions": 2}
PARTS: dict[str, Any] = {"tensor_parallel_degree": 2}
SHARDS: dict[str, Any] = {"sharded_data_parallel_degree": 2}
ONE_BATCH: dict[str, Any] = {"prescaled_batch": True}
SPREAD: dict[str, Any] = {"placement_strategy": "spread"}
EVERY: dict[str, Any] = {**STAGES, **PARTS, **SHARDS, **ONE_BATCH}


def goes_on(*starts: Start) -> None:
    """The starts, one from the checkpoint of the other, compared with one process that trains without a break."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "checkpoint")
        for start in starts[:-1]:
            _run(start, path)
        states = ranks.run(starts[-1].world, "kill_workers:run", starts[-1], str(path))
        lines = [json.loads(line) for line in Path(f"{path}.lines").read_text().splitlines()]
    assert [number for number, *_ in lines] == _numbers(starts)
    found = {number: numbers for number, *numbers in lines}
    expected, state = kill_workers.in_one_process(starts)
    closeness.assert_trained_alike(list(found.values()), expected, rtol=1e-6)
    for own in states:
        closeness.assert_trained_alike(own, state, rtol=1e-5, atol=1e-5)


def _run(start: Start, path: Path) -> None:
    if not start.killed:
        ranks.run(start.world, "kill_workers:run", start, str(path))
        return
    with tempfile.TemporaryDirectory() as out:
        with ranks.started(start.world, "kill_workers:run", start, str(path), out=out) as processes:
            for process in processes:
                process.join(ranks.LIMIT)
            codes = [process.exitcode for process in processes]
        said = "\n".join(ranks.log(out, rank)[-3000:] for rank in range(start.world))
        assert all(codes) and -signal.SIGKILL in codes, (codes, said)


def _numbers(starts: tuple[Start, ...]) -> list[int]:
    """The steps that are done: that in which a save is killed is done once more."""
    found: list[int] = []
    for begun, start in pairwise((Start(1, {}, 0), *starts)):
        found += range(begun.last, start.last + (start.killed in ("written", "published")))
    return found


@pytest.mark.spine
@pytest.mark.usefixtures("no_pipeline")
def test_shards_of_tensor_groups_are_killed_while_they_save_and_go_on_as_one_process() -> None:
    goes_on(Start(4, {**PARTS, **SHARDS}, 2, "written"), Start(1, {}, 4))


@pytest.mark.heavy
@pytest.mark.parametrize(
    "starts",
    [
        pytest.param(
            (
                Start(4, {**PARTS, **SHARDS}, 5, "backward"),
                Start(4, {"sharded_data_parallel_degree": 4}, 8, "written"),
                Start(4, {**PARTS, **SHARDS, **ONE_BATCH, **SPREAD}, 11, "published"),
                Start(4, {**STAGES, **PARTS, **ONE_BATCH}, 14, "backward"),
                Start(4, {**PARTS, **SHARDS, **ONE_BATCH}, 17, "backward", delayed=True),
                Start(1, {}, 20),
            ),
            id="tensor groups with shards",
        ),
        pytest.param(
            (
                Start(8, EVERY, 5, "backward"),
                Start(8, {**EVERY, **SPREAD}, 9, "written"),
                Start(4, {**PARTS, **SHARDS}, 13, "published"),
                Start(8, {**EVERY, "pipeline": "interleavedzerobubble"}, 17, "backward"),
                Start(1, {}, 20),
            ),
            id="stages with tensor groups and shards",
        ),
        pytest.param(
            (
                Start(4, {**STAGES, **SHARDS}, 7, "backward"),
                Start(4, {"partitions": 4}, 14),
                Start(1, {}, 20),
            ),
            id="stages with shards",
        ),
    ],
)
def test_divided_and_sharded_models_are_killed_and_go_on_with_other_degrees(starts: tuple[Start, ...]) -> None:
    goes_on(*starts)
