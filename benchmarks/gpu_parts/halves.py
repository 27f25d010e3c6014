"""A pipeline of one stage with parameters in half precision, with its optimizer's states on the CPU, and with products in
float8: what it takes of the GPU's memory, and whether it learns the same."""

from __future__ import annotations

from .kit import JOBS, Machine, Row, measured, run, skipped, succeeded

LIMIT = 0.05  # of the last loss, as a part of that of autocast
WAYS = {
    "autocast": "bf16",
    "master_weights": "bf16,master_weights",
    "with offload_optimizer_state": "bf16,master_weights,offload_optimizer_state",
    "with fp8": "bf16,master_weights,fp8",
}


def rows(machine: Machine) -> list[Row]:
    """One way after the other."""
    size = {"width": machine.pick(4096, 64), "layers": machine.pick(16, 4), "steps": machine.pick(20, 4)}
    found: list[Row] = []
    first = 0.0
    for number, (way, switches) in enumerate(WAYS.items()):
        job = {**size, "trainshed_distribution": "pipeline", "trainshed_processes_per_host": 1, "optimizer": "adamw"}
        done = run(machine, f"half-{number}", JOBS / "pipeline.py", {**job, "switches": switches})
        if "fp8" in switches and done.status != 0 and "fp8 needs" in done.failure:
            row = Row(way, done.said(), goal="refused, with words", met=True)
            found.append(skipped(way, done.said()) if machine.gpus else row)
            continue
        result = succeeded(done).result
        found.append(measured(f"{way}: a step", [1000 * value for value in result["seconds"]], "ms"))
        if "training" in result:
            found.append(Row(f"{way}: GPU memory, training", result["training"] / 2**20, "MiB"))
        last = result["losses"][-1]
        first = first or last
        apart = abs(last - first) / first
        met = apart <= LIMIT
        found.append(Row(f"{way}: last loss", last, "", goal=f"within {LIMIT} of autocast's", met=met))
    return found
