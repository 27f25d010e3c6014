"""The state of this process: the grid, the model and its optimizer, the modules that a script put on stages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

from .ground.errors import PipelineError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from trainshed.contract.wire.pipeline import PipelineSettings

    from .delayed.tape import Tape
    from .engine.holding import Holding
    from .engine.verify.after_gradients import AfterGradients
    from .ground.grid import Grid


class WrappedOptimizer(Protocol):
    """The methods that the model, its engine and gradient clipping need of a `PipelineOptimizer`."""

    @property
    def loss_scale(self) -> float:
        """Factor of the loss."""

    def unscale(self) -> None:
        """Divides the gradients by the loss scale, once a step. Collective."""

    def follow(self, names: Mapping[int, str], shards: Mapping[str, nn.Parameter]) -> None:
        """Goes on with this rank's shards of its parameters."""


class TensorMarks:
    """Which modules are to be divided: all, unless the script names some; never those that it excludes."""

    def __init__(self) -> None:
        self._marks: dict[int, tuple[nn.Module, bool]] = {}

    def mark(self, module: nn.Module, enabled: bool) -> None:
        """Marks a module; what the script says last counts."""
        self._marks[id(module)] = (module, enabled)

    def wants(self, module: nn.Module) -> bool:
        """Returns whether a module may be divided."""
        marked = self._marks.get(id(module))
        return marked[1] if marked is not None else not any(enabled for _, enabled in self._marks.values())

    def says(self, module: nn.Module) -> bool | None:
        """Returns what the script said of this very module; None if nothing."""
        marked = self._marks.get(id(module))
        return marked[1] if marked is not None else None


@dataclass
class Session:
    """The state of this process, from `init` to `shutdown`.

    model: the `PipelineModel`.
    holding: the part of the model that this rank holds.
    partition_stack: stages of the `partition` blocks that are open, innermost last.
    built_in: id of a module -> the module, and the stage of the `partition` block that it was built in.
    in_step: whether a step function runs now.
    planned: in a process that only makes a plan, the settings that the plan is for.
    tape: what was done to a model that was built without values.
    tensor_marks: modules that the script wants divided among the ranks of a tensor group, or does not.
    context_marks: blocks inside of which it wants sequences divided, or does not.
    tried: optimizers of which it is known that they update no parameter by others.
    tried_in_parts: those that do the same to a part of a parameter as to the whole.
    after: what of a verified step is still to be compared; None in one process.
    updating: whether an optimizer takes its step.
    trying: whether an optimizer takes a step with stand-ins for its parameters.
    comparing: the optimizer's step that is to be compared when it is over.
    watched: optimizers whose steps may be compared.
    """

    grid: Grid | None = None
    model: nn.Module | None = None
    holding: Holding | None = None
    optimizer: WrappedOptimizer | None = None
    partition_stack: list[int] = field(default_factory=list)
    built_in: dict[int, tuple[nn.Module, int]] = field(default_factory=dict)
    in_step: bool = False
    planned: PipelineSettings | None = None
    tape: Tape | None = None
    tensor_marks: TensorMarks = field(default_factory=TensorMarks)
    context_marks: TensorMarks = field(default_factory=TensorMarks)
    tried: WeakSet[Any] = field(default_factory=WeakSet)
    tried_in_parts: WeakSet[Any] = field(default_factory=WeakSet)
    after: AfterGradients | None = None
    updating: bool = False
    trying: bool = False
    comparing: Any = None
    watched: WeakSet[Any] = field(default_factory=WeakSet)

    def clear(self) -> None:
        """Forgets everything."""
        vars(self).update(vars(Session()))


session = Session()


def grid() -> Grid:
    """The grid.

    Raises:
        PipelineError: `init` was not called.
    """
    if session.grid is None:
        raise PipelineError("the pipeline is not initialised", hint="call init() first")
    return session.grid
