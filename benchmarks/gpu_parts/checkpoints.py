"""A checkpoint of 8 GB: how long the loop stands still, beside a copy into pinned memory, and how soon it is durable."""

from __future__ import annotations

import os
import shutil

from .kit import JOBS, Machine, Row, measured, run, skipped, succeeded

GOAL = 1.3


def rows(machine: Machine) -> list[Row]:
    """Plain tensors, and sharded by FSDP2 on one rank."""
    found = []
    wanted = machine.pick(8000, 32)
    free = shutil.disk_usage(machine.work).free
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    megabytes = int(min(wanted, free / 4e6, memory / 5e6))
    if megabytes < wanted:
        found.append(skipped(f"{wanted} MB", f"disk and memory are enough for {megabytes} MB"))
    for name, sharded in (("plain", 0), ("FSDP2, one rank", 1)):
        done = succeeded(
            run(
                machine,
                f"checkpoint-{sharded}",
                JOBS / "checkpoint.py",
                {
                    "megabytes": megabytes, "repeat": machine.pick(4, 2), "sharded": sharded,
                    "trainshed_distribution": "torchrun", "trainshed_processes_per_host": 1,
                },
                checkpoints=machine.work / f"checkpoints-{sharded}",
            )
        )  # fmt: skip
        result = done.result
        gigabytes = result["bytes"] / 1e9
        ratio = min(result["stalls"]) / min(result["pinned"])
        title = f"{gigabytes:.2g} GB, {name}"
        found += [
            measured(f"{title}: the loop stands still", result["stalls"], "s"),
            measured(f"{title}: copy to pinned memory", result["pinned"], "s"),
            measured(f"{title}: copy to pageable memory", result["loose"], "s"),
            machine.judged(f"{title}: stall / pinned copy", ratio, "x", f"at most {GOAL}", ratio <= GOAL, "least of each"),
            measured(f"{title}: durable after", result["durable"], "s"),
            Row(f"{title}: load, verified", result["load"], "s"),
            Row(f"{title}: the same after the load", str(result["same"]), goal="True", met=result["same"]),
        ]
        shutil.rmtree(machine.work / f"checkpoints-{sharded}")
    return found
