"""A pipeline: in one process on one GPU, in two where there are two, beside each other."""

from __future__ import annotations

from .kit import JOBS, Machine, Row, measured, run, skipped, succeeded

LIMIT = 2e-3  # of a loss; stages add in another order, in TF32 at worst


def rows(machine: Machine) -> list[Row]:
    """One stage, then two."""
    size = {"width": machine.pick(4096, 64), "layers": machine.pick(16, 4), "steps": machine.pick(20, 4)}
    alone = succeeded(run(machine, "stage", JOBS / "pipeline.py", _settings(size, 1)))
    found = [
        measured("one stage: a step", [1000 * value for value in alone.result["seconds"]], "ms"),
        *_memory("one stage", alone),
    ]
    both = run(machine, "stages", JOBS / "pipeline.py", _settings(size, 2), seconds=180)
    if machine.gpus == 1:
        met = both.status != 0 and "GPU" in both.failure
        return [
            *found,
            Row("two stages on one GPU", both.said(), goal="refused, with words", met=met),
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


def _settings(size: dict[str, int], ranks: int) -> dict[str, object]:
    return {**size, "trainshed_distribution": "pipeline", "trainshed_processes_per_host": ranks}


def _memory(name: str, done: object) -> list[Row]:
    result = getattr(done, "result", {})
    return [
        Row(f"{name}: GPU memory, {kind}", result[key] / 2**20, "MiB")
        for key, kind in (("planning", "planning and first step"), ("training", "training"))
        if key in result
    ]
