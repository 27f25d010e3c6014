"""Ways in which GPU jobs fail: what the failure file says, and how soon."""

from __future__ import annotations

from dataclasses import dataclass

from .kit import JOBS, Machine, Row, run, skipped


@dataclass(frozen=True)
class Fault:
    """One job that fails.

    Attributes:
        kind: of `gpu_jobs/fault.py`, or of `words.py` where it cannot be provoked.
        gpu: a part of what the failure file must say where there is a GPU.
        cpu: the same without one; "" where nothing comes near.
        ranks: processes of the job.
    """

    kind: str
    gpu: str
    cpu: str
    ranks: int = 1
    script: str = "fault.py"


FAULTS = (
    Fault("out_of_memory", "the GPU's memory is full", "can't allocate memory"),
    Fault("device_assert", "a label or index is out of range", "index out of range"),
    Fault("illegal_address", "memory that is not its own", "segmentation fault"),
    Fault("missing_rank", "rank 1", "rank 1", ranks=2),
    Fault("same_gpu", "two ranks use one GPU", "", ranks=2),
    Fault("ecc", "this GPU is faulty", "this GPU is faulty", script="words.py"),
    Fault("bus", "this GPU is faulty", "this GPU is faulty", script="words.py"),
    Fault("remote", "another rank", "another rank", ranks=2, script="words.py"),
)


def rows(machine: Machine) -> list[Row]:
    """Each fault, once."""
    found = []
    for fault in FAULTS:
        wanted = fault.gpu if machine.gpus else fault.cpu
        if not wanted or (fault.kind == "same_gpu" and machine.gpus > 1):
            found.append(skipped(fault.kind, "needs exactly one GPU"))
            continue
        hyperparameters: dict[str, object] = {"kind": fault.kind}
        if fault.ranks > 1:
            hyperparameters |= {"trainshed_distribution": "torchrun", "trainshed_processes_per_host": fault.ranks}
        done = run(machine, f"fault-{fault.kind}", JOBS / fault.script, hyperparameters, seconds=120)
        met = done.status != 0 and wanted.lower() in done.failure.lower()
        note = f"{done.seconds:.1f} s" + ("; its words, printed by a script" if fault.script == "words.py" else "")
        found.append(Row(fault.kind, done.said(), goal=f"says {wanted!r}", met=met, note=note))
    return found
