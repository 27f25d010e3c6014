"""Numbers that scripts read of parameters and gradients that are divided among ranks, in loops, hooks and optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import distribute_tensor

import trainshed.parallel as pipe
from trainshed.parallel.ground.shards import whole

from .table import begin, case, refused, same
from .training import Alone, sgd, squared

Numbers = list[float]
TENSOR, SHARDED = {"tensor_parallel_degree": 2}, {"sharded_data_parallel_degree": 2}


def net(width: int) -> nn.Module:
    return nn.Sequential(*[nn.Sequential(nn.Linear(width, 12), nn.Tanh(), nn.Linear(12, width)) for _ in range(2)])


def rows(number: int, replica: int, width: int) -> torch.Tensor:
    return torch.randn(4, width, generator=torch.Generator().manual_seed(10 * number + replica)) * 3


def gradients(model: nn.Module) -> Iterator[torch.Tensor]:
    return (p.grad for p in model.parameters() if p.grad is not None)


def clip_to(model: nn.Module, total: Any) -> Numbers:
    for one in gradients(model):
        one.mul_(min(1.0, float(0.1 / (total + 1e-6))))
    return [float(total)]


def norm_item(model: nn.Module) -> Numbers:
    return clip_to(model, sum(g.detach().data.norm(2).item() ** 2 for g in gradients(model)) ** 0.5)


def float_of_norm(model: nn.Module) -> Numbers:
    return clip_to(model, max(float(g.norm()) for g in gradients(model)))


def largest(model: nn.Module) -> Numbers:
    for one in gradients(model):
        if one.abs().max() > 0.05:
            one.div_(2)
    return [max(one.abs().max().item() for one in gradients(model))]


def squares(model: nn.Module) -> Numbers:
    return clip_to(model, sum((g * g).sum().item() for g in gradients(model)) ** 0.5)


def stacked(model: nn.Module) -> Numbers:
    norms = torch.stack([torch.norm(g.detach(), 2) for g in gradients(model)])
    return [*clip_to(model, torch.norm(norms, 2)), norms.sum().item(), *norms.tolist()]


def foreach(model: nn.Module) -> Numbers:
    return clip_to(model, torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(gradients(model))))).item())


def added_to_a_tensor(model: nn.Module) -> Numbers:
    total = torch.zeros(())
    for one in gradients(model):
        total += one.norm() ** 2
    return clip_to(model, total.sqrt().item())


def as_arrays(model: nn.Module) -> Numbers:
    return clip_to(model, sum(float((g.detach().cpu().numpy() ** 2).sum()) for g in gradients(model)) ** 0.5)


def as_lists(model: nn.Module) -> Numbers:
    flat = [number for g in gradients(model) for row in g.tolist() for number in (row if g.dim() > 1 else [row])]
    return clip_to(model, sum(number**2 for number in flat) ** 0.5)


def checked(model: nn.Module) -> Numbers:
    """Not-a-number in a part that one rank has alone."""
    last = list(gradients(model))[-2]
    last.masked_fill_(last == last.min(), float("nan"))
    bad = [bool(torch.isnan(last).any()), not last.isfinite().all().item(), bool(torch.isnan(last.sum()))]
    assert all(bad), bad
    torch.nan_to_num_(last)
    return [torch.isnan(g).any().float().item() for g in gradients(model)]


def rows_by_size(model: nn.Module) -> Numbers:
    return [number for g in gradients(model) for number in (g.norm(dim=0).sum().item(), g.norm(dim=-1).max().item())]


def decayed(model: nn.Module) -> Numbers:
    """By what is assigned, and by its norm."""
    found = [p.data.norm().item() for p in model.parameters()]
    for one, norm in zip(model.parameters(), found, strict=True):
        one.data.mul_(1 - 0.01 * norm)
    return found


def logged(model: nn.Module) -> Numbers:
    lines = [f"{p.norm():.6f} {p.detach().abs().mean():.6f} {p.std():.6f} {p.grad.max():.6f}" for p in model.parameters()]
    return [float(number) for line in lines for number in line.split()]


def every_kind(model: nn.Module) -> Numbers:
    """One after the other: what one of them does to the gradients is what the next one reads."""
    clips = norm_item, float_of_norm, largest, squares, stacked, foreach, added_to_a_tensor, as_arrays, as_lists
    looks = checked, rows_by_size, decayed, logged
    return [number for read in (*clips, *looks) for number in read(model)]


class OneByOne(torch.optim.Optimizer):
    """Updates each parameter by itself."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        del closure
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is not None:
                    self._update(one, group["lr"])

    def _update(self, one: torch.Tensor, lr: float) -> None:
        raise AssertionError("a subclass says what an update is")


