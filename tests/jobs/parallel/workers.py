"""What the ranks of the tests run."""

from __future__ import annotations

import io
import json
import os
import signal
import time
from contextlib import redirect_stdout
from copy import deepcopy
from pathlib import Path
from typing import Any

import ranks
import torch
import zoo
from plans import measures
from torch import nn
from trust.training import Alone

import trainshed.parallel as pipe
from trainshed.parallel.ground.shards import local, whole
from trainshed.parallel.tracing import rng

CPU = torch.device("cpu")
MICROBATCHES = 4


def one_process(
    name: str, seed: int = 0, microbatches: int = MICROBATCHES, steps: int = 1, draws: bool = False
) -> dict[str, Any]:
    """Gradients of the first step and parameters after `steps` SGD steps, in plain PyTorch."""
    model, inputs, step = zoo.build(name, seed)
    plain = Alone(model, 1 / microbatches)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(7)
    gradients: dict[str, torch.Tensor] = {}
    for number in range(steps):
        optimizer.zero_grad()
        draw = int(torch.randint(0, 2**62, (1,))) if draws else 0
        after = rng.get_state(CPU)
        for part in range(microbatches):
            if draws:
                torch.manual_seed(draw + part)
            length = inputs[0].shape[0] // microbatches
            step(plain, *[value[part * length : (part + 1) * length] for value in inputs])
        rng.set_state(after, CPU)
        if number == 0:
            gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
    return {"gradients": gradients, "state": {n: v.clone() for n, v in model.state_dict().items()}}


def begin(settings: dict[str, Any]) -> None:
    """A pipeline without a model, whatever this process has trained before."""
    if not torch.distributed.is_initialized():  # else `shutdown` would leave the process group
        torch.distributed.init_process_group("gloo")
    pipe.shutdown()
    pipe.init(settings)


def pipeline(
    names: list[str], degree: int, schedule: str, virtual: int, steps: int = 1, microbatches: int = MICROBATCHES
) -> dict[str, Any]:
    """Trains each model in a pipeline; what this rank has of gradients and parameters."""
    found: dict[str, Any] = {}
    settings = {
        "pipeline_parallel_degree": degree,
        "microbatches": microbatches,
        "pipeline": schedule,
        "virtual_stages": virtual,
    }
    for name in names:
        begin(settings)
        model, inputs, step_function = zoo.build(name)
        model = pipe.PipelineModel(model)
        optimizer = pipe.PipelineOptimizer(torch.optim.SGD(model.parameters(), lr=0.05))
        step = pipe.step(step_function)
        torch.manual_seed(7)
        for number in range(steps):
            optimizer.zero_grad()
            with redirect_stdout(io.StringIO()) as said:
                step(model, *inputs)
            if number == 0:
                lines = said.getvalue().splitlines()
                gradients = {n: p.grad.clone() for n, p in model.local_named_parameters() if p.grad is not None}
            optimizer.step()
        found[name] = {"gradients": gradients, "state": model.state_dict(), "plan": model.plan, "lines": lines}
    return found


def zero_bubble(names: list[str], degree: int, virtual: int, microbatches: int) -> dict[str, Any]:
    """One step of each model in this schedule."""
    return pipeline(names, degree, "interleavedzerobubble", virtual, microbatches=microbatches)


def v_shaped(names: list[str], degree: int, schedule: str, microbatches: int) -> dict[str, Any]:
    """One step of each model in such a schedule."""
    return pipeline(names, degree, schedule, 2, microbatches=microbatches)


def few_parts(schedule: str, microbatches: int) -> tuple[int, float]:
    """A model with a part for each rank and no more: its stages, and how far gradients are from one process's."""
    degree = int(os.environ["WORLD_SIZE"])
    pipe.init({"partitions": degree, "microbatches": microbatches, "pipeline": schedule})
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Linear(6, 6) for _ in range(degree)])
    alone, x = deepcopy(net), torch.randn(12, 6)
    model = pipe.PipelineModel(net)

    @pipe.step
    def train_step(model: Any, x: torch.Tensor) -> None:
        model.backward(model(x).square().mean())

    train_step(model, x)
    for part in x.chunk(microbatches):
        (alone(part).square().mean() / microbatches).backward()
    wanted = dict(alone.named_parameters())
    distances = [float((p.grad - wanted[name].grad).abs().max()) for name, p in model.local_named_parameters()]
    return model.plan.stages, max(distances)


def tied_model(drop: float = 0.0) -> nn.Module:
    """A small language model with a tied table."""
    model = zoo.Tied()
    for block in model.blocks:
        block.drop.p = drop
    return model


