"""What trainshed.parallel costs on top of torch.distributed.pipelining, and what planning costs.

    python benchmarks/pipeline_overhead.py [--smoke] [--ranks 2] [--only steps planning] [--rounds N]

**Steps.** The same ranks train the same model twice with the very same cut: once through `pipe.step`, and once by
hand with `torch.distributed.pipelining`'s `PipelineStage` and schedule, as its tutorial shows it (the stages are lists
of modules, the loss is the schedule's). Both run in one process, a few steps of one and a few of the other in turn; what
counts is the ratio of the CPU seconds (all threads of all ranks), which a busy machine hardly changes, and that of the
wall clock. The gradients of both are compared first: they are equal to the last bit. `spread` is the ratio's middle half
over the rounds.

**Planning.** CPU seconds of `make_plan` for GPT-2-like models of 12 to 1,000 layers, beside one forward and backward of
the same model. It is linear if the milliseconds a layer stay the same.

Prints Markdown tables. Status 1 if a goal is missed: at most 1.10 with tiny blocks, 1.03 from microbatches of 10 ms on
(CPU seconds), 1,000 layers planned in 5 s.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from _claims import claim

TOOLKIT = Path(__file__).resolve().parents[1] / "toolkit"
LAYERS = (12, 100, 200, 1000)
MICROBATCHES = 8
VOCABULARY = 256
GOAL_TINY, GOAL, GOAL_PLANNING_S = 1.10, 1.03, 5.0


class Case(NamedTuple):
    """A model and its microbatches: `samples` sequences of `length` tokens each."""

    name: str
    blocks: int
    width: int
    length: int
    samples: int
    steps: int
    """A round's steps of each side."""


CASES = [
    Case("12 blocks, width 64", 12, 64, 16, 1, 10),
    Case("24 blocks, width 64", 24, 64, 16, 1, 6),
    Case("12 blocks, width 128", 12, 128, 48, 1, 5),
    Case("12 blocks, width 256", 12, 256, 64, 2, 2),
]
LARGE = ("12 blocks, width 256",)  # 10 ms a microbatch and rank, and more, on most machines
SMOKE = [Case("4 blocks, width 32", 4, 32, 8, 1, 2)]


def gpt(blocks: int, width: int, length: int) -> Any:
    """A model like GPT-2, all of whose work is in the modules of one list."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Embeddings(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.tokens(ids) + self.positions.weight

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
            self.attention, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            split = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.attention(self.before(x)).chunk(3, -1))
            mixed = F.scaled_dot_product_attention(*split, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).flatten(2))
            return x + self.down(F.gelu(self.up(self.between(x))))

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(self.norm(x))

    torch.manual_seed(0)
    return nn.Sequential(Embeddings(), *[Block() for _ in range(blocks)], Head())


def loss_of(logits: Any, ids: Any) -> Any:
    """Cross entropy of the next token."""
    import torch.nn.functional as F

    return F.cross_entropy(logits.flatten(0, 1), ids.flatten())


# By hand and by trainshed ------------------------------------------------------------------------------------------------


def cut_of(modules: int, stages: int) -> list[int]:
    """The first module of each stage, and the end."""
    return [stage * modules // stages for stage in range(stages)] + [modules]


def by_hand(case: Case, virtual: int) -> tuple[Callable[[Any], None], Any]:
    """A step with torch's stages and schedule, and this rank's modules by number."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole = gpt(case.blocks, case.width, case.length)
    starts = cut_of(len(whole), ranks * virtual)
    mine = [stage for stage in range(ranks * virtual) if stage % ranks == rank]
    group = dist.new_group(list(range(ranks)))
    parts = [nn.Sequential(*whole[starts[stage] : starts[stage + 1]]) for stage in mine]
    stages = [
        PipelineStage(part, stage, ranks * virtual, torch.device("cpu"), group=group)
        for part, stage in zip(parts, mine, strict=True)
    ]

    def loss(output: Any, target: Any) -> Any:
        return loss_of(output, target) * (1 / MICROBATCHES)

    options: dict[str, Any] = {"loss_fn": loss, "scale_grads": False}
    schedule: Any = (
        Schedule1F1B(stages[0], MICROBATCHES, **options)
        if virtual == 1
        else ScheduleInterleaved1F1B(stages, MICROBATCHES, **options)
    )
    parameters = [parameter for part in parts for parameter in part.parameters()]

    def step(ids: Any) -> None:
        for parameter in parameters:
            parameter.grad = None
        given = (ids,) if rank == 0 else ()
        target = ids if rank == ranks - 1 else None
        schedule.step(*given, target=target, losses=[] if target is not None else None, return_outputs=False)

    return step, {number: whole[number] for stage in mine for number in range(starts[stage], starts[stage + 1])}


