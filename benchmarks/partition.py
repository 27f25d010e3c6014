"""How even partitions are: the planner's against those of other tools' methods, on the same measured costs.

    python benchmarks/partition.py [--measure]

For each model the planner chooses units and measures them; then the same units are split by

    uniform      equal numbers of units (torch's guides, Megatron's layers / stages)
    parameters   equal sums of parameters (DeepSpeed's default)
    local time   torchgpipe's way: start from equal shares of time, move single units over a boundary while that helps
    planner      exact dynamic programming on time

and judged by slowest stage / even share (1 is perfect). The planner must not be worse than any. With `--measure` two ranks
also train each model, and the measured step is compared with the predicted one (allowed: 15 %). Status 1 if a claim fails.
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
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "toolkit"))

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

BATCH = 4


def language(kind: str) -> Any:
    """GPT-2, BERT, T5 or Llama at about 10 M parameters with a large vocabulary."""
    import transformers as t

    if kind == "gpt2":
        config = t.GPT2Config(
            vocab_size=8000, n_positions=64, n_embd=192, n_layer=8, n_head=4, bos_token_id=0, eos_token_id=0
        )
        model = t.GPT2LMHeadModel(config)
    elif kind == "bert":
        model = t.BertForMaskedLM(
            t.BertConfig(vocab_size=8000, hidden_size=192, num_hidden_layers=8, num_attention_heads=4, intermediate_size=768)
        )
    elif kind == "t5":
        model = t.T5ForConditionalGeneration(
            t.T5Config(vocab_size=8000, d_model=192, d_kv=48, d_ff=768, num_layers=5, num_heads=4, decoder_start_token_id=0)
        )
    else:
        model = t.LlamaForCausalLM(
            t.LlamaConfig(
                vocab_size=8000,
                hidden_size=192,
                intermediate_size=512,
                num_hidden_layers=8,
                num_attention_heads=4,
                num_key_value_heads=4,
            )
        )
    ids = torch.randint(0, 8000, (BATCH * 4, 64))

    def step(model: Any, ids: torch.Tensor) -> torch.Tensor:
        loss = model(input_ids=ids, labels=ids).loss
        model.backward(loss)
        return loss

    return model.train(), (ids,), step


def images() -> Any:
    """A residual network whose early layers are the slow ones and whose late layers have the parameters."""

    class Block(nn.Module):
        def __init__(self, cin: int, cout: int, stride: int) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(cin, cout, 3, stride, 1), nn.Conv2d(cout, cout, 3, 1, 1)
            self.n, self.short = nn.BatchNorm2d(cout), nn.Conv2d(cin, cout, 1, stride)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.relu(self.n(self.b(F.relu(self.a(x)))) + self.short(x))

    plan = [(3, 24, 1), (24, 24, 1), (24, 24, 1), (24, 48, 2), (48, 48, 1), (48, 96, 2), (96, 96, 1), (96, 192, 2)]
    model = nn.Sequential(*[Block(*entry) for entry in plan], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(192, 10))
    return model, (torch.randn(BATCH * 4, 3, 32, 32), torch.randint(0, 10, (BATCH * 4,))), classify


def pyramid() -> Any:
    """Layers of very different cost."""
    widths = [1024, 1024, 512, 512, 256, 256, 128, 512, 1024, 64]
    layers: list[nn.Module] = []
    for a, b in zip([512, *widths], widths, strict=False):
        layers += [nn.Linear(a, b), nn.GELU()]
    model = nn.Sequential(*layers, nn.Linear(64, 10))
    return model, (torch.randn(BATCH * 64, 512), torch.randint(0, 10, (BATCH * 64,))), classify


def classify(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Cross entropy."""
    loss = F.cross_entropy(model(x), y)
    model.backward(loss)
    return loss


MODELS = {
    "gpt2": lambda: language("gpt2"), "bert": lambda: language("bert"), "t5": lambda: language("t5"),
    "llama": lambda: language("llama"), "resnet": images, "pyramid": pyramid,
}  # fmt: skip


def build(name: str) -> Any:
    """The same model and batch in every process."""
    torch.manual_seed(0)
    return MODELS[name]()


