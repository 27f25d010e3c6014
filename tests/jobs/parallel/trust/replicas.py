"""Replicas that do different things: routes, lengths, evaluation, freezing."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import trainshed.parallel as pipe

from .table import begin, case, same
from .training import adam, check, nothing, one_process, sgd, squared


class Experts(nn.Module):
    """Each row has an expert; an expert without rows does not run."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(4, w), nn.Tanh(), nn.Linear(w, 4)) for w in widths)

    def forward(self, x: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        which = (which + 0 * x[:, 0]).round()  # a router decides by what was computed
        for number, expert in enumerate(self.experts):
            rows = (which == number).nonzero()[:, 0]
            if len(rows):
                out = out.index_add(0, rows, expert(x[rows]))
        return out


class Routed(nn.Module):
    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.first, self.experts, self.last = nn.Linear(4, 4), Experts(widths), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.last(x + self.experts(x, which))


class Reader(nn.Module):
    """A sequence of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.middle, self.last = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.middle(self.table(x)).tanh().mean(1))


def routed_batches(number: int, replica: int) -> tuple[torch.Tensor, ...]:
    """In the first microbatch each replica has experts of its own; the last expert has rows in the second step only."""
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(10 * number + replica))
    which = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 0], [2, 1, 2, 2, 0, 2, 2, 2]])[replica % 2].clone()
    if number == 1 and replica == 1:
        which[:] = 3
    return x, which


def lengths(number: int, replica: int) -> tuple[torch.Tensor, ...]:
    """Another length on each replica in the first steps, which then come to the other one."""
    length = [(3, 4), (5, 3), (3, 5), (4, 4), (6, 3)][number][replica % 2]
    generator = torch.Generator().manual_seed(100 * number + replica)
    return (torch.randint(0, 9, (4, length), generator=generator),)


@case(ranks=2)
def experts_with_replicas_without_stages() -> None:
    check(lambda: Routed(5, 5, 5, 5), routed_batches)


@case(ranks=4)
def experts_of_one_size_with_replicas() -> None:
    check(lambda: Routed(5, 5, 5, 5), routed_batches, partitions=2)


@case(ranks=4)
def experts_of_other_sizes_with_replicas() -> None:
    check(lambda: Routed(2, 3, 5, 7), routed_batches, partitions=2)


@case(ranks=4)
def experts_nobody_used_keep_their_values() -> None:
    check(lambda: Routed(5, 5, 5, 5, 5), routed_batches, partitions=2, optimizer=adam, tolerance=1e-4)


@case(ranks=4)
def experts_with_shared_optimizer_states() -> None:
    check(
        lambda: Routed(5, 5, 5, 5), routed_batches, partitions=2, optimizer=adam, shard_optimizer_state=True, tolerance=1e-4
    )


@case(ranks=2)
def replicas_with_other_lengths_without_stages() -> None:
    check(Reader, lengths, steps=5)


@case(ranks=4)
def replicas_with_other_lengths() -> None:
    check(Reader, lengths, steps=5, partitions=2)


@case(ranks=2)
def evaluation_on_one_replica_without_stages() -> None:
    evaluate_on_one_replica()


@case(ranks=4)
def evaluation_on_one_replica() -> None:
    evaluate_on_one_replica(partitions=2)


def evaluate_on_one_replica(**settings: Any) -> None:
    """Before every second step one replica alone evaluates, with a length of its own."""
    begin(microbatches=2, **settings)

    def evaluate(model: Any, x: torch.Tensor) -> torch.Tensor:
        return model(x)

    expected = one_process(Reader, lengths, 2, 2, 4, nothing, sgd)
    torch.manual_seed(3)
    model = pipe.PipelineModel(Reader())
    update = pipe.PipelineOptimizer(sgd(model.parameters()))
    train, test = pipe.step(squared), pipe.step(evaluate)
    for number in range(4):
        if number % 2 and pipe.dp_rank() == 0:
            model.eval()
            with torch.no_grad():
                outputs = test(model, torch.ones(6, 7, dtype=torch.long)).concat()
            assert outputs.shape == (6, 2)
            model.train()
        update.zero_grad()
        train(model, *lengths(number, pipe.dp_rank()))
        update.step()
    same(model.state_dict(), expected)


def unfreeze(step: int, model: nn.Module) -> None:
    """The middle is frozen at first, the table at the end."""
    model.middle.requires_grad_(step >= 2)
    model.table.requires_grad_(step < 4)


@case(ranks=4)
def unfreezing_with_replicas() -> None:
    check(Reader, lengths, steps=5, between=unfreeze, partitions=2)


@case(ranks=2)
def unfreezing_without_replicas() -> None:
    check(Reader, lengths, steps=5, between=unfreeze, partitions=2)


@case(ranks=4)
def unfreezing_keeps_the_shares_of_the_optimizer_state() -> None:
    check(
        Reader, lengths, steps=5, between=unfreeze, partitions=2, optimizer=adam, shard_optimizer_state=True, tolerance=1e-4
    )


@case(ranks=2)
def sharded_parameters_that_one_rank_does_not_use() -> None:
    check(lambda: Routed(5, 5, 5, 5), routed_batches, sharded_data_parallel_degree=2)


@case(ranks=2)
def sharded_parameters_that_nobody_uses_keep_their_values() -> None:
    check(lambda: Routed(5, 5, 5, 5, 5), routed_batches, sharded_data_parallel_degree=2, optimizer=adam, tolerance=1e-4)


class List(nn.Module):
    """Experts that are the entries of the outermost list."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
        return Experts.forward(self, x, which)  # type: ignore[arg-type]


@case(ranks=2)
def sharded_blocks_that_one_rank_does_not_use() -> None:
    check(List, routed_batches, sharded_data_parallel_degree=2)


@case(ranks=4)
def another_freezing_on_one_replica_is_refused() -> None:
    begin(partitions=2, microbatches=2)
    model = pipe.PipelineModel(Reader())
    step = pipe.step(squared)
    step(model, *lengths(0, pipe.dp_rank()))
    model.module.middle.requires_grad_(pipe.dp_rank() == 0)
    try:
        step(model, *lengths(0, pipe.dp_rank()))
    except pipe.PipelineError as error:
        assert "replica" in str(error), error
        return
    raise AssertionError(f"nothing was refused on rank {dist.get_rank()}")
