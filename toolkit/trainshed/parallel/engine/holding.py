"""This rank's part of the model: all of it before the first step, then the parameters of its own stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from ..ground.grid import Grid
from ..ground.shards import whole
from .exchange import Exchange
from .placement import Placement
from .stage_shards import StageShards

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .waiting import Waiting


class Holding:
    """Parameters and buffers of one model on one rank; names are those of the user's module.

    Args:
        root: the user's model.

    placement: which rank holds which parameter; None before the first step, and where parameters are sharded.
    partitioned: whether the first step has given the parameters their places.
    last: the pipeline rank that has the last stage, which computes the losses.
    waiting: parameters that get their values then.
    shards: where parameters of stages are sharded.
    at_end: is told the number of a training step that ends, and whether it is one that is verified.
    standing: `id` of what stands for a parameter in an optimizer's step -> the parameter's name.
    exact: name -> the float32 value that was loaded into a parameter in half precision, until an optimizer takes it.
    """

    def __init__(self, root: nn.Module, grid: Grid) -> None:
        self.root = root
        self.grid = grid
        self.placement: Placement | None = None
        self.partitioned = False
        self.last = 0
        self._home_of_unit: Mapping[str, int] = {}
        self._home_of_buffer: dict[str, int] = {}
        self.waiting: Waiting | None = None
        self.shards: StageShards | None = None
        self.exact: dict[str, torch.Tensor] = {}
        self.at_end: Callable[[int, bool], None] | None = None
        self.standing: dict[int, str] = {}
        self._actions: list[Callable[[], None]] = []

    def settle(
        self, placement: Placement | None = None, home_of_unit: Mapping[str, int] | None = None, last: int = 0
    ) -> None:
        """The model is partitioned from now on; runs what was waiting for that.

        Args:
            placement: None where every rank holds a shard of every parameter.
            home_of_unit: module -> the pipeline rank that runs its first call.
            last: the pipeline rank that has the last stage.
        """
        self.placement = placement
        self._home_of_unit = home_of_unit or {}
        self.last = last
        self.partitioned = True
        actions, self._actions = self._actions, []
        for action in actions:
            action()

    def note_buffers(self, homes: Mapping[str, int]) -> None:
        """Buffers that a recorded forward changes, with the pipeline rank that does."""
        self._home_of_buffer.update(homes)

    def when_partitioned(self, action: Callable[[], None]) -> None:
        """Runs `action` when the model is partitioned: now if it is already."""
        if self.partitioned:
            action()
        else:
            self._actions.append(action)

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """Parameters that this rank holds, by name."""
        every = dict(self.root.named_parameters())
        if self.placement is None:
            return every
        return {name: every[name] for name in self.placement.local(self.grid.place.pipeline)}

    @property
    def names(self) -> dict[int, str]:
        """Names of all parameters of the model by `id`."""
        known = {id(parameter): name for name, parameter in self.root.named_parameters()}
        every = *(one.names for one in self.exchanges), known, self.standing
        return {key: name for names in every for key, name in names.items()}

    @property
    def exchanges(self) -> list[Exchange]:
        """Between whole parameters and what this rank holds of them, in the order in which they were cut."""
        return [] if self.shards is None else [self.shards]

    def now(self, parameters: Sequence[nn.Parameter]) -> Sequence[nn.Parameter]:
        """The parameters that the modules have now in the places of parameters of before the first step."""
        for one in self.exchanges:
            parameters = one.now(parameters)
        return parameters

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer goes on with what this rank holds of the parameters that it was given before the first step."""
        for one in self.exchanges:
            one.follow(optimizer)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Within the block the parameters of this rank are whole. Collective over the replicas where they are sharded, and
        over the tensor group where modules are divided."""
        with ExitStack() as opened:
            for one in reversed(self.exchanges):
                opened.enter_context(one.gathered())
            yield

    def gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and whole gradients of the parameters of this rank that have one, one after the other. Collective over the
        replicas where they are sharded."""
        for name, gradient in self.parts_of_gradients():
            yield name, whole(gradient)

    def parts_of_gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and gradients of the parameters of this rank that have one, as they are held."""
        for name, parameter in self.parameters.items():
            sharded = self.shards is not None and self.shards.has(name)
            gradient = self.shards.gradient(name) if self.shards is not None and sharded else parameter.grad
            if gradient is not None:
                yield name, gradient

    def step_ended(self, step: int, verified: bool) -> None:
        """At the end of a training step whose gradients are those of all ranks."""
        if self.at_end is not None:
            self.at_end(step, verified)

    def forget_gradients(self) -> None:
        """There are none any more."""
        for name, parameter in self.parameters.items():
            parameter.grad = None
            if self.shards is not None and self.shards.has(name):
                self.shards.forget_gradient(name)

    def owned_names(self) -> list[str]:
        """Parameters that this rank saves: each belongs to exactly one rank of a pipeline."""
        if self.placement is None:
            return list(self.parameters)
        return self.placement.owned(self.grid.place.pipeline)

    def buffer_owners(self) -> dict[str, int]:
        """Saved buffers -> the pipeline rank of `buffer_homes`."""
        parameters = {name for name, _ in self.root.named_parameters(remove_duplicate=False)}
        saved = set(self.root.state_dict(keep_vars=True)) - parameters
        return {name: home for name, home in self.buffer_homes().items() if name in saved}

    def home_of(self, name: str) -> int | None:
        """The pipeline rank that runs a module, or the module that has a buffer; None for what is around the units, and for
        what the first step does not run."""
        parts = name.split(".")
        around = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
        return next((self._home_of_unit[module] for module in around if module in self._home_of_unit), None)

    def buffer_homes(self) -> dict[str, int]:
        """Buffers -> the pipeline rank that changes them, else the one that runs their module (rank 0 if it never runs)."""

        changed = self._home_of_buffer
        return {name: changed.get(name, self.home_of(name) or 0) for name, _ in self.root.named_buffers()}

    def buffers(self) -> dict[str, torch.Tensor]:
        """Saved buffers of the modules that run on this rank, by name; all of them before the first step."""
        owners = self.buffer_owners()
        mine = self.grid.place.pipeline
        return {
            name: buffer
            for name, buffer in self.root.named_buffers()
            if name in owners and (not self.partitioned or owners[name] == mine)
        }

    def tensors(self) -> dict[str, torch.Tensor]:
        """All that this rank holds and that has values: parameters and saved buffers, by name."""
        waiting = self.waiting.names if self.waiting is not None else ()
        held = {name: parameter.detach() for name, parameter in self.parameters.items() if name not in waiting}
        return {**held, **self.buffers()}

    def owned_tensors(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers that this rank saves; before the first step the first rank of a pipeline saves all."""
        if not self.partitioned and self.grid.place.pipeline != 0:
            return {}
        parameters = self.parameters
        owned = {name: parameters[name].detach() for name in self.owned_names()}
        return {**owned, **self.buffers()}