class Lars(OneByOne):
    """A rate for each parameter, by numbers."""

    def __init__(self, parameters: Any, lr: float = 0.05) -> None:
        super().__init__(parameters, lr)

    def _update(self, one: torch.Tensor, lr: float) -> None:
        weight, update = one.norm().item(), one.grad.norm().item()  # type: ignore[union-attr]
        one.add_(one.grad, alpha=-lr * (weight / (update + 1e-3) if weight else 1.0))  # type: ignore[arg-type]


class Lamb(torch.optim.Optimizer):
    """A rate for each parameter, by tensors.

    Args:
        limit: of the norm of all gradients together.
    """

    def __init__(self, parameters: Any, lr: float = 0.05, limit: float | None = None) -> None:
        super().__init__(parameters, {"lr": lr})
        self.limit = limit

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        del closure
        every = [one for group in self.param_groups for one in group["params"] if one.grad is not None]
        scale = 1.0
        if self.limit is not None:
            total = sum(one.grad.pow(2).sum() for one in every) ** 0.5
            scale = float(torch.clamp(self.limit / total, max=1.0))
        for one in every:
            state = self.state[one]
            if not state:
                state["first"], state["second"] = torch.zeros_like(one), torch.zeros_like(one)
            state["first"].mul_(0.9).add_(one.grad * scale, alpha=0.1)
            state["second"].mul_(0.99).addcmul_(one.grad * scale, one.grad * scale, value=0.01)
            update = state["first"] / (state["second"].sqrt() + 1e-6)
            weight, length = one.norm(), update.norm()
            ratio = torch.where(weight > 0, torch.where(length > 0, weight / length, 1.0), 1.0)
            one.add_(update * ratio, alpha=-self.param_groups[0]["lr"])


class Blockwise(OneByOne):
    """Momentum that is kept in 8 bits and a scale for each block of 16 numbers."""

    def __init__(self, parameters: Any, lr: float = 0.5) -> None:
        super().__init__(parameters, lr)

    def _update(self, one: Any, lr: float) -> None:
        state, moment = self.state[one], self.held(one.grad).detach().clone()
        if "codes" in state:
            kept = (state["codes"].float() / 127 * state["scales"]).flatten()[: moment.numel()]
            moment.add_(kept.view(moment.shape), alpha=0.9)
        flat = moment.flatten()
        blocks = nn.functional.pad(flat, (0, -len(flat) % 16)).view(-1, 16)
        state["scales"] = blocks.abs().amax(1, keepdim=True).clamp(min=1e-12)
        state["codes"] = torch.round(blocks / state["scales"] * 127).to(torch.int8)
        self.held(one).add_(moment, alpha=-lr)

    @staticmethod
    def held(tensor: Any) -> Any:
        """What the blocks are of."""
        return tensor


class BlockwiseByParts(Blockwise):
    """The same in blocks of what a rank has."""

    @staticmethod
    def held(tensor: Any) -> Any:
        return tensor.to_local() if hasattr(tensor, "to_local") else tensor


class MomentumByParts(BlockwiseByParts):
    """Goes by each number alone."""

    def _update(self, one: Any, lr: float) -> None:
        moment = self.state[one].setdefault("moment", torch.zeros_like(self.held(one)))
        moment.mul_(0.9).add_(self.held(one.grad))
        self.held(one).add_(moment, alpha=-lr)