def batches(steps: int, count: int = 16) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The global batches of a run."""
    generator = torch.Generator().manual_seed(11)
    return [
        (torch.randint(0, 20, (count, 6), generator=generator), torch.randint(0, 20, (count,), generator=generator))
        for _ in range(steps)
    ]


def one_process_curve(steps: int, clip: float) -> dict[str, Any]:
    """Plain PyTorch on the global batch."""
    torch.manual_seed(0)
    model = tied_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses, norms = [], []
    for x, y in batches(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), clip)))
        optimizer.step()
        losses.append(float(loss.detach()))
    return {"losses": losses, "norms": norms, "state": model.state_dict()}


def train(settings: dict[str, Any], steps: int, clip: float = 0.0, seed_by_rank: bool = False, *, save: str = "",
          resume: str = "", stop_after: int = 0, drop: float = 0.0) -> dict[str, Any]:  # fmt: skip
    """Trains the tied model on this rank's part of each global batch."""
    grid = pipe.init(settings)
    torch.manual_seed(grid.rank if seed_by_rank else 0)
    model = pipe.PipelineModel(tied_model(drop), bucket_cap_mb=1)
    optimizer = pipe.PipelineOptimizer(torch.optim.AdamW(model.parameters(), lr=1e-2))
    torch.manual_seed(5)
    start = 0
    if resume:
        content = pipe.load_checkpoint(resume, model, optimizer)
        start = content["step"]
        torch.set_rng_state(content["random"])

    @pipe.step
    def train_step(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(x), y)
        model.backward(loss)
        return loss

    losses, norms = [], []
    for x, y in batches(steps)[start : stop_after or steps]:
        length = len(x) // pipe.dp_size()
        part = slice(pipe.dp_rank() * length, (pipe.dp_rank() + 1) * length)
        optimizer.zero_grad()
        loss = train_step(model, x[part], y[part]).reduce_mean()
        if clip:
            norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), clip)))
        optimizer.step()
        torch.distributed.all_reduce(loss, group=grid.replica_group)
        losses.append(float(loss) / pipe.dp_size())
    if save:
        pipe.save_checkpoint(save, model, optimizer, {"step": stop_after or steps, "random": torch.get_rng_state()})
    return {
        "losses": losses,
        "norms": norms,
        "state": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "held": sum(local(p).untyped_storage().nbytes() for p in model.module.parameters()),
        "states": len(optimizer.optimizer.state),
    }


def train_clipped(steps: int, clip: float, settings: dict[str, Any]) -> dict[str, Any]:
    """From a model that each rank has initialised otherwise, with clipped gradients."""
    return train(settings, steps, clip, True)


def train_sharded(steps: int, clip: float, world: int, degree: int) -> dict[str, Any]:
    """Without stages, each rank holding a part of the model."""
    settings = {"partitions": 1, "sharded_data_parallel_degree": degree, "microbatches": 2, "ddp": True}
    return train_clipped(steps, clip, settings)


def train_with_dropout(settings: dict[str, Any]) -> dict[str, Any]:
    """Three steps with random numbers in them."""
    return train(settings, 3, drop=0.3)


def train_in_parts(parts: list[dict[str, Any]], name: str, steps: int) -> dict[str, Any]:
    """A run whose parts have other settings, each from the checkpoint of the one before; what the last one found."""
    losses: list[float] = []
    path = str(ranks.folder() / name / "checkpoint")
    for number, settings in enumerate(parts, 1):
        pipe.shutdown()
        stop = steps * number // len(parts)
        found = train(settings, steps, resume=path if number > 1 else "", save=path, stop_after=stop)
        losses += found["losses"]
    torch.distributed.barrier()
    return {**found, "losses": losses, "names": [entry.name for entry in (ranks.folder() / name).iterdir()]}


def first_part(settings: dict[str, Any], steps: int, stop_after: int, path: str) -> list[float]:
    """The losses of a run until a checkpoint."""
    return train(settings, steps, save=path, stop_after=stop_after)["losses"]


def other_part(settings: dict[str, Any], steps: int, path: str) -> list[float]:
    """The losses of a run from a checkpoint on."""
    return train(settings, steps, resume=path)["losses"]


def killed_part(settings: dict[str, Any], steps: int, stop_after: int, path: str) -> None:
    """With random numbers: a run to a checkpoint, and a step further, in which it is killed; the losses are beside it."""
    losses = train(settings, steps, save=path, stop_after=stop_after, drop=0.3)["losses"]
    Path(f"{path}.{os.environ['RANK']}").write_text(json.dumps(losses))
    torch.distributed.barrier()
    os.kill(os.getpid(), signal.SIGKILL)


def part_after_a_kill(settings: dict[str, Any], steps: int, path: str) -> list[float]:
    """The losses of a run with random numbers, from a checkpoint on."""
    return train(settings, steps, resume=path, drop=0.3)["losses"]


