"""Steps of a model without stages whose parameters are sharded over all ranks, block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from .delayed.tape import Tape
from .engine.block_shards import blocks, refuse_hooks
from .engine.forward_patch import StandIn, is_compiled
from .engine.holding import Holding
from .engine.object_collectives import UNDIVIDED, objects
from .engine.placement import broadcast_state
from .engine.remote_parameters import IN_SHARDS, Absent
from .engine.shard_mesh import ShardMesh
from .engine.suitable import check_values
from .engine.tensor.joint_steps import JointEngine, JointStep
from .engine.tensor.part_shards import PartShards
from .engine.tensor.reference import Reference
from .engine.verify.traces import Traces
from .engine.verify.unit_outputs import Watch
from .engine.waiting import Waiting
from .ground.errors import NotServed
from .ground.grid import TensorGroup
from .ground.halves import BATCH_OR_INSTANCE_NORM, half_type
from .ground.memory import SPARE, free_bytes
from .ground.torch_private import parameters_in
from .tracing.naming import first_names
from .tracing.subject import Backward


class ShardedEngine(JointEngine):
    """Takes the place of `steps.Engine`: each rank runs its own batch.

    Args:
        holding, attach, common: see `JointEngine`.
        tape: tells the values of parameters that the model was built without.
    """

    def __init__(
        self, holding: Holding, attach: Callable[[Backward | None], None], *, tape: Tape | None = None, **common: Any
    ) -> None:
        super().__init__(holding, attach, **common)
        self._whole = UndividedModel(self._root)
        self._absent = Absent()
        self._waiting = holding.waiting = Waiting(holding.root, tape, self._absent, holding.grid.device)
        self._begins = True

    def _begun(self) -> tuple[UndividedModel, TensorGroup]:
        if self._begins:
            self._begins = False
            check_values(self._root)
            self._waiting.agree(self._grid)
            if self._waiting.names:
                self._absent.give_up(self._root, {}, self._grid.device)
            else:
                self._root.to(self._grid.device)
            broadcast_state(self._root, self._grid, self._waiting.names)
        # Made for each step: who keeps it keeps its connections.
        every, group = self._grid.replica_ranks, self._grid.replica_group
        return self._whole, TensorGroup([self._grid.rank], group, every, group, "replica")

    def _run_by_all(self, step: JointStep) -> set[str]:
        with self._absent.as_zeros():
            return super()._run_by_all(step)

    def _shard(self, where: ShardMesh, ran: set[str]) -> PartShards:
        waiting = self._waiting.names
        self._stand_in(waiting)
        shards = PartShards(self._root, self._grid, where, self._kinds(), ran)
        shards.fill(self._waiting.values(list(waiting), self._grid.device))
        return shards

    def _reference(self, step: JointStep, due: bool, group: TensorGroup) -> Reference | None:
        """None as well without values, and where what is gathered has another type than what is kept."""
        grid = self._grid
        if self._waiting.names or (half_type(grid.settings) is not None and grid.settings.master_weights):
            return None
        if not due:
            return None
        found = objects(UNDIVIDED, self._has_room(), range(grid.world), grid.control_group, torch.device("cpu"))
        if False in found:
            self._say(f"this step is not verified: rank {found.index(False)} has no room for the whole model")
            return None

        def run(watch: Watch) -> list[Any]:
            with self._whole.watched(watch):
                return self._turns(self._whole, step.copied(), watch, 0)[0]

        traces = Traces(self._root, step.function, grid.device)
        reference = Reference(self._root, grid, group, traces, self.gathered, run, training=True)
        if reason := reference.stopped():
            self._say(f"this step is not verified: {reason}")
            return None
        return reference

    def _has_room(self) -> bool:
        """Whether this rank can take all gradients beside what lies there, and all parameters where it has shards."""
        grid, every = self._grid, list(self._root.parameters())
        needed = sum(one.numel() * one.element_size() for one in every if one.requires_grad)
        if self.holding.partitioned:
            needed += sum(one.numel() * one.element_size() for one in every)
        sharers = 1 if grid.device.type == "cuda" else grid.local_world
        return needed * SPARE <= free_bytes(grid.device) / sharers

    def _kinds(self) -> MixedPrecisionPolicy:
        """Types of what is gathered and summed; shards keep theirs.

        Raises:
            NotServed: a module has statistics of float32, which go together with parameters of float32 alone.
        """
        half = half_type(self._grid.settings)
        if half is None:
            return MixedPrecisionPolicy()
        for name, module in self._root.named_modules():
            if isinstance(module, BATCH_OR_INSTANCE_NORM) and module.affine and module.track_running_stats:
                raise NotServed(
                    f"master_weights without stages does not serve {type(module).__name__} ({name!r}) in sharded models",
                    hint="leave out master_weights, or use group norms",
                )
        return MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32)

    def _stand_in(self, waiting: frozenset[str]) -> None:
        """Parameters without values go out of the model; each has one of its shape on the meta device in its place."""
        if not waiting:
            return
        with torch.DisableTorchFunctionSubclass():
            refuse_hooks(self._root)
            away = {id(one): one for name, one in self._root.named_parameters() if name in waiting}
            metas = {
                key: nn.Parameter(torch.empty(one.shape, dtype=one.dtype, device="meta"), requires_grad=one.requires_grad)
                for key, one in away.items()
            }
        for module in self._root.modules():
            for name, parameter in parameters_in(module).items():
                if id(parameter) in metas:
                    parameters_in(module)[name] = metas[id(parameter)]
        for one in away.values():
            self._absent.find(one, IN_SHARDS)


class UndividedModel:
    """A model of which nothing is divided; see `joint_steps.Parted`. Its blocks are looked at, else its parts."""

    def __init__(self, root: nn.Module) -> None:
        self.inputs: list[tuple[str, torch.Tensor]] = []
        self.running = False
        self._root = root

    def installed(self) -> AbstractContextManager[None]:
        """A context for a step."""
        return nullcontext()

    @contextmanager
    def watched(self, watch: Watch | None) -> Iterator[None]:
        """A context in which `watch` looks at the blocks."""
        forwards = []
        if watch is not None:
            names = first_names(self._root)
            looked_at = blocks(self._root, set(names.values())) or list(self._root.children())
            forwards = [_Watched(names[id(one)], one, watch) for one in looked_at if not is_compiled(one)]
        for one in forwards:
            one.install()
        try:
            yield
        finally:
            for one in reversed(forwards):
                one.remove()

    def backward(self) -> AbstractContextManager[None]:
        """A context for the backward of a microbatch."""
        return nullcontext()

    def left(self, value: Any) -> Any:
        """Returns what the step function returned."""
        return value

    def begin(self) -> None:
        """Before the microbatches of a step."""

    def forget(self) -> None:
        """After a microbatch."""


class _Watched(StandIn):
    """The forward of a block that is looked at."""

    def __init__(self, name: str, module: nn.Module, watch: Watch) -> None:
        super().__init__(name, module)
        self._watch = watch

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._watch.around(self.name, self.native)(*args, **kwargs)
