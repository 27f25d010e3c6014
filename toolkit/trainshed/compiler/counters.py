"""Counters of the compiler in this process, for the run record: written after the first compiled step and at exit.

The names of torch's counters are those of torch 2.9 to 2.13 (`torch._dynamo.utils.counters`).
"""

from __future__ import annotations

import json
import os

from trainshed.base.files import write_atomic

from .messages import rank, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trainshed.contract.wire.compile_plan import CompilePlan

REASONS = 10  # graph breaks that are told by name


def counters() -> dict[str, Any]:
    """graphs: different graphs compiled; graph_breaks and their reasons; cache hits, misses and bypasses; seconds."""
    from torch._dynamo import utils

    held = utils.counters
    breaks = held["graph_break"]
    inductor, autograd = held["inductor"], held["aot_autograd"]
    seconds = utils.calculate_time_spent()
    return {
        "graphs": held["stats"]["unique_graphs"],
        "frames": {"total": held["frames"]["total"], "ok": held["frames"]["ok"]},
        "graph_breaks": sum(breaks.values()),
        "break_reasons": [str(reason).split("\n")[0][:200] for reason in list(breaks)[:REASONS]],
        "fx_cache": {name: inductor[f"fxgraph_cache_{name}"] for name in ("hit", "miss", "bypass")},
        "autograd_cache": {name: autograd[f"autograd_cache_{name}"] for name in ("hit", "miss", "bypass")},
        "compile_seconds": {str(name): round(value, 3) for name, value in seconds.items()},
    }


def peak_bytes() -> int:
    """The most memory that this process has held: the GPU's where there is one, else its resident set."""
    import torch

    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_allocated())
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def put(plan: CompilePlan, facts: dict[str, Any]) -> None:
    """Puts facts where `train` looks for them. A disk that is full costs the report, never the training."""
    try:
        write_atomic(f"{plan.report}/{plan.host}.rank{rank()}.json", json.dumps(facts, indent=1) + "\n")
    except OSError as error:
        say(f"no report: {error}", every_rank=True)


def write(plan: CompilePlan, facts: dict[str, Any]) -> None:
    """The report of a process that torch's own compiler worked in."""
    try:
        facts = {**facts, **counters(), "peak_bytes": peak_bytes(), "pid": os.getpid()}
    except (ImportError, AttributeError, KeyError) as error:  # another version's counters
        facts = {**facts, "error": f"{type(error).__name__}: {error}"}
    put(plan, facts)