def evaluate_then_train(schedule: str, virtual: int) -> dict[str, Any]:
    """Steps that do not train, other batch sizes, outputs of several kinds."""
    pipe.init({"pipeline_parallel_degree": 2, "microbatches": 2, "pipeline": schedule, "virtual_stages": virtual})
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    reference = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    reference.load_state_dict(net.state_dict())
    model = pipe.PipelineModel(net)

    @pipe.step
    def train_step(model: Any, x: torch.Tensor) -> Any:
        loss = model(x).square().mean()
        model.backward(loss)
        return loss

    @pipe.step
    def test_step(model: Any, x: torch.Tensor) -> Any:
        out = model(x)
        return {"logits": out, "best": out.argmax(1), "count": int((out > 0).sum().item()), "pair": (out.sum(), "text")}

    losses, evaluated = [], []
    for size in (8, 4, 8, 4):
        x = torch.randn(size, 6, generator=torch.Generator().manual_seed(size))
        model.train()
        losses.append(train_step(model, x).outputs)
        model.eval()
        with torch.no_grad():
            out = test_step(model, x)
        reference.load_state_dict(model.state_dict())
        reference.eval()
        evaluated.append(torch.equal(out["logits"].concat(), reference(x)))
        counts = [int((part > 0).sum()) for part in reference(x).chunk(2)]
        assert out["count"] == counts, (out["count"], counts)
        assert torch.equal(out["best"].concat(), reference(x).argmax(1))
        assert out["pair"][1] == ["text", "text"]
    return {"evaluated": evaluated, "losses": [len(pair) for pair in losses]}


def accumulate_and_scale(schedule: str) -> dict[str, Any]:
    """Two steps into one gradient; a scaler that sees an overflow on one stage only."""
    pipe.init({"pipeline_parallel_degree": 2, "microbatches": 2, "pipeline": schedule})
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    model = pipe.PipelineModel(net)
    optimizer = pipe.PipelineOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    scaler = pipe.GradScaler(init_scale=8.0)

    @pipe.step
    def train_step(model: Any, x: torch.Tensor) -> Any:
        loss = model(x).square().mean()
        model.backward(scaler.scale(loss))
        return loss

    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    train_step(model, x)
    once = {name: p.grad.clone() for name, p in model.local_named_parameters()}
    train_step(model, x)
    twice = {name: p.grad.clone() for name, p in model.local_named_parameters()}
    before = {name: p.detach().clone() for name, p in model.local_named_parameters()}
    if pipe.pp_rank() == 0:
        next(iter(model.local_parameters())).grad[0, 0] = float("inf")
    scaler.step(optimizer.optimizer)
    scaler.update()
    kept = all(torch.equal(p, before[name]) for name, p in model.local_named_parameters())
    doubled = all(torch.equal(twice[name], 2 * gradient) for name, gradient in once.items())
    return {"doubled": doubled, "kept": kept, "scale": scaler.get_scale()}


class Attention(nn.Module):
    """Heads lie across the memory of what the projections give: a cut between those sends such tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k = (line(x).view(*x.shape[:2], 2, 8).transpose(1, 2) for line in (self.q, self.k))
        v = self.v(x).view(*x.shape[:2], 2, 8).transpose(1, 2)
        weights = (q @ k.transpose(2, 3)).softmax(-1)
        return self.o((weights @ v).transpose(1, 2).reshape(x.shape))


def cut_inside_attention() -> list[float]:
    """Largest difference of each gradient from one process's."""
    pipe.init({"pipeline_parallel_degree": 2, "microbatches": 2})
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 16), Attention(), nn.Linear(16, 16))
    reference = nn.Sequential(nn.Linear(16, 16), Attention(), nn.Linear(16, 16))
    reference.load_state_dict(net.state_dict())
    x = torch.randn(8, 12, 16)
    for part in x.chunk(2):
        (reference(part).square().mean() / 2).backward()
    expected = {name: p.grad for name, p in reference.named_parameters()}
    model = pipe.PipelineModel(net)
    for module in (net[0], net[1].q, net[1].k):
        model.set_partition(module, 0)
    for module in (net[1].v, net[1].o, net[2]):
        model.set_partition(module, 1)

    @pipe.step
    def train_step(model: Any, x: torch.Tensor) -> Any:
        loss = model(x).square().mean()
        model.backward(loss)
        return loss

    train_step(model, x)
    return [float((p.grad - expected[name]).abs().max()) for name, p in model.local_named_parameters()]


