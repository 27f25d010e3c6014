"""The idle share of a pipeline step against the formula, with work that sleeps.

    python benchmarks/pipeline_bubble.py [--ranks 4] [--milliseconds 200] [--only SCHEDULE ...] [--simulated]

Each rank sleeps the same time for each forward and backward of a microbatch, so that cores do not matter; a sleep that a
busy machine prolongs counts as work, what lies between two sleeps as idle. The best of three steps counts. The sleep is
as long as the work of a large model's stage (0.2 s), because the formula is about the order of work: what each piece of
work costs on top (the CPU time of our code and of two messages, shown as `ms on top`) is independent of its length.
The formula is (P - 1) / (v m + P - 1) for P ranks, m microbatches and v stages a rank. With the zero-bubble schedule half of
a backward is the part that the previous stage waits for, and half is left for later: (P - 1) / (2 v m + P - 1). Those whose
stages go through the ranks and back are compared with the simulation of their order. The sleeps are hooks on the two ways
that a gradient takes, to the input and to the weight, so that it is the real split of the backward that puts them into one
part or the other. Prints one line a case and ends with status 1 if one of the others than GPipe is further than 0.02 from
its formula.

With --simulated nothing runs: the table of all schedules, with forward, input gradient and weight gradient equally long and
messages for nothing, and what the fullest rank keeps of activations (1: those of all its stages for one microbatch).
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
from queue import SimpleQueue
from typing import Any

TOOLKIT = Path(__file__).resolve().parents[1] / "toolkit"
SCHEDULES = [
    ("simple", 1),
    ("interleaved", 1),
    ("interleaved1f1b", 2),
    ("interleavedzerobubble", 1),
    ("interleavedzerobubble", 2),
    ("zbvzerobubble", 2),
    ("dualpipev", 2),
]
V_SHAPED = ("zbvzerobubble", "dualpipev")
CASES = [(schedule, virtual, microbatches) for schedule, virtual in SCHEDULES for microbatches in (4, 8, 16)]
TOLERANCE = 0.02


def worker(milliseconds: float, ranks: int, only: list[str]) -> None:
    """One rank: all cases, the results of rank 0 on stdout."""
    import torch
    from torch import nn

    import trainshed.parallel as pipe
    from trainshed.parallel.plan.plan_file import Plan, PlanUnit, model_fingerprint

    torch.set_num_threads(1)

    slept: SimpleQueue[float] = SimpleQueue()  # what a forward notes in Python is kept apart for each stage

    def work(seconds: float) -> None:
        started = time.perf_counter()
        time.sleep(seconds)
        slept.put(time.perf_counter() - started)

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
        seats = [*range(ranks), *reversed(range(ranks))] if schedule in V_SHAPED else [*range(ranks)] * virtual
        assert all(grid.seat(stage) == seat for stage, seat in enumerate(seats))
        model.use_plan(Plan(model_fingerprint(net), {}, units))
        run = pipe.step(step)
        x = torch.randn(microbatches * 2, 16, generator=torch.Generator().manual_seed(1))
        bubbles = []
        for _ in range(7):
            torch.distributed.barrier()
            started = time.perf_counter()
            run(model, x)
            torch.distributed.barrier()
            whole = time.perf_counter() - started
            busy = torch.tensor(sum(slept.get() for _ in range(slept.qsize())))
            torch.distributed.all_reduce(busy)
            slept_here = float(busy) / ranks
            pieces = 2 * virtual * microbatches
            waits = (2 if schedule in ("simple", "interleaved", "interleaved1f1b") else 1) * (ranks - 1)
            on_top = whole / (pieces + waits) - slept_here / pieces
            bubbles.append((1 - slept_here / whole, 1e3 * on_top))
        if grid.rank == 0:  # the first steps also record, compare batches and report
            print("RESULT " + json.dumps([schedule, virtual, microbatches, *min(bubbles[4:])]), flush=True)
        pipe.shutdown()
    torch.distributed.destroy_process_group()


def formula(schedule: str, virtual: int, ranks: int, microbatches: int) -> float:
    """The idle share of a step whose work sleeps as that of `worker`."""
    if schedule not in V_SHAPED:
        halves = 2 if schedule == "interleavedzerobubble" else 1
        return (ranks - 1) / (halves * virtual * microbatches + ranks - 1)
    stages = ranks * virtual
    half = [0.5] * (stages - 1)  # nothing waits for the gradients that the first stage makes
    return simulated(schedule, virtual, ranks, microbatches, [1.0] * stages, [0.0, *half], [1.0, *half])[0]


def simulated(
    schedule: str,
    virtual: int,
    ranks: int,
    microbatches: int,
    forward: list[float],
    inputs: list[float],
    weights: list[float],
) -> tuple[float, float]:
    """The idle share of a step, and for how many microbatches the fullest rank keeps activations.

    Args:
        forward, inputs, weights: how long a stage takes for a forward, and for the gradients of both kinds.
    """
    from trainshed.contract.wire.pipeline import SCHEDULES as NAMES
    from trainshed.parallel.plan.simulate import most_kept, order, step_seconds

    orders = order(NAMES[schedule], ranks, virtual, microbatches)
    if not any(piece.kind == "weight" for mine in orders for piece in mine):
        inputs = [now + later for now, later in zip(inputs, weights, strict=True)]
    seconds, busy = step_seconds(orders, forward, inputs, [0.0] * len(forward), weights)
    return 1 - sum(busy) / seconds / ranks, max(map(most_kept, orders)) / virtual


def print_simulated(ranks: int, only: list[str]) -> None:
    """One line a schedule, for as many microbatches as ranks, twice and four times as many."""
    counts = [ranks, 2 * ranks, 4 * ranks]
    print(f"{ranks} ranks, simulated       " + "".join(f"{f'bubble, {count}':>12s}{'kept':>7s}" for count in counts))
    for schedule, virtual in SCHEDULES:
        if schedule in only:
            even = [1.0] * ranks * virtual
            found = [simulated(schedule, virtual, ranks, count, even, even, even) for count in counts]
            print(f"{schedule:22s} {virtual:2d}" + "".join(f"{bubble:12.3f}{kept:7.1f}" for bubble, kept in found))


def main() -> int:
    """Starts the ranks and judges."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--milliseconds", type=float, default=200.0)
    names = sorted({schedule for schedule, _ in SCHEDULES})
    parser.add_argument("--only", nargs="+", default=names, choices=names, metavar="SCHEDULE", help=", ".join(names))
    parser.add_argument("--simulated", action="store_true", help="print what the orders give, without running anything")
    options = parser.parse_args()
    sys.path.insert(0, str(TOOLKIT))
    if options.simulated:
        print_simulated(options.ranks, options.only)
        return 0
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
            expected = formula(schedule, virtual, options.ranks, m)
            shown = f"{bubble:.3f}   {expected:.3f}    {bubble - expected:+.3f}     {on_top:6.2f}"
            print(f"{schedule:22s} {virtual:2d} {m:3d}   {shown}")
            if schedule != "simple":
                worst = max(worst, abs(bubble - expected))
    print(f"largest difference of all but GPipe: {worst:.3f} (allowed {TOLERANCE})")
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
