"""What the verified first step of a pipeline costs (docs/pipeline.md, "Verified against the undivided model").

    python benchmarks/pipeline_verify.py [--smoke] [--ranks 2] [--steps 200] [--rounds 5]

The same ranks train the same model from a fresh start with `verify = "off"`, with `"first"`, and
with `"first"` where the undivided model is said to have no room on one rank (module by module, one
microbatch). What counts are ratios to "off" of the same round: CPU seconds of all ranks (which a
busy machine hardly changes) and the wall clock, of the first step (which also plans and records)
and of all steps; and the largest resident memory of the first rank, which verifies, and of the
others.
The losses of all three must be the same to the last bit.

Prints a Markdown table: medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from typing import Any, NamedTuple
from unittest.mock import patch

from pipeline_overhead import MICROBATCHES, SMOKE, VOCABULARY, Case, gpt, loss_of, start

CASES = [
    Case("12 blocks, width 64", 12, 64, 16, 1, 0),
    Case("12 blocks, width 256", 12, 256, 64, 2, 0),
    Case("12 blocks, width 768", 12, 768, 64, 2, 0),
]
WAYS = ("off", "first", "in parts")


class Found(NamedTuple):
    """One run: seconds of CPU of all ranks and of the wall clock; MiB of the first rank, and the most of the others."""

    first_cpu: float
    first_wall: float
    cpu: float
    wall: float
    mib: float
    mib_others: float
    losses: list[float]


def worker(case: Case, way: str, steps: int) -> None:
    """One run on this rank; rank 0 prints what all ranks found."""
    import torch
    import torch.distributed as dist

    import trainshed.parallel as pipe
    from trainshed.parallel.engine.verify.verify_budget import Extent
    from trainshed.parallel.stages import verifier

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    verify = "off" if way == "off" else "first"
    pipe.init({"partitions": dist.get_world_size(), "microbatches": MICROBATCHES, "verify": verify})
    model = pipe.PipelineModel(gpt(case.blocks, case.width, case.length))
    optimizer = pipe.PipelineOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))

    @pipe.step
    def train(model: Any, ids: Any) -> Any:
        loss = loss_of(model(ids), ids)
        model.backward(loss)
        return loss

    torch.manual_seed(1)
    ids = torch.randint(0, VOCABULARY, (MICROBATCHES * case.samples, case.length))
    losses, marks = [], [(time.process_time(), time.perf_counter())]
    extent = verifier.extent_of if way != "in parts" else lambda *_, **__: Extent.IN_PARTS
    with patch.object(verifier, "extent_of", extent):
        for _ in range(steps):
            optimizer.zero_grad()
            losses.append(float(train(model, ids).reduce_mean()))
            optimizer.step()
            marks.append((time.process_time(), time.perf_counter()))
    used = [marks[1][0] - marks[0][0], marks[-1][0] - marks[0][0], peak_mib()]
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, used)
    if dist.get_rank() == 0:
        walls = [marks[1][1] - marks[0][1], marks[-1][1] - marks[0][1]]
        cpu_first, cpu, mib = (list(each) for each in zip(*every, strict=True))
        found = Found(sum(cpu_first), walls[0], sum(cpu), walls[1], mib[0], max(mib[1:], default=0.0), losses)
        print("RESULT " + json.dumps(found), flush=True)
    pipe.shutdown()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may still hold a tensor


def peak_mib() -> float:
    """The largest resident memory of this process so far (proc(5))."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM:")) / 1024


def main() -> int:
    """Starts the ranks, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a tiny model, in seconds")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", type=int, nargs="+", help="numbers of the cases, from 0")
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    cases = SMOKE if options.smoke else CASES
    if options.run:
        worker(cases[int(options.run[0])], options.run[1], options.steps)
        return 0
    steps, rounds = (3, 1) if options.smoke else (options.steps, options.rounds)
    smoke = ["--smoke"] if options.smoke else []
    print(
        f"{options.ranks} ranks, {MICROBATCHES} microbatches, {steps} steps; load at the start: {os.getloadavg()[0]:.0f}\n"
    )
    print("| model | verified | first step, CPU s | of off | wall | all steps, CPU | wall | MiB of rank 0 | of the others |")
    print("|---|---|---|---|---|---|---|---|---|")
    for number in options.cases or range(len(cases)):
        runs: dict[str, list[Found]] = {way: [] for way in WAYS}
        for turn in range(rounds):
            for way in WAYS[turn % 3 :] + WAYS[: turn % 3]:
                words = [*smoke, "--steps", str(steps), "--run", str(number), way]
                runs[way].append(Found(*start(options.ranks, *words)[0]))
        if any(run.losses != runs["off"][0].losses for way in WAYS for run in runs[way]):
            raise SystemExit("verifying has changed the losses")
        for way in WAYS:
            print(line(cases[number].name, way, runs[way], runs["off"]), flush=True)
    return 0


def line(name: str, way: str, runs: list[Found], base: list[Found]) -> str:
    """A row of the table."""

    def ratio(what: str) -> str:
        return f"{statistics.median(getattr(a, what) / getattr(b, what) for a, b in zip(runs, base, strict=True)):.2f}"

    first, mib, others = (
        statistics.median(getattr(run, what) for run in runs) for what in ("first_cpu", "mib", "mib_others")
    )
    ratios = " | ".join(map(ratio, ("first_cpu", "first_wall", "cpu", "wall")))
    return f"| {name} | {way} | {first:.2f} | {ratios} | {mib:.0f} | {others:.0f} |"


if __name__ == "__main__":
    sys.exit(main())