def in_float16(scales: list[float], settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Three steps with a scaled loss, for each first scale; what the gradients of the first step are, unscaled."""
    results = []
    for init_scale in scales:
        begin({**settings, "fp16": True})
        torch.manual_seed(0)
        model = pipe.PipelineModel(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)))
        optimizer = pipe.PipelineOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), pipe.GradScaler(init_scale=init_scale)
        )
        found: dict[str, Any] = {"losses": [], "scales": [], "gradients": {}, "types": set()}

        @pipe.step
        def train_step(model: Any, x: torch.Tensor, found: dict[str, Any] = found) -> Any:
            out = model(x)
            found["types"].add(str(out.dtype))
            loss = out.float().square().mean()
            model.backward(loss)
            return loss

        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
        part = x.chunk(pipe.dp_size())[pipe.dp_rank()]
        before = model.state_dict()
        for _ in range(3):
            optimizer.zero_grad()
            found["losses"].append(float(train_step(model, part).reduce_mean()))
            found["scales"].append(optimizer.loss_scale)
            norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1e9))
            if not found["gradients"]:
                found["norm"] = norm
                found["gradients"] = {n: whole(p.grad).clone() for n, p in model.local_named_parameters()}
            optimizer.step()
        found["moved"] = any(not torch.equal(value, before[name]) for name, value in model.state_dict().items())
        results.append(found)
    return results


def compiled_parts() -> dict[str, float]:
    """A model that has compiled parts of itself, in each of the ways that there are; differences of the gradients."""
    pipe.init({"pipeline_parallel_degree": 2, "microbatches": 2})

    def build() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(*[zoo.Residual(12) for _ in range(6)], nn.Linear(12, 3))

    @torch.compile(backend="aot_eager")
    def shifted(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + x

    class Shift(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return shifted(self.inner(x))

    def with_parts(net: nn.Module, compiles: bool) -> nn.Module:
        if compiles:
            net[1] = torch.compile(net[1], backend="aot_eager")
            net[2].compile(backend="aot_eager")
            net[4].a.compile(backend="aot_eager")
        net[3] = Shift(net[3])
        net[5].norm = Shift(net[5].norm)
        return net

    reference = with_parts(build(), False)
    x = torch.randn(8, 12, generator=torch.Generator().manual_seed(1))
    for part in x.chunk(2):
        (reference(part).square().mean() / 2).backward()
    expected = {name: p.grad for name, p in reference.named_parameters()}
    model = pipe.PipelineModel(with_parts(build(), True))
    # The compiled function then lies between units, and the other ways of compiling on either side of the cut.
    model.set_partition(model.module[3].inner.a, 0)
    model.set_partition(model.module[3].inner.b, 1)

    @pipe.step
    def train_step(model: Any, x: torch.Tensor) -> Any:
        loss = model(x).square().mean()
        model.backward(loss)
        return loss

    train_step(model, x)
    return {
        name: float(
            (p.grad - expected[name.replace("_orig_mod.", "")]).norm() / expected[name.replace("_orig_mod.", "")].norm()
        )
        for name, p in model.local_named_parameters()
    }


def different_batches() -> str:
    """Each rank of a pipeline brings its own data."""
    pipe.init({"pipeline_parallel_degree": 2, "microbatches": 2})
    torch.manual_seed(0)
    model = pipe.PipelineModel(nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)))

    @pipe.step
    def train_step(model: Any, x: torch.Tensor) -> Any:
        loss = model(x).sum()
        model.backward(loss)
        return loss

    try:
        train_step(model, torch.full((4, 6), float(pipe.rank())))
    except pipe.PipelineError as error:
        return error.message
    return "no error"


def endless(degree: int) -> None:
    """Trains until it is killed; says when it trains."""
    pipe.init({"pipeline_parallel_degree": degree, "microbatches": 4})
    torch.manual_seed(0)
    model = pipe.PipelineModel(tied_model())

    @pipe.step
    def train_step(model: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        loss = nn.functional.cross_entropy(model(x), y)
        model.backward(loss)
        return loss

    (x, y) = batches(1)[0]
    number = 0
    while True:
        train_step(model, x, y)
        number += 1
        if number == 5:
            print("training", flush=True)


@measures
def measure_in_company() -> bool | None:
    """Whether this rank's first step left the model's buffers and the random numbers where one forward leaves them.

    None without cores for both ranks, which then take turns.
    """
    if len(os.sched_getaffinity(0)) < 2:
        return None
    grid = pipe.init({"partitions": 2, "microbatches": 1})
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    model = pipe.PipelineModel(net)
    seen = ranks.folder() / "seen"

    @pipe.step
    def step(model: Any, x: torch.Tensor) -> torch.Tensor:
        if grid.rank == 0:
            deadline = time.monotonic() + 120
            while not seen.exists():
                if time.monotonic() > deadline:
                    raise TimeoutError("rank 1 did nothing while rank 0 measured")
                time.sleep(0.01)
        seen.touch()
        loss = model(x).sum()
        model.backward(loss)
        return loss

    before = torch.get_rng_state()
    step(model, torch.ones(4, 4))
    counts = {int(buffer) for name, buffer in model.local_buffers().items() if name.endswith("num_batches_tracked")}
    return counts <= {1} and torch.equal(before, torch.get_rng_state())
