"""Whether half the bytes gain anything inside a host: the stages of `hierarchical` there, in float32 and in bfloat16.

    python benchmarks/inside_host.py [--ranks 2 4] [--mebibytes 0.5 2 8]

Ranks of one machine sum a message's shares over gloo and give the sums to each other, as `reduce` does inside of hosts
(docs/data-parallel.md): as it is, and rounded to bfloat16 before both, with the sum in float32 and the result in float32.
Both take turns; medians, and the CPU seconds of a rank.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "toolkit"))

ROUNDS, REPEATS = 15, 4


def work(rank: int, ranks: int, port: int, sizes: list[float], found: Any) -> None:
    """One rank; the first notes what was measured."""
    from trainshed.parallel.data.algorithms import Peers

    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(ranks)}
    store = dist.TCPStore("127.0.0.1", port, ranks, rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    peers = Peers(dist.PrefixStore("peers", store), range(ranks), rank, timedelta(seconds=60))

    def whole(buffer: torch.Tensor) -> None:
        peers.gather(buffer, peers.sum_shares(buffer).div_(ranks))

    def halves(buffer: torch.Tensor) -> None:
        share = peers.sum_shares(buffer.bfloat16()).div_(ranks).bfloat16()
        rounded = torch.empty_like(buffer, dtype=torch.bfloat16)
        peers.gather(rounded, share)
        buffer.copy_(rounded)

    for size in sizes:
        buffer = torch.randn(int(size * 2**20 / 4))
        seconds: dict[str, list[float]] = {"float32": [], "bfloat16": []}
        cpu = dict.fromkeys(seconds, 0.0)
        ways: dict[str, Callable[[torch.Tensor], None]] = {"float32": whole, "bfloat16": halves}
        for _ in range(ROUNDS):
            for name, way in ways.items():
                dist.barrier()
                began, used = time.perf_counter(), _cpu()
                for _ in range(REPEATS):
                    way(buffer)
                seconds[name].append((time.perf_counter() - began) / REPEATS)
                cpu[name] += (_cpu() - used) / REPEATS / ROUNDS
        if rank == 0:
            found[ranks, size] = {name: (statistics.median(seconds[name]), cpu[name]) for name in ways}
    dist.barrier()
    dist.destroy_process_group()


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """The command line."""
    from local_steps import free_port

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--mebibytes", type=float, nargs="+", default=[0.5, 2, 8], help="of a message")
    given = parser.parse_args()
    with processes.Manager() as manager:
        found = manager.dict()
        for ranks in given.ranks:
            processes.spawn(work, (ranks, free_port(), given.mebibytes, found), nprocs=ranks)
        results = dict(found)
    print("| ranks | message, MiB | float32, ms (CPU) | bfloat16, ms (CPU) | gain |\n|---|---|---|---|---|")
    for (ranks, size), ways in results.items():
        (whole, used), (half, used_half) = ways["float32"], ways["bfloat16"]
        plain, rounded = f"{1e3 * whole:.2f} ({1e3 * used:.2f})", f"{1e3 * half:.2f} ({1e3 * used_half:.2f})"
        print(f"| {ranks} | {size:g} | {plain} | {rounded} | {whole / half:.2f}x |")


if __name__ == "__main__":
    main()
