"""Parameters in half precision, with float32 values that the optimizer keeps."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from copy import deepcopy
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

import trainshed.parallel as pipe
from trainshed.parallel import masters
from trainshed.parallel.ground.shards import local, whole
from trainshed.parallel.session import grid

from .table import begin, case, refused, same

WORDS, WIDTH = 16, 8
BF16 = {"bf16": True, "master_weights": True, "microbatches": 2}


class Small(nn.Module):
    """A table, blocks with norms, statistics of float32, a table of positions in float32, and a head that may be tied."""

    positions: torch.Tensor

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(WORDS, WIDTH)
        self.register_buffer("positions", torch.randn(5, WIDTH))
        self.blocks = nn.ModuleList([Block() for _ in range(4)])
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.table(x) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.line, self.frozen = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.frozen.weight.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.frozen(self.line(self.norm(x)).tanh())


def batches(steps: int = 4) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Of all replicas together."""
    draw = torch.Generator().manual_seed(7)
    for _ in range(steps):
        both = torch.randint(0, WORDS, (2, 8, 5), generator=draw)
        yield both[0], both[1]


def loss_of(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return cross_entropy(model(x).flatten(0, 1), y.flatten())


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2)


def by_hand(
    parts: int,
    *,
    kind: torch.dtype = torch.bfloat16,
    scale: float = 1.0,
    clip: float = 0.0,
    steps: int = 4,
    made: Callable[[], nn.Module] = Small,
    update: Callable[[Any], torch.optim.Optimizer] = adam,
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Plain PyTorch on the global batch: the model, and masters by name."""
    model = made()
    norms = {f"{n}.{p}" for n, m in model.named_modules() if isinstance(m, nn.LayerNorm) for p, _ in m.named_parameters()}
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and name not in norms:
            parameter.data = parameter.data.to(kind)
    held = dict(model.named_parameters())
    masters = {name: nn.Parameter(p.detach().clone().float()) for name, p in held.items() if p.requires_grad}
    optimizer = update(masters.values())
    for x, y in batches(steps):
        for master in masters.values():
            master.grad = torch.zeros_like(master)
        for part in range(parts):
            for parameter in held.values():
                parameter.grad = None
            with torch.autocast("cpu", kind):
                loss = loss_of(model, x.chunk(parts)[part], y.chunk(parts)[part])
            (loss * (scale / parts)).backward()
            for name, master in masters.items():
                assert master.grad is not None and held[name].grad is not None
                master.grad += held[name].grad.float() / scale
        if clip:
            nn.utils.clip_grad_norm_(masters.values(), clip)
        optimizer.step()
        with torch.no_grad():
            for name, master in masters.items():
                held[name].copy_(master)
    return model.state_dict(), {name: master.detach() for name, master in masters.items()}


def own_share(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """The rows of this rank's replica."""
    together = grid().settings.prescaled_batch
    replica, replicas = (pipe.rdp_rank(), pipe.rdp_size()) if together else (pipe.dp_rank(), pipe.dp_size())
    return [one.chunk(replicas)[replica] for one in tensors]


class Job:
    """A model in a pipeline, with what its ranks have."""

    def __init__(
        self,
        made: Callable[[], nn.Module] = Small,
        update: Callable[[Any], torch.optim.Optimizer] = adam,
        scaler: Callable[[], Any] = lambda: None,
        **settings: Any,
    ) -> None:
        pipe.shutdown()
        begin(**settings)
        self.model = pipe.PipelineModel(made())
        self.optimizer = pipe.PipelineOptimizer(update(self.model.parameters()), scaler())

        @pipe.step
        def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            loss = loss_of(model, x, y)
            model.backward(loss)
            return loss

        self.step = step

    def train(self, first: int = 0, last: int = 4, clip: float = 0.0) -> Job:
        for x, y in list(batches(last))[first:]:
            self.optimizer.zero_grad()
            self.step(self.model, *own_share(x, y))
            if clip:
                nn.utils.clip_grad_norm_(self.model.parameters(), clip)
            self.optimizer.step()
        return self

    def masters(self) -> dict[str, torch.Tensor]:
        """All of them, by name, and trained parameters that are float32 themselves."""
        names = [name for name, one in self.model.module.named_parameters() if one.requires_grad]
        state = self.optimizer.state_dict()["state"]
        order = {id(p): n for n, p in enumerate(p for g in self.optimizer.param_groups for p in g["params"])}
        weights = self.model.state_dict()
        own = dict(self.model.module.named_parameters())
        return {name: state.get(order[id(own[name])], {}).get("master", weights[name]).detach() for name in names}


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A folder that all ranks have."""
    with tempfile.TemporaryDirectory() as mine:
        there: list[Any] = [mine]
        dist.broadcast_object_list(there)
        yield Path(there[0])
        dist.barrier()


@case(ranks=2)
def stages_train_as_by_hand_to_the_last_bit() -> None:
    for settings, parts in (
        ({"partitions": 2}, 2),
        ({"partitions": 2, "microbatches": 4, "pipeline": "interleavedzerobubble", "virtual_stages": 2}, 4),
    ):
        weights, values = by_hand(parts, clip=0.5)
        job = Job(**{**BF16, **settings}).train(clip=0.5)
        same(job.model.state_dict(), weights, 0.0)
        same(job.masters(), values, 0.0)
        kinds = {name: one.dtype for name, one in job.model.local_named_parameters()}
        assert {kind for name, kind in kinds.items() if "norm" not in name and "bias" not in name} == {torch.bfloat16}
        mine = [one for one in job.optimizer.optimizer.state.values() if "master" in one]
        assert mine and all(one["exp_avg"].dtype == one["master"].dtype == torch.float32 for one in mine)


@case(ranks=2)
def replicas_shares_and_parts_train_as_by_hand() -> None:
    weights, values = by_hand(4, clip=0.5)
    for settings, tolerance in (
        ({}, 2e-3),
        ({"shard_optimizer_state": True}, 2e-3),
        ({"sharded_data_parallel_degree": 2}, 2e-2),  # FSDP gathers norms in half precision, too
        ({"tensor_parallel_degree": 2}, 2e-2),  # products in parts
    ):
        job = Job(**{**BF16, **settings}).train(clip=0.5)
        same(job.masters(), values, tolerance)
        if "shard_optimizer_state" in settings:
            mine = [local(one["master"]).numel() for one in job.optimizer.optimizer.state.values() if "master" in one]
            every: list[Any] = [None, None]
            dist.all_gather_object(every, sum(mine))
            halves = sum(values[name].numel() for name in values if weights[name].dtype is torch.bfloat16)
            assert sum(every) == halves and 0 < sum(mine) < halves, (every, halves)


@case(ranks=2)
def a_tied_table_on_two_stages_is_summed_in_float32() -> None:
    _, values = by_hand(2, made=lambda: Small(tied=True))
    job = Job(made=lambda: Small(tied=True), **BF16, partitions=2).train()
    same(job.masters(), values, 2e-2)
    held = dict(job.model.local_named_parameters())["table.weight"]
    seen: list[Any] = [None, None]
    dist.all_gather_object(seen, held.detach())
    assert torch.equal(*seen)


@case(ranks=2)
def a_scaled_loss_of_float16_is_unscaled_in_float32() -> None:
    """With this scale the smallest gradients would be lost, were they unscaled in float16."""
    weights, values = by_hand(2, kind=torch.float16, scale=2.0**12, clip=1e-3)
    job = Job(
        scaler=lambda: pipe.GradScaler(init_scale=2.0**12), fp16=True, master_weights=True, microbatches=2, partitions=2
    )
    job.train(clip=1e-3)
    same(job.model.state_dict(), weights, 0.0)
    same(job.masters(), values, 0.0)
    before = job.masters()
    job.optimizer.scaler._scale.fill_(2.0**60)
    job.train(last=1)
    assert job.optimizer.overflow
    same(job.masters(), before, 0.0)


@case(ranks=2)
def what_the_script_changes_in_parameters_counts() -> None:
    job = Job(**BF16, partitions=2).train(last=2)
    # A plan by times measured beside other work may leave a stage with the table alone.
    name, held = next((n, p) for n, p in job.model.local_named_parameters() if p.dim() > 1 and p.requires_grad)
    untouched = job.optimizer.state[held]["master"].detach().clone()
    with torch.no_grad():
        held[0] = 3.0
        held.data[1] = float("nan")
        for group in job.optimizer.param_groups:
            group["lr"] = 0.0
            group["weight_decay"] = 0.0
    for parameter in job.model.local_parameters():
        parameter.grad = torch.zeros_like(parameter, dtype=torch.float32)
    job.optimizer.step()
    master = job.optimizer.state[held]["master"].detach()
    assert (master[0] == 3).all() and master[1].isnan().all() and torch.equal(master[2:], untouched[2:]), name


@case(ranks=2)
def a_checkpoint_goes_on_to_the_bit() -> None:
    with shared_folder() as folder:
        for settings in ({"partitions": 2}, {"shard_optimizer_state": True}, {"tensor_parallel_degree": 2}):
            job = Job(**BF16, **settings).train(last=2)
            pipe.save_checkpoint(str(folder / "one"), job.model, job.optimizer)
            job.train(first=2)
            weights, values = job.model.state_dict(), job.masters()
            job = Job(**{**BF16, **settings})
            pipe.load_checkpoint(str(folder / "one"), job.model, job.optimizer)
            job.train(first=2)
            same(job.model.state_dict(), weights, 0.0)
            same(job.masters(), values, 0.0)


def after_steps_of(kinds: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """The masters after one step with each of the settings, which begins with the checkpoint of the one before."""
    with shared_folder() as folder:
        for number, settings in enumerate(kinds):
            job = Job(**{**BF16, **settings})
            if number:
                pipe.load_checkpoint(str(folder / f"{number}"), job.model, job.optimizer)
            job.train(first=number, last=number + 1)
            pipe.save_checkpoint(str(folder / f"{number + 1}"), job.model, job.optimizer)
        return job.masters()


@case(ranks=2)
def each_step_may_have_other_degrees_than_the_one_before() -> None:
    expected = by_hand(4, steps=6)[1]
    kinds: tuple[dict[str, Any], ...] = (
        {"partitions": 2, "microbatches": 4},
        {"shard_optimizer_state": True},
        {"partitions": 2, "microbatches": 4},
        {"sharded_data_parallel_degree": 2},
        {"tensor_parallel_degree": 2},
        {"shard_optimizer_state": True},
    )
    same(after_steps_of(kinds), expected, 2e-3)


@case(ranks=2)
def float32_checkpoints_go_in_and_come_out_as_they_are() -> None:
    with shared_folder() as folder:
        plain = Job(partitions=2, microbatches=2).train(last=2)
        weights = plain.model.state_dict()
        pipe.save_checkpoint(str(folder / "plain"), plain.model, plain.optimizer)
        expected = plain.train(first=2).model.state_dict()
        half = Job(**BF16, shard_optimizer_state=True)
        pipe.load_checkpoint(str(folder / "plain"), half.model, half.optimizer)
        half.step(half.model, *next(batches(1)))  # gives parameters their places
        half.optimizer.zero_grad()
        pipe.save_checkpoint(str(folder / "half"), half.model, half.optimizer)
        back = Job(partitions=2, microbatches=2)
        pipe.load_checkpoint(str(folder / "half"), back.model, back.optimizer)
        same(back.model.state_dict(), weights, 0.0)
        assert not any("master" in entry for entry in back.optimizer.state.values())
        same(back.train(first=2).model.state_dict(), expected, 0.0)


@case(ranks=2)
def states_of_float32_are_masters_whenever_they_are_loaded() -> None:
    torch.manual_seed(9)
    weights = {name: torch.randn_like(value) for name, value in Small().state_dict().items()}
    for late in (False, True):
        job = Job(**BF16, partitions=2)
        if late:
            job.train(last=1)
        job.model.load_state_dict(weights)
        for group in job.optimizer.param_groups:
            group["lr"] = 0.0
        job.train(last=1)
        trained = job.masters()
        same(trained, {name: weights[name] for name in trained}, 0.0)


@case(ranks=2)
def states_of_model_and_optimizer_go_on_in_either_order() -> None:
    job = Job(**BF16, partitions=2).train(last=2)
    weights, states = job.model.state_dict(), job.optimizer.state_dict()
    job.train(first=2)
    expected = job.masters()
    for order in (0, 1):
        other = Job(**BF16, partitions=2)
        for turn in (order, 1 - order):
            other.optimizer.load_state_dict(deepcopy(states)) if turn else other.model.load_state_dict(weights)
        same(other.train(first=2).masters(), expected, 0.0)
    local_states = job.optimizer.local_state_dict()
    assert all(entry["master"].dtype is torch.float32 for entry in local_states["by_name"].values() if "master" in entry)


@case(ranks=2)
def gradients_add_up_over_steps_in_float32() -> None:
    job = Job(**BF16, partitions=2)
    (x, y), *_ = batches(1)
    job.step(job.model, x, y)
    once = {name: whole(p.grad).clone() for name, p in job.model.local_named_parameters() if p.grad is not None}
    job.step(job.model, x, y)
    twice = {name: whole(p.grad) for name, p in job.model.local_named_parameters() if p.grad is not None}
    assert once and all(one.dtype is torch.float32 for one in twice.values())
    same(twice, {name: 2 * one for name, one in once.items()}, 0.0)


@case(ranks=2)
def models_without_values_get_them_in_half_precision() -> None:
    expected = Job(**BF16, partitions=2).train().masters()

    def later() -> nn.Module:
        with pipe.delayed_initialization():
            return Small()

    same(Job(made=later, **BF16, partitions=2).train().masters(), expected, 0.0)


@case(ranks=2)
def what_does_not_go_together_is_refused() -> None:
    refused(lambda: begin(master_weights=True), "master_weights", "needs bf16 or fp16")
    job = Job(**BF16, partitions=2)
    plain = adam(job.model.parameters())
    job.step(job.model, *next(batches(1)))
    refused(plain.step, "AdamW would update", "PipelineOptimizer")
    job = Job(update=torch.optim.LBFGS, **BF16)
    job.step(job.model, *next(batches(1)))
    refused(lambda: job.optimizer.step(lambda: torch.zeros(())), "LBFGS", "master_weights")


@case(ranks=2)
def amazons_names_are_served() -> None:
    pipe.shutdown()
    begin(partitions=2, microbatches=2, bf16=True, fp16_params=True)
    assert pipe.PipelineModel(Small()).module.head.weight.dtype is torch.bfloat16


@case(ranks=2)
def states_that_are_shared_out_stay_so_after_a_resume_and_are_saved_as_they_are() -> None:
    """Each replica loads all of them; those of the others must neither stay nor be saved."""
    for kinds in ({}, BF16):
        with shared_folder() as folder:
            settings = {"microbatches": 2, "shard_optimizer_state": True, **kinds}
            job = Job(**settings).train(last=2)
            pipe.save_checkpoint(str(folder / "two"), job.model, job.optimizer)
            held = len(job.optimizer.optimizer.state)
            job.train(first=2)
            expected = job.optimizer.state_dict()["state"]
            job = Job(**settings)
            pipe.load_checkpoint(str(folder / "two"), job.model, job.optimizer)
            job.train(first=2)
            assert len(job.optimizer.optimizer.state) == held < len(expected)
            pipe.save_checkpoint(str(folder / "four"), job.model, job.optimizer)
            alone = Job(**{**settings, "shard_optimizer_state": False})
            pipe.load_checkpoint(str(folder / "four"), alone.model, alone.optimizer)
            alone.step(alone.model, *next(batches(1)))
            found = alone.optimizer.state_dict()["state"]
            for number, entry in expected.items():
                same(found[number], entry, 0.0)


class Copies:
    """Parameters count as lying elsewhere than on the CPU; what an optimizer gets is counted."""

    def __init__(self) -> None:
        self.made = 0

    def there(self) -> Any:
        native = masters._on_cpu

        def counted(tensor: torch.Tensor) -> torch.Tensor:
            self.made += 1
            copy = native(tensor)
            assert copy.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()
            return copy

        return patch.multiple(masters, is_away=lambda _: True, _on_cpu=counted)


@case(ranks=2)
def states_on_the_cpu_are_those_beside_the_parameters() -> None:
    """From CPU to CPU, by the same copies."""
    for kinds in ({"partitions": 2}, {**BF16, "partitions": 2}, {**BF16, "shard_optimizer_state": True}):
        settings = {"microbatches": 2, **kinds}
        with shared_folder() as folder:
            job = Job(**settings).train(last=2)
            pipe.save_checkpoint(str(folder / "plain"), job.model, job.optimizer)
            job.train(first=2)
            expected, states = job.masters(), job.optimizer.state_dict()["state"]
            copies = Copies()
            with copies.there():
                job = Job(**settings, offload_optimizer_state=True)
                pipe.load_checkpoint(str(folder / "plain"), job.model, job.optimizer)
                job.train(first=2, last=3)
                pipe.save_checkpoint(str(folder / "three"), job.model, job.optimizer)
                job = Job(**settings, offload_optimizer_state=True)
                pipe.load_checkpoint(str(folder / "three"), job.model, job.optimizer)
                job.train(first=3)
                same(job.masters(), expected, 0.0)
                found = job.optimizer.state_dict()["state"]
                for number, entry in states.items():
                    same(found[number], entry, 0.0)
            assert copies.made >= 2 * len(job.optimizer.state), copies.made


@case(ranks=2)
def on_a_cpu_offloading_of_states_changes_nothing_and_says_so() -> None:
    said, copies = io.StringIO(), Copies()
    with redirect_stdout(said), patch.object(masters, "_on_cpu", side_effect=AssertionError):
        Job(partitions=2, microbatches=2, offload_optimizer_state=True).train(last=1)
    assert ("in the CPU's memory already" in said.getvalue()) == (pipe.rank() == 0), said.getvalue()
    pipe.shutdown()
    for name in ("tensor_parallel_degree", "sharded_data_parallel_degree"):
        settings = {name: 2, "offload_optimizer_state": True}
        refused(lambda settings=settings: begin(**settings), name, "offload_optimizer_state")
    with copies.there():
        job = Job(microbatches=2, offload_optimizer_state=True, update=lambda all_: torch.optim.AdamW(all_, capturable=True))
        job.step(job.model, *next(batches(1)))
        refused(job.optimizer.step, "capturable", "offload_optimizer_state")
