"""What activation checkpoints save and cost: the peak of each rank and the time of a step, by setting.

    python benchmarks/recompute.py [--ranks 2] [--limits 300 200] [--steps 6] [--out FILE]

Each rank trains a stage of a decoder (8 blocks of width 256, 8 microbatches of one sequence of 512 tokens, AdamW) on one
core: with `activation_checkpointing` off, auto with each `memory_limit` (MiB of a rank), and all. The peak is that of the
rank's own memory (no files) beside what it had when the step began, looked at two hundred times a second; it leaves out the
first two steps, which plan and record. Losses have to be the same to the last bit.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

TOOLKIT = Path(__file__).resolve().parents[1] / "toolkit"
WIDTH, TOKENS, BLOCKS, MICROBATCHES, WORDS = 256, 512, 8, 8, 256


class Peak(threading.Thread):
    """The most memory of this process beside what it has now, until it is stopped."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.before = self.most = _own()
        self._over = threading.Event()
        self.start()

    def run(self) -> None:
        """Looks on."""
        while not self._over.wait(0.005):
            self.most = max(self.most, _own())

    def stop(self) -> int:
        """Bytes."""
        self._over.set()
        self.join()
        return self.most - self.before


def _own() -> int:
    """Bytes of this process that are not of files."""
    pages = [int(one) for one in Path("/proc/self/statm").read_text().split()]
    return (pages[1] - pages[2]) * os.sysconf("SC_PAGESIZE")


def rank_process(settings: dict[str, object], steps: int) -> None:
    """One rank; prints what it has found as a JSON line."""
    import torch
    import torch.nn.functional as F
    from _decoder import Block
    from torch import nn

    import trainshed.parallel as pipe

    torch.set_num_threads(1)

    pipe.init({"pipeline_parallel_degree": int(os.environ["WORLD_SIZE"]), "microbatches": MICROBATCHES, **settings})
    torch.manual_seed(0)
    blocks = [Block(WIDTH, heads=4) for _ in range(BLOCKS)]
    model = pipe.PipelineModel(nn.Sequential(nn.Embedding(WORDS, WIDTH), *blocks, nn.Linear(WIDTH, WORDS)))
    optimizer = pipe.PipelineOptimizer(torch.optim.AdamW(model.parameters(), lr=1e-4))

    @pipe.step
    def step(model, x):  # type: ignore[no-untyped-def]
        loss = F.cross_entropy(model(x).flatten(0, 1), x.flatten())
        model.backward(loss)
        return loss

    losses, seconds, peaks = [], [], []
    for number in range(steps):
        torch.manual_seed(number)
        x = torch.randint(0, WORDS, (MICROBATCHES, TOKENS))
        optimizer.zero_grad()
        peak, began = Peak(), time.perf_counter()
        losses.append(step(model, x).reduce_mean().item())
        seconds.append(time.perf_counter() - began)
        peaks.append(peak.stop())
        optimizer.step()
    found = {"rank": pipe.rank(), "peak": max(peaks[2:]), "seconds": statistics.median(seconds[2:]), "losses": losses}
    print(json.dumps(found), flush=True)
    pipe.shutdown()


def run(ranks: int, settings: dict[str, object], steps: int) -> tuple[list[dict], str]:
    """What each rank has found, and the line about what runs again.

    Raises:
        SystemExit: a rank failed.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    started = []
    for rank in range(ranks):
        environ = {
            **os.environ,
            **{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)},
            **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "PYTHONPATH": str(TOOLKIT), "OMP_NUM_THREADS": "1"},
            **{"PYTHONHASHSEED": "0", "MALLOC_MMAP_THRESHOLD_": str(2**16)},  # freed tensors go back to the system
        }
        command = [sys.executable, __file__, "--rank", json.dumps(settings), str(steps)]
        started.append(subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True))
    said = [one.communicate()[0] for one in started]
    if any(one.returncode for one in started):
        raise SystemExit(f"a rank failed with {settings}")
    lines = [line for line in said[0].splitlines() if line.startswith("activation checkpointing")]
    return [json.loads(one.splitlines()[-1]) for one in said], lines[0] if lines else ""


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--limits", type=int, nargs="+", default=[300, 200], help="memory_limit of auto, MiB")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--out", type=Path, help="Markdown file for the table")
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.steps < 3 and not asked.rank:
        parser.error("--steps must be 3 or more: the first two plan and record")
    if asked.rank:
        rank_process(json.loads(asked.rank[0]), int(asked.rank[1]))
        return
    ways: list[tuple[str, dict[str, object]]] = [("off", {}), ("auto", {"activation_checkpointing": "auto"})]
    for limit in asked.limits:
        ways.append((f"auto, memory_limit = {limit}", {"activation_checkpointing": "auto", "memory_limit": limit}))
    ways.append(("all", {"activation_checkpointing": "all"}))
    rows = [f"| setting | {' | '.join(f'peak of rank {rank}, MiB' for rank in range(asked.ranks))} | a step, to off |"]
    rows.append("|---" * (asked.ranks + 2) + "|")
    first: list[dict] = []
    for name, settings in ways:
        found, line = run(asked.ranks, settings, asked.steps)
        first = first or found
        if [one["losses"] for one in found] != [one["losses"] for one in first]:
            raise SystemExit(f"the losses with {name} are others: {found[0]['losses']}, and {first[0]['losses']}")
        peaks = " | ".join(f"{one['peak'] / 2**20:.0f}" for one in found)
        rows.append(f"| `{name}` | {peaks} | {found[0]['seconds'] / first[0]['seconds']:.2f} |")
        print(line or rows[-1], rows[-1] if line else "", sep="\n", flush=True)
    print("\n".join(rows))
    if asked.out is not None:
        asked.out.write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
