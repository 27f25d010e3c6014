"""The blocks of a rank's stages, inside of which each rank of a context group has a part of the sequence.

The ranks of a context group have the same stages, are given the same batch, and run the same schedule: they meet in blocks,
microbatch by microbatch, forward and backward. What passes from stage to stage is whole. A plan opens no block (`looking`);
a block is tried when its stage runs it for the first time, by its context group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from ...ground.errors import PipelineError, PlanError
from ...ground.grid import Grid, TensorGroup
from ...ground.torch_private import parameters_in
from ...tracing.subject import Subject
from ..object_collectives import STEP, objects
from ..tensor.rank_agreement import agreed_seed, compare_in_company
from .crossing import Crossing
from .find_blocks import blocks_in
from .region import NOTHING, MicrobatchState, Region, candidates_in, in_words

Marks = Callable[[nn.Module], bool | None]
Whole = Callable[[nn.Module], AbstractContextManager[Any]]


class StageBlocks:
    """The blocks of one model, on one rank.

    Args:
        marks: what the script says of a module: that it is a block, that it is none, or nothing.
        whole: within this context a module has whole parameters.

    names: of the blocks, which a plan keeps whole; empty before the first record.
    """

    def __init__(self, root: nn.Module, grid: Grid, marks: Marks, whole: Whole = nullcontext) -> None:
        self.names: tuple[str, ...] = ()
        self.region: Region | None = None
        self._root, self._grid, self._marks, self._made_whole = root, grid, marks, whole
        self._turns: dict[tuple[int, int], MicrobatchState] = {}

    def find(self, subject: Subject) -> tuple[str, ...]:
        """Names of the blocks, before there is a plan. Collective over all ranks.

        Raises:
            PipelineError: on all ranks: there are none.
        """
        mine = blocks_in(subject, self._marks)
        grid = self._grid
        found = objects(STEP, mine, range(grid.world), grid.control_group, torch.device("cpu"))
        self.names = tuple(sorted(set().union(*found)))
        if not self.names:
            raise PipelineError(
                f"context_parallel_degree = {grid.settings.context_parallel_degree} divides nothing: no module in a list is "
                "given a hidden state, (batch, positions, width), and calls torch's attention",
                hint=NOTHING,
            )
        return self.names

    def settle(self, units: Iterable[str]) -> None:
        """There is a plan.

        Args:
            units: that it does not open.

        Raises:
            PlanError: it opens a block.
        """
        for unit in units:
            for name in self.names:
                if unit.startswith(f"{name}."):
                    raise PlanError(
                        f"the plan opens {name!r}, whose sequences are to be divided (unit {unit!r})",
                        hint="delete the plan (partition_file) to have it made again for context_parallel_degree",
                    )
        group, grid = self._group(), self._grid
        wanted = set(self.names)
        blocks = [one for one in candidates_in(self._root, self._marks) if one.name in wanted]
        self.region = Region(blocks, Crossing(group, grid.rank, grid.device), self._lent)

    @contextmanager
    def _lent(self, module: nn.Module) -> Iterator[None]:
        with self._made_whole(module), _apart_from_hooks(module):
            yield

    @contextmanager
    def running(self) -> Iterator[None]:
        """Within this context all ranks of the group run the same microbatches."""
        region = self._blocks()
        self._turns.clear()
        region.inputs.clear()
        region.begin()
        region.running = True
        try:
            with region.installed():
                yield
        finally:
            region.running = False
            region.forget()
            self._turns.clear()

    def turn(self, stage: int, microbatch: int) -> None:
        """Before the forward of a microbatch in a stage."""
        self._blocks().take(self._turns.setdefault((stage, microbatch), MicrobatchState()))

    @contextmanager
    def backward(self, stage: int, microbatch: int) -> Iterator[None]:
        """A context for the backward of a microbatch in a stage, or a part of it."""
        self.turn(stage, microbatch)
        with self._blocks().backward():
            yield

    def agreed_seed(self, seed: int) -> int:
        """That of the group's first rank, from which all draw their random numbers. Collective over the group."""
        return agreed_seed(self._group(), seed, self._grid.device)

    def compare(self, losses: list[float]) -> str:
        """After the forwards and backwards of a step: ranks of one group have had the same. Collective over all that run the
        batch.

        Args:
            losses: of this rank's microbatches.

        Returns:
            What is divided, in words.

        Raises:
            PipelineError: on all of them, if something that the step function reads is not the same, or nothing is divided
                though sequences are long enough.
        """
        region = self._blocks()
        told = region.kinds(), region.reasons()
        found = compare_in_company(self._grid, "context", lambda place: place.pipeline, region.inputs, losses, told)
        divided = {name: kind for kinds, _ in found for name, kind in kinds.items()}
        reasons = [reason for _, reason in found]
        return in_words(divided, reasons[0] if all(reasons) else "", len(self._group().ranks))

    def let_go(self) -> None:
        """After a step that failed: no connection is kept here."""
        if self.region is not None:
            self.region.crossing.let_go()

    def _blocks(self) -> Region:
        if self.region is None:
            raise RuntimeError("there is no plan")
        return self.region

    def _group(self) -> TensorGroup:
        if self._grid.context is None:
            raise RuntimeError("there is no context group")
        return self._grid.context


@contextmanager
def _apart_from_hooks(module: nn.Module) -> Iterator[None]:
    """Within this context a module has other parameters of the same values, so that gradients of a trial reach nobody who
    waits for those of the step."""
    kept: list[tuple[dict[str, Any], str, nn.Parameter]] = []
    stands: dict[int, nn.Parameter] = {}
    for one in module.modules():
        for name, parameter in parameters_in(one).items():
            if parameter is not None:
                kept.append((parameters_in(one), name, parameter))
                twin = nn.Parameter(parameter.detach(), requires_grad=parameter.requires_grad)
                stands.setdefault(id(parameter), twin)
    for holder, name, parameter in kept:
        holder[name] = stands[id(parameter)]
    try:
        yield
    finally:
        for holder, name, parameter in kept:
            holder[name] = parameter
