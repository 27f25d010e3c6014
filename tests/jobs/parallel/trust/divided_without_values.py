"""Models that are built without values, and whose modules are divided: each rank makes the values of its own parts, one
parameter at a time, and they are those of one process."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any
from unittest.mock import patch

import ranks
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import trainshed.parallel as pipe
from trainshed.parallel.delayed.tape import Tape
from trainshed.parallel.engine.exchange import Exchange
from trainshed.parallel.engine.tensor.division import Division
from trainshed.parallel.session import session

from .table import begin, case, refused, same
from .tensor_stages import TWO_BY_TWO
from .training import squared
from .without_values import WIDTH, Net, build, compare, train, trained, words

STAGES: dict[str, Any] = {**TWO_BY_TWO, "placement_strategy": "spread"}
ALONE: dict[str, Any] = {"partitions": 1, "tensor_parallel_degree": 4, "prescaled_batch": True}
# Bytes: what is smaller than a matrix of these models is made at once.
_SMALL = 2**16


@contextmanager
def nothing_is_gathered() -> Iterator[None]:
    """Within this context no rank gathers what it holds."""

    def refuse(_exchange: Exchange) -> None:
        raise AssertionError("a rank has its stages whole")

    with patch.object(Exchange, "open", refuse):
        yield


@contextmanager
def nothing_is_whole() -> Iterator[None]:
    """Within this context no rank gathers what it holds, and none has a large parameter whole while it makes another."""
    native, kept = Tape.values, list[int]()

    def values(tape: Tape, tensor: torch.Tensor) -> torch.Tensor:
        every = session.holding.root.parameters() if session.holding is not None else ()
        with torch._C.DisableTorchFunctionSubclass():
            kept.append(sum(one.untyped_storage().nbytes() for one in every))
        return native(tape, tensor)

    with patch.object(Tape, "values", values), nothing_is_gathered():
        yield
    assert kept and max(kept) < _SMALL, kept


@case(ranks=4)
def divided_stages_train_as_with_values() -> None:
    for settings in (STAGES, {**TWO_BY_TWO, "pipeline": "interleaved1f1b", "virtual_stages": 2}):
        compare(**settings)


@case(ranks=4)
def one_stage_trains_as_with_values() -> None:
    """Random numbers are those of stages, whose number does not matter."""
    usual = trained(False, partitions=4)
    with nothing_is_whole():
        without = trained(True, **ALONE)
    torch.testing.assert_close(torch.tensor(without[0]), torch.tensor(usual[0]), rtol=1e-6, atol=0)
    same(without[1], usual[1], 1e-5)


@case(ranks=4, heavy=True)
def the_values_of_divided_stages_are_those_of_one_process() -> None:
    torch.manual_seed(3)
    alone = Net()
    for settings in (STAGES, ALONE):
        said = io.StringIO()
        with nothing_is_whole(), redirect_stdout(said):
            model, _, _ = build(True, verify_steps=1, **settings)
            update = pipe.PipelineOptimizer(torch.optim.SGD(model.parameters(), lr=0.0))
            train(model, update, pipe.step(squared), range(2))
            pipe.step(squared)(model, words(0)[:, :3])  # another shape is recorded
        same(model.state_dict(), alone.state_dict(), 0.0)
        assert dist.get_rank() or ("module by module" in said.getvalue() and "not verified" not in said.getvalue())
        parts = [one for one in model.local_parameters() if model.is_distributed_parameter(one)]
        divided = torch.tensor(sum(one.numel() for one in parts))
        dist.all_reduce(divided)  # in all stages, wherever the plan cuts
        alike = dist.get_world_size() // settings.get("partitions", 2)
        assert divided > 0.9 * alike * sum(one.numel() for one in alone.parameters())
        with torch.no_grad():
            model.eval()
            torch.testing.assert_close(model(words(5)), alone.eval()(words(5)))
            alone.train()
        pipe.shutdown()


class Chosen(nn.Module):
    """Experts whose weights are large enough to wait for their values."""

    def __init__(self) -> None:
        super().__init__()
        self.num_experts = 7
        self.up, self.down = nn.Parameter(torch.randn(7, 24, WIDTH) / 9), nn.Parameter(torch.randn(7, WIDTH, 24) / 9)

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        share = (F.one_hot(chosen, self.num_experts) * weights[..., None]).sum(1)
        return torch.einsum("te,edi,tei->td", share, self.down, torch.einsum("td,eid->tei", x, self.up).tanh())


class Unfit(Chosen):
    """Norms over all experts: its parts do not add up."""

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return super().forward(x, chosen, weights) / self.up.norm()


class Mixed(nn.Module):
    def __init__(self, kind: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(200, WIDTH), nn.Linear(WIDTH, 200)
        self.router, self.experts = nn.Linear(WIDTH, 7), kind()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.table(x).flatten(0, 1)
        weights, chosen = self.router(hidden).softmax(-1).topk(2)
        return self.head(hidden + self.experts(hidden, chosen, weights)).view(*x.shape, -1)


@case(ranks=4, heavy=True)
def experts_of_stages_without_values() -> None:
    _experts_without_values(STAGES)


@case(ranks=4, heavy=True)
def experts_without_values() -> None:
    _experts_without_values(ALONE)


def _experts_without_values(settings: dict[str, Any]) -> None:
    for kind, divided in ((Chosen, True), (Unfit, False)):
        found = []
        for delayed in (False, True):
            begin(microbatches=2, **settings)
            torch.manual_seed(3)
            with pipe.delayed_initialization(delayed):
                module = Mixed(kind)
            model = pipe.PipelineModel(module)
            update = pipe.PipelineOptimizer(torch.optim.AdamW(model.parameters(), lr=0.01))
            said = io.StringIO()
            with redirect_stdout(said):
                found.append(train(model, update, pipe.step(squared), range(2)))
            here = {name for name, one in model.local_named_parameters() if model.is_distributed_parameter(one)}
            mine = dict(model.local_named_parameters())
            assert ("experts.up" in here) == (divided and "experts.up" in mine), (
                kind,
                delayed,
                said.getvalue(),
                here,
                list(mine),
            )
            pipe.shutdown()
        torch.testing.assert_close(torch.tensor(found[1]), torch.tensor(found[0]), rtol=1e-6, atol=0)


@case(ranks=4)
def wrong_parts_of_stages_without_values_are_found() -> None:
    _wrong_parts_are_found(STAGES)


@case(ranks=4, heavy=True)
def wrong_parts_without_values_are_found() -> None:
    _wrong_parts_are_found(ALONE)


def _wrong_parts_are_found(settings: dict[str, Any]) -> None:
    native = Division.part_of

    def swapped(division: Division, old: nn.Parameter, axis: int) -> nn.Parameter:
        return native(division, nn.Parameter(old.detach().flip(axis)), axis)

    model, update, step = build(True, **settings)
    with patch.object(Division, "part_of", swapped):
        refused(lambda: train(model, update, step, range(1)), "is not right", "is not the model's own")
    assert all(parameter.grad is None for parameter in model.local_parameters())
    pipe.shutdown()
    model, update, step = build(True, verify_steps=1, **settings)
    train(model, update, step, range(1))
    for name, parameter in model.local_named_parameters():
        if name == "blocks.2.mix.weight":
            parameter.register_hook(lambda gradient: gradient * 2)
    refused(lambda: train(model, update, step, range(1, 2)), "the gradient of 'blocks.2.mix.weight'")
    pipe.shutdown()


@case(ranks=4)
def batches_of_their_own_are_refused_without_values() -> None:
    begin(tensor_parallel_degree=2)
    with pipe.delayed_initialization():
        module = Net()
    refused(lambda: pipe.PipelineModel(module), "needs prescaled_batch = true", "rdp_rank()", kind=pipe.NotServed)
    pipe.shutdown()
    given = {"tensor_parallel_degree": 2, "delayed_parameter_initialization": True}
    refused(lambda: begin(**given), "needs prescaled_batch = true", kind=pipe.NotServed)


@case(ranks=4, heavy=True)
def divided_checkpoints_and_weights_are_read_by_those_who_hold_them() -> None:
    folder = ranks.folder() / "divided-without-values"
    checkpoint, weights = str(folder / "last"), str(folder / "weights")
    model, update, step = build(True, **STAGES)
    train(model, update, step, range(2))
    pipe.save_checkpoint(checkpoint, model, update, {"at": 2})
    model.save_weights(weights)
    state = model.state_dict()
    expected, after = train(model, update, step, range(2, 4)), model.state_dict()
    pipe.shutdown()
    for delayed, settings in ((False, STAGES), (True, STAGES), (True, ALONE), (True, {"partitions": 4})):
        model, update, step = build(delayed, seed=7, **settings)  # its own values count for nothing
        assert pipe.load_checkpoint(checkpoint, model, update) == {"at": 2}
        with nothing_made() if delayed else redirect_stdout(io.StringIO()):
            found = train(model, update, step, range(2, 4))
        torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-6, atol=0)
        same(model.state_dict(), after, 1e-5)
        pipe.shutdown()
    assert not dist.get_rank() or os.path.exists(f"{weights}/model.safetensors.index.json") or os.listdir(weights)
    for settings in (STAGES, ALONE, {"partitions": 4}):
        model, _, _ = build(True, seed=7, **settings)
        model.load_weights(weights)
        update = pipe.PipelineOptimizer(torch.optim.SGD(model.parameters(), lr=0.0))
        train(model, update, pipe.step(squared), range(1))
        same(model.state_dict(), state, 0.0)
        pipe.shutdown()


@contextmanager
def nothing_made() -> Iterator[None]:
    """Within this context no values are made."""

    def refuse(*_: Any) -> None:
        raise AssertionError("values were made that a checkpoint has")

    with patch.object(Tape, "values", refuse):
        yield