def by_trainshed(case: Case, virtual: int) -> tuple[Callable[[Any], None], Any]:
    """The same step with `pipe.step`, the same cut given as a plan."""
    import torch.distributed as dist

    import trainshed.parallel as pipe
    from trainshed.parallel.plan.plan_file import Plan, PlanUnit, model_fingerprint

    ranks = dist.get_world_size()
    kind = "interleaved" if virtual == 1 else "interleaved1f1b"
    pipe.init({"partitions": ranks, "microbatches": MICROBATCHES, "pipeline": kind, "virtual_stages": virtual})
    whole = gpt(case.blocks, case.width, case.length)
    model = pipe.PipelineModel(whole)
    starts = cut_of(len(whole), ranks * virtual)
    units = tuple(
        PlanUnit(str(number), 0, max(stage for stage in range(ranks * virtual) if starts[stage] <= number))
        for number in range(len(whole))
    )
    model.use_plan(Plan(model_fingerprint(whole), {}, units))

    @pipe.step
    def train(model: Any, ids: Any) -> Any:
        loss = loss_of(model(ids), ids)
        model.backward(loss)
        return loss

    def step(ids: Any) -> None:
        if model.partitioned and not parameters:
            parameters.extend(model.local_parameters())
        for parameter in parameters:
            parameter.grad = None
        train(model, ids).reduce_mean()

    parameters: list[Any] = []  # those of this rank, as by hand, once the first step has shared them out
    return step, whole


# One rank ----------------------------------------------------------------------------------------------------------------


def worker(cases: list[Case], rounds: int, virtuals: list[int]) -> None:
    """All cases; rank 0 prints the results."""
    import torch
    import torch.distributed as dist

    import trainshed.parallel as pipe

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for case in cases:
        for virtual in virtuals:
            ids = torch.randint(0, VOCABULARY, (MICROBATCHES * case.samples, case.length))
            dist.broadcast(ids, 0)
            hand, held = by_hand(case, virtual)
            ours, whole = by_trainshed(case, virtual)
            for _ in range(5):  # the first ones also record, plan and report
                hand(ids)
                ours(ids)
            _compare(held, whole)
            found = _measure([hand, ours], ids, case.steps, rounds)
            if dist.get_rank() == 0:
                print("RESULT " + json.dumps([case.name, virtual, found]), flush=True)
            pipe.shutdown()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may still hold a tensor


def _compare(held: dict[int, Any], whole: Any) -> None:
    """Raises: a gradient differs in any bit."""
    for number, module in held.items():
        for (name, one), other in zip(module.named_parameters(), whole[number].parameters(), strict=True):
            if not one.grad.equal(other.grad):
                raise SystemExit(f"the gradients of {number}.{name} differ: the two do not compute the same")


def _measure(sides: list[Callable[[Any], None]], ids: Any, steps: int, rounds: int) -> list[list[list[float]]]:
    """For each round [CPU seconds, wall seconds] a step of each side; CPU is summed over the ranks."""
    import torch
    import torch.distributed as dist

    found = []
    for number in range(rounds):
        both: list[list[float]] = [[], []]
        for side in (0, 1) if number % 2 else (1, 0):
            dist.barrier()
            cpu, wall = time.process_time(), time.perf_counter()
            for _ in range(steps):
                sides[side](ids)
            used = torch.tensor(time.process_time() - cpu, dtype=torch.double)
            dist.barrier()
            wall = time.perf_counter() - wall
            dist.all_reduce(used)
            both[side] = [float(used) / steps, wall / steps]
        found.append(both)
    return found


def plan_worker(layers: int) -> None:
    """CPU seconds of planning one model, and of its forward and backward."""
    import torch

    from trainshed.parallel.plan.planner import Wish, make_plan
    from trainshed.parallel.tracing.subject import Subject

    torch.set_num_threads(1)
    model = gpt(layers, 64, 16)
    handlers: list[Any] = [None]

    def attach(handler: Any) -> None:
        handlers[0] = handler

    def step(ids: Any) -> Any:
        loss = loss_of(model(ids), ids)
        handlers[0].backward([loss])
        return loss

    ids = torch.randint(0, VOCABULARY, (1, 16))
    for _ in range(2):  # the first one imports what torch loads with the first backward
        started = time.process_time()
        torch.autograd.grad([loss_of(model(ids), ids)], list(model.parameters()), [torch.ones(())])
        once = time.process_time() - started
    started = time.process_time()
    plan = make_plan(Subject(model, step, attach, (ids,)), Wish(ranks=2, microbatches=MICROBATCHES))
    print("RESULT " + json.dumps([layers, time.process_time() - started, once, len(plan.units)]), flush=True)