def trained(
    read: Callable[[nn.Module], Numbers] | None = None, optimizer: Any = sgd, width: int = 9, **settings: Any
) -> None:
    """As one process does, with the same numbers."""
    begin(microbatches=2, **settings)
    replicas = pipe.dp_size()
    torch.manual_seed(3)
    alone = net(width)
    one, update, expected = Alone(alone, 0.5 / replicas), optimizer(alone.parameters()), []
    for number in range(2):
        update.zero_grad()
        for part in [part for replica in range(replicas) for part in rows(number, replica, width).chunk(2)]:
            squared(one, part)
        expected.append(read(alone) if read else [])
        update.step()
    torch.manual_seed(3)
    model = pipe.PipelineModel(net(width))
    mine, step, found = pipe.PipelineOptimizer(optimizer(model.parameters())), pipe.step(squared), []
    for number in range(2):
        mine.zero_grad()
        step(model, rows(number, pipe.dp_rank(), width))
        found.append(read(model) if read else [])
        mine.step()
    what = getattr(read, "__name__", str(optimizer))
    for have, want in zip(found, expected, strict=True):
        torch.testing.assert_close(have, want, rtol=1e-5, atol=2e-6, msg=lambda text: f"{what}: {text}")
    try:
        same(model.state_dict(), alone.state_dict())
    except AssertionError as error:
        raise AssertionError(f"{what}: {error}") from None
    pipe.shutdown()


def all_kinds(**settings: Any) -> None:
    trained(every_kind, **settings)
    together = partial(torch.optim.AdamW, lr=0.05, foreach=True)
    for optimizer in (together, Lars, Lamb, lambda parameters: Lamb(parameters, limit=0.1)):
        trained(None, optimizer, **settings)


@case(ranks=2)
def numbers_of_tensors_divided_by_a_tensor_group() -> None:
    all_kinds(**TENSOR)


@case(ranks=2)
def numbers_of_sharded_tensors() -> None:
    all_kinds(**SHARDED)


@case(ranks=2)
def states_in_blocks() -> None:
    """Right, or refused where torch cuts a tensor into blocks in parts, as it says, or in another way than the whole one."""
    trained(None, Blockwise, width=9, **TENSOR)
    trained(None, Blockwise, width=8, **SHARDED)
    other = "step 1 is not right after the step of Blockwise: the state"
    refusals = (
        (8, TENSOR, other),
        (9, SHARDED, "Blockwise does something to a divided parameter that torch does not do in parts"),
    )
    for width, settings, words in refusals:
        refused(lambda width=width, settings=settings: trained(None, Blockwise, width=width, **settings), words)
        pipe.shutdown()


@case(ranks=2)
def states_in_blocks_of_what_a_rank_has() -> None:
    for settings in (TENSOR, SHARDED):
        trained(None, MomentumByParts, **settings)
        refused(
            lambda settings=settings: trained(None, BlockwiseByParts, **settings),
            "BlockwiseByParts does something else to a part of a parameter than to the whole one",
        )
        pipe.shutdown()


PLACES = torch.tensor([1, 8])
WRITES: tuple[Callable[[torch.Tensor], Any], ...] = (
    lambda t: t.index_add_(0, PLACES, torch.ones(2, *t.shape[1:])),
    lambda t: t.index_copy_(0, PLACES, torch.ones(2, *t.shape[1:])),
    lambda t: t.index_fill_(0, PLACES, 3.0),
    lambda t: t.__setitem__(PLACES, 3.0),
    lambda t: t.__setitem__(t > 0.1, 3.0),
)


@case(ranks=2)
def losses_and_places_of_tensors_in_parts_of_other_sizes() -> None:
    for settings in (TENSOR, SHARDED):
        _, first = stepped(**settings)
        for one in (first.detach(), first.grad):
            given, target = whole(one).clone(), torch.linspace(-1, 1, 9).expand(one.shape).contiguous()
            parts = distribute_tensor(target, one.device_mesh, one.placements)
            for loss in (F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.soft_margin_loss, F.binary_cross_entropy_with_logits):
                mine, alone = one.clone().requires_grad_(), given.clone().requires_grad_()
                found, want = loss(mine, parts), loss(alone, target)
                found.backward(), want.backward()
                torch.testing.assert_close(found.item(), want.item())
                torch.testing.assert_close(whole(mine.grad), alone.grad)
            for write in WRITES:
                mine, alone = one.clone(), given.clone()
                write(mine), write(alone)
                torch.testing.assert_close(whole(mine), alone)
        pipe.shutdown()


