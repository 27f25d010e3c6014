"""The idle share of a pipeline step against the formula, with work that sleeps.

    python benchmarks/pipeline_bubble.py [--ranks 4] [--milliseconds 200] [--only SCHEDULE ...]

Each rank sleeps the same time for each forward and backward of a microbatch, so that cores do not matter; a sleep that a
busy machine prolongs counts as work, what lies between two sleeps as idle. The best of three steps counts. The sleep is
as long as the work of a large model's stage (0.2 s), because the formula is about the order of work: what each piece of
work costs on top (the CPU time of our code and of two messages, shown as `ms on top`) is independent of its length.
The formula is (P - 1) / (v m + P - 1) for P ranks, m microbatches and v stages a rank. With the zero-bubble schedule half of
a backward is the part that the previous stage waits for, and half is left for later: (P - 1) / (2 v m + P - 1). The sleeps
are hooks on the two ways that a gradient takes, to the input and to the weight, so that it is the real split of the backward
that puts them into one part or the other. Prints one line a case and ends with status 1 if one of the others than GPipe is
further than 0.02 from its formula.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TOOLKIT = Path(__file__).resolve().parents[1] / "toolkit"
SCHEDULES = [
    ("simple", 1),
    ("interleaved", 1),
    ("interleaved1f1b", 2),
    ("interleavedzerobubble", 1),
    ("interleavedzerobubble", 2),
]
CASES = [(schedule, virtual, microbatches) for schedule, virtual in SCHEDULES for microbatches in (4, 8, 16)]
TOLERANCE = 0.02


def worker(milliseconds: float, ranks: int, only: list[str]) -> None:
    """One rank: all cases, the results of rank 0 on stdout."""
    import torch
    from torch import nn

    import trainshed.parallel as pipe
    from trainshed.parallel.plan.plan_file import Plan, PlanUnit, model_fingerprint

    torch.set_num_threads(1)

    slept = [0.0]

    def work(seconds: float) -> None:
        started = time.perf_counter()
        time.sleep(seconds)
        slept[0] += time.perf_counter() - started

    class Sleeper(nn.Module):
        def __init__(self, seconds: float) -> None:
            super().__init__()
            self.weight, self.seconds = nn.Parameter(torch.zeros(16)), seconds
            self.first = nn.Parameter(
                torch.zeros(16)
            )  # the first stage's input needs no gradient, its sleep must not be lost

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            work(self.seconds)
            ways = [x * 1 if x.requires_grad else x * self.first, self.weight * 1]
            if torch.is_grad_enabled():
                for way in ways:
                    way.register_hook(lambda _gradient: work(self.seconds / 2))
            return ways[0] + ways[1]

    def step(model: Any, x: torch.Tensor) -> torch.Tensor:
        loss = model(x).sum()
        model.backward(loss)
        return loss

    torch.distributed.init_process_group("gloo")
    for schedule, virtual, microbatches in [case for case in CASES if case[0] in only]:
        settings = {"partitions": ranks, "microbatches": microbatches, "pipeline": schedule, "virtual_stages": virtual}
        grid = pipe.init(settings)
        seconds = milliseconds / 1e3 / virtual
        net = nn.Sequential(*[Sleeper(seconds) for _ in range(ranks * virtual)])
        model = pipe.PipelineModel(net)
        units = tuple(PlanUnit(str(stage), 0, stage) for stage in range(ranks * virtual))
        model.use_plan(Plan(model_fingerprint(net), {}, units))
        run = pipe.step(step)
        x = torch.randn(microbatches * 2, 16, generator=torch.Generator().manual_seed(1))
        bubbles = []
        for _ in range(7):
            slept[0] = 0.0
            torch.distributed.barrier()
            started = time.perf_counter()
            run(model, x)
            torch.distributed.barrier()
            whole = time.perf_counter() - started
            busy = torch.tensor(slept[0])
            torch.distributed.all_reduce(busy)
            slept_here = float(busy) / ranks
            pieces = 2 * virtual * microbatches
            waits = (1 if schedule == "interleavedzerobubble" else 2) * (ranks - 1)
            on_top = whole / (pieces + waits) - slept_here / pieces
            bubbles.append((1 - slept_here / whole, 1e3 * on_top))
        if grid.rank == 0:  # the first steps also record, compare batches and report
            print("RESULT " + json.dumps([schedule, virtual, microbatches, *min(bubbles[4:])]), flush=True)
        pipe.shutdown()
    torch.distributed.destroy_process_group()


def main() -> int:
    """Starts the ranks and judges."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--milliseconds", type=float, default=200.0)
    names = sorted({schedule for schedule, _ in SCHEDULES})
    parser.add_argument("--only", nargs="+", default=names, choices=names, metavar="SCHEDULE", help=", ".join(names))
    options = parser.parse_args()
    if "RANK" in os.environ:
        worker(options.milliseconds, options.ranks, options.only)
        return 0
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    processes = []
    for rank in range(options.ranks):
        environment = {
            **os.environ,
            "PYTHONPATH": str(TOOLKIT),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(options.ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
        }
        processes.append(subprocess.Popen([sys.executable, *sys.argv], env=environment, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        return 1
    worst = 0.0
    print(f"{options.ranks} ranks, {options.milliseconds:g} ms forward and backward a rank and microbatch")
    print("schedule                v   m   bubble  formula  difference  ms on top")
    for line in outputs[0].splitlines():
        if line.startswith("RESULT "):
            schedule, virtual, m, bubble, on_top = json.loads(line[7:])
            halves = 2 if schedule == "interleavedzerobubble" else 1
            formula = (options.ranks - 1) / (halves * virtual * m + options.ranks - 1)
            shown = f"{bubble:.3f}   {formula:.3f}    {bubble - formula:+.3f}     {on_top:6.2f}"
            print(f"{schedule:22s} {virtual:2d} {m:3d}   {shown}")
            if schedule != "simple":
                worst = max(worst, abs(bubble - formula))
    print(f"largest difference of all but GPipe: {worst:.3f} (allowed {TOLERANCE})")
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