# All of it ---------------------------------------------------------------------------------------------------------------


def start(ranks: int, *words: str) -> list[Any]:
    """Starts the script that runs now on the ranks; what they printed as results."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    processes = []
    for rank in range(ranks):
        environment = {
            **os.environ,
            "PYTHONPATH": str(TOOLKIT),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",
        }
        command = [sys.executable, os.path.abspath(sys.argv[0]), *words]
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("a rank failed")
    return [json.loads(line[7:]) for output in outputs for line in output.splitlines() if line.startswith("RESULT ")]


def ratios(found: list[list[list[float]]], what: int) -> tuple[float, float, float]:
    """Median and quartiles over the rounds of ours / by hand."""
    each = sorted(ours[what] / hand[what] for hand, ours in found)
    low, _, high = statistics.quantiles(each, n=4) if len(each) > 1 else (each[0],) * 3
    return statistics.median(each), low, high


def judge_steps(results: list[Any], ranks: int) -> bool:
    """Prints the table of steps; whether the goals are met."""
    print(f"\n{ranks} ranks, {MICROBATCHES} microbatches; by hand and ours in CPU ms a step, all ranks together\n")
    print("| model | schedule | ms a microbatch and rank | by hand | ours | CPU | spread | wall clock | goal |")
    print("|---|---|---|---|---|---|---|---|---|")
    met = True
    for name, virtual, found in results:
        hand, ours = (1e3 * statistics.median(both[side][0] for both in found) for side in (0, 1))
        each = hand / ranks / MICROBATCHES
        goal = GOAL if name in LARGE else GOAL_TINY
        cpu, low, high = ratios(found, 0)
        good = cpu <= goal
        met = met and good
        claim(
            f"pipeline: a step of {name}, {virtual} stages a rank", cpu, "times", limit=goal, peer=1.0, peer_name="by hand"
        )
        schedule = "1F1B" if virtual == 1 else f"interleaved, v = {virtual}"
        print(
            f"| {name} | {schedule} | {each:.1f} | {hand:.1f} | {ours:.1f} | {cpu:.2f} | {low:.2f} ... {high:.2f} "
            f"| {ratios(found, 1)[0]:.2f} | {goal:.2f}: {'met' if good else '**not met**'} |"
        )
    return met


def judge_planning(results: list[Any]) -> bool:
    """Prints the table of plans; whether the goal is met."""
    print("\n| layers | planning, CPU s | ms a layer | one forward and backward, CPU s | goal |")
    print("|---|---|---|---|---|")
    met = True
    for layers, seconds, once, _ in results:
        good = seconds <= GOAL_PLANNING_S
        met = met and good
        if layers == max(LAYERS):
            claim(f"pipeline: a plan for {layers} layers", seconds, "CPU s", limit=GOAL_PLANNING_S)
        goal = f"{GOAL_PLANNING_S:.0f} s: {'met' if good else '**not met**'}" if layers == max(LAYERS) else ""
        print(f"| {layers} | {seconds:.2f} | {1e3 * seconds / layers:.1f} | {once:.2f} | {goal} |")
    return met


def main() -> int:
    """Starts the ranks and judges."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a tiny case of each, in seconds; judges nothing")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", nargs="+", default=["steps", "planning"], choices=["steps", "planning"])
    parser.add_argument("--cases", type=int, nargs="+", help="numbers of the cases, from 0")
    parser.add_argument("--virtual", type=int, nargs="+", default=[1, 2], help="stages of a rank: 1 is 1F1B")
    parser.add_argument("--plan", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    cases = SMOKE if options.smoke else [CASES[number] for number in options.cases or range(len(CASES))]
    rounds = 2 if options.smoke else options.rounds
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        if options.plan:
            plan_worker(options.plan)
        else:
            worker(cases, rounds, options.virtual)
        return 0
    met = True
    if "steps" in options.only:
        met = judge_steps(start(options.ranks, *sys.argv[1:]), options.ranks)
    if "planning" in options.only:
        layers = (4, 8) if options.smoke else LAYERS
        met = judge_planning([start(1, "--plan", str(count))[0] for count in layers]) and met
    return int(not met and not options.smoke)


if __name__ == "__main__":
    sys.exit(main())