@case(ranks=2)
def a_hook_is_called_once_with_the_whole_gradient() -> None:
    """It cuts the gradient, which would be another one if it were called for each rank's rows."""
    begin(microbatches=2, **TENSOR)
    torch.manual_seed(3)
    alone, calls = net(9), dict[str, int]()
    one, part = Alone(alone, 0.5 / pipe.dp_size()), None
    for part in [part for replica in range(pipe.dp_size()) for part in rows(0, replica, 9).chunk(2)]:
        squared(one, part)
    torch.manual_seed(3)
    model = pipe.PipelineModel(net(9))
    for name, parameter in model.named_parameters():

        def cut(parameter: Any, name: str = name) -> None:
            calls[name] = calls.get(name, 0) + 1
            parameter.grad.clamp_(-0.01, 0.01)

        parameter.register_post_accumulate_grad_hook(cut)
    pipe.step(squared)(model, rows(0, pipe.dp_rank(), 9))
    assert set(calls.values()) == {1}, calls
    for mine, its in zip(model.parameters(), alone.parameters(), strict=True):
        found: Any = (mine.grad, its.grad)
        torch.testing.assert_close(whole(found[0]), found[1].clamp(-0.01, 0.01), rtol=1e-5, atol=1e-6)


def stepped(**settings: Any) -> Any:
    """A model after a step, and its first parameter."""
    begin(microbatches=1, **settings)
    model = pipe.PipelineModel(net(9))
    pipe.step(squared)(model, rows(0, 0, 9))
    return model, next(model.parameters())


@case(ranks=2)
def a_number_that_one_rank_reads() -> None:
    for settings in (TENSOR, SHARDED):
        model, first = stepped(**settings)

        def log(first: Any = first, model: Any = model) -> None:
            if pipe.rank() == 0:
                first.norm().item()
            pipe.step(squared)(model, rows(1, 0, 9))

        refused(log, "a number of a divided tensor", "a step", "on all ranks")
        pipe.shutdown()


@case(ranks=2)
def a_write_into_a_copy_of_a_piece() -> None:
    for settings in (TENSOR, SHARDED):
        _, first = stepped(**settings)
        rows_of = first.grad.select(first.placements[-1].dim, 0)
        refused(rows_of.zero_, "changes a piece", "a copy here")
        array = first.detach().numpy()
        refused(lambda array=array: array.fill(0), "read-only", kind=ValueError)
        pipe.shutdown()


@case(ranks=4)
def numbers_of_sharded_parts() -> None:
    all_kinds(**TENSOR, **SHARDED)


@case(ranks=2)
def numbers_that_a_stage_has_not() -> None:
    begin(partitions=2, microbatches=2)
    model = pipe.PipelineModel(net(9))
    pipe.step(squared)(model, rows(0, 0, 9))
    for read in (norm_item, float_of_norm, squares, stacked, foreach, as_arrays, as_lists):
        refused(lambda read=read: read(model), "of the pipeline, and cannot be read on this one")
    refused(lambda: [p.data.norm() for p in model.parameters()], "cannot be read on this one")


@case(ranks=2)
def optimizers_that_go_by_all_parameters_where_a_rank_has_some() -> None:
    """LAMB by its own ratios is right in stages; with a limit for all gradients together it is refused."""
    trained(None, Lamb, partitions=2)
    for settings in ({"partitions": 2}, {"shard_optimizer_state": True}):
        begin(microbatches=2, **settings)
        model = pipe.PipelineModel(net(9))
        update = pipe.PipelineOptimizer(Lamb(model.parameters(), limit=0.1))
        pipe.step(squared)(model, rows(0, 0, 9))
        before = [(one, one.detach().clone()) for one in model.local_parameters()]
        refused(update.step, "Lamb updates each parameter by others", "clip_grad_norm_")
        assert all(torch.equal(one, value) for one, value in before)
        assert not update.optimizer.state
        pipe.shutdown()