def uniform(weights: list[float], parts: int) -> list[int]:
    """Equal counts."""
    return [len(weights) * part // parts for part in range(parts)]


def best(weights: list[float], parts: int) -> list[int]:
    """Starts with the least largest sum of `weights`, by bisection over the sum."""
    low, high = max(weights), sum(weights)
    found = uniform(weights, parts)
    for _ in range(60):
        middle = (low + high) / 2
        starts, total = [0], 0.0
        for index, weight in enumerate(weights):
            if total + weight > middle and index > starts[-1]:
                starts.append(index)
                total = 0.0
            total += weight
        if len(starts) <= parts:
            high, found = middle, starts
        else:
            low = middle
    while len(found) < parts:  # fewer parts were enough: split wherever there is room
        ends = [*found[1:], len(weights)]
        at = next(end - 1 for start, end in zip(found, ends, strict=True) if end - start > 1)
        found = sorted([*found, at])
    return found


def local_time(weights: list[float], parts: int) -> list[int]:
    """Equal shares of time, then single moves over a boundary."""
    total, starts, running = sum(weights), [0], 0.0
    for index, weight in enumerate(weights):
        if len(starts) < parts and running >= total * len(starts) / parts and index > starts[-1]:
            starts.append(index)
        running += weight
    while len(starts) < parts:
        starts.append(starts[-1] + 1)
    while True:
        better = [
            moved
            for at in range(1, parts)
            for by in (-1, 1)
            if (moved := [*starts[:at], starts[at] + by, *starts[at + 1 :]]) == sorted(set(moved))
            and moved[-1] < len(weights)
            and slowest(weights, moved) < slowest(weights, starts)
        ]
        if not better:
            return starts
        starts = min(better, key=lambda moved: slowest(weights, moved))


def slowest(weights: list[float], starts: list[int]) -> float:
    """Largest sum of a part."""
    return max(sum(weights[a:b]) for a, b in zip(starts, [*starts[1:], len(weights)], strict=True))


def compare() -> bool:
    """Prints the table; whether the planner was never worse."""
    from trainshed.parallel.plan.costs import Link
    from trainshed.parallel.plan.planner import Wish, make_plan
    from trainshed.parallel.tracing.subject import Subject

    print("slowest stage / even share    P  units  uniform  parameters  local time  planner")
    good = True
    for name in MODELS:
        for parts in (2, 4):
            model, inputs, step = build(name)
            holder = Holder(model)
            piece = tuple(value[: len(value) // 4] for value in inputs)
            subject = Subject(model, step, holder.attach, (holder, *piece))
            plan = make_plan(subject, Wish(ranks=parts, link=Link(0.0, 1e30)))
            seconds = [unit.forward_ms + unit.backward_ms for unit in plan.units]
            sizes = [unit.parameters_mib for unit in plan.units]
            even = sum(seconds) / parts
            scores = {
                "uniform": slowest(seconds, uniform(seconds, parts)) / even,
                "parameters": slowest(seconds, best(sizes, parts)) / even,
                "local time": slowest(seconds, local_time(seconds, parts)) / even,
                "planner": slowest(seconds, list(plan.starts())) / even,
            }
            row = "".join(f"{score:{len(label) + 2}.3f}" for label, score in scores.items())
            print(f"{name:27s} {parts:3d}  {len(seconds):5d}{row}", flush=True)
            good &= all(scores["planner"] <= score + 1e-3 for score in scores.values())
    print(f"the planner is never worse: {good}")
    return good


class Holder(nn.Module):
    """What the user's script would hold."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.handler = module, None

    def attach(self, handler: Any) -> None:
        """Where `backward` goes."""
        self.handler = handler

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own."""
        return self.module(*args, **kwargs)

    def backward(self, loss: torch.Tensor) -> None:
        """To whoever records."""
        self.handler.backward([loss])


def worker(name: str) -> None:
    """One of two ranks that train a model."""
    import trainshed.parallel as pipe

    grid = pipe.init({"partitions": 2, "microbatches": 4})
    net, inputs, step = build(name)
    model = pipe.PipelineModel(net)
    run = pipe.step(step)
    times = []
    for _ in range(12):
        torch.distributed.barrier()
        started = time.perf_counter()
        run(model, *inputs)
        times.append(1e3 * (time.perf_counter() - started))
        for parameter in model.local_parameters():
            parameter.grad = None
    if grid.rank == 0 and model.plan is not None:
        print("RESULT " + json.dumps([model.plan.predicted["step_ms"], statistics.median(times[4:])]), flush=True)
    pipe.shutdown()


def job(name: str) -> tuple[float, float] | None:
    """Predicted and measured milliseconds of a step of a job of two ranks; None if it failed."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, "--worker", name],
            env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    outputs = [process.communicate()[0] for process in processes]
    told = [line.removeprefix("RESULT ") for line in outputs[0].splitlines() if line.startswith("RESULT ")]
    if any(process.returncode for process in processes) or not told:
        return None
    predicted, measured = json.loads(told[0])
    return predicted, measured


def measure() -> bool:
    """Predicted against measured; whether all are within 15 %."""
    print("\ntwo ranks, four microbatches, 1F1B   predicted ms  measured ms  measured / predicted")
    good = True
    for name in MODELS:
        found = job(name)
        if found is None:
            print(f"{name:36s} failed")
            good = False
            continue
        predicted, measured = found
        print(f"{name:36s} {predicted:12.1f} {measured:12.1f} {measured / predicted:12.2f}", flush=True)
        good &= abs(measured / predicted - 1) <= 0.15
    print(f"all within 15 %: {good}")
    return good


def main() -> int:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="also train each model on two ranks")
    parser.add_argument("--worker", choices=MODELS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.worker:
        worker(options.worker)
        return 0
    good = compare()
    if options.measure:
        good &= measure()
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
