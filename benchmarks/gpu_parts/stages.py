"""A pipeline in one process on one GPU, and in two where there are two; the memory that was predicted and what it took."""

from __future__ import annotations

import json

from .kit import JOBS, Machine, Row, measured, run, skipped, succeeded

NEAR = 0.1  # of the memory that a step takes
LIMIT = 2e-3  # of a loss; stages add in another order, in TF32 at worst


def rows(machine: Machine) -> list[Row]:
    """One stage, then two."""
    size = {"width": machine.pick(4096, 64), "layers": machine.pick(16, 4), "steps": machine.pick(20, 4)}
    alone = succeeded(run(machine, "stage", JOBS / "pipeline.py", _settings(size, 1)))
    found = [
        measured("one stage: a step", [1000 * value for value in alone.result["seconds"]], "ms"),
        *_memory("one stage", alone),
        *_predicted(machine, size),
    ]
    both = run(machine, "stages", JOBS / "pipeline.py", _settings(size, 2), seconds=180)
    if machine.gpus == 1:
        met = both.status != 0 and "GPU" in both.failure
        return [
            *found,
            Row("two stages on one GPU", both.said(), goal="refused, with words", met=met),
            _two_tensor_ranks(machine, size),
            skipped("two stages: a step", "needs two GPUs"),
        ]
    succeeded(both)
    apart = max(abs(a - b) for a, b in zip(alone.result["losses"], both.result["losses"], strict=True))
    return [
        *found,
        measured("two stages: a step", [1000 * value for value in both.result["seconds"]], "ms"),
        *_memory("two stages", both),
        Row("largest difference of a loss", apart, "", goal=f"at most {LIMIT}", met=apart <= LIMIT),
    ]


def _predicted(machine: Machine, size: dict[str, int]) -> list[Row]:
    """The memory that `degrees: auto` counts, beside what torch's allocator was asked for."""
    found = []
    for optimizer in ("sgd", "adamw"):
        kept = machine.work / f"predicted-{optimizer}"
        settings = {**_settings(size, 1), "divide": "auto", "optimizer": optimizer}
        done = succeeded(run(machine, f"auto-{optimizer}", JOBS / "pipeline.py", settings, checkpoints=kept))
        told = json.loads((kept / "pipeline-plan.json").read_text())["predicted"]["chosen"]["memory_mib"]
        found.append(Row(f"degrees: auto, {optimizer}: memory predicted", told, "MiB"))
        if "training" in done.result:
            taken = done.result["training"] / 2**20
            apart = abs(told - taken) / taken
            note = f"{taken:.0f} MiB at most while it trains, {done.result['planning'] / 2**20:.0f} in the first step"
            goal = f"at most {NEAR}"
            found.append(Row("predicted and measured, apart", apart, "of it", goal=goal, met=apart <= NEAR, note=note))
    return found


def _two_tensor_ranks(machine: Machine, size: dict[str, int]) -> Row:
    done = run(machine, "tensor", JOBS / "pipeline.py", {**_settings(size, 2), "divide": "tensor"}, seconds=180)
    met = done.status != 0 and "GPU" in done.failure
    return Row("two tensor ranks on one GPU", done.said(), goal="refused, with words", met=met)


def _settings(size: dict[str, int], ranks: int) -> dict[str, object]:
    return {**size, "trainshed_distribution": "pipeline", "trainshed_processes_per_host": ranks}


def _memory(name: str, done: object) -> list[Row]:
    result = getattr(done, "result", {})
    return [
        Row(f"{name}: GPU memory, {kind}", result[key] / 2**20, "MiB")
        for key, kind in (("planning", "planning and first step"), ("training", "training"))
        if key in result
    ]
