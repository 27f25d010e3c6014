"""Steps of a model without stages whose parameters are sharded over ranks: FSDP2, or HSDP where shards are replicated.

Each block of a list of blocks is one unit, which is gathered when it runs; all other parameters are another unit. torch
averages gradients after each microbatch, so that a rank never holds all of them.

A gather needs all ranks. A list is therefore divided only if every rank has run each of its blocks for its first
microbatch, and the ranks compare after each forward which blocks they ran. In the sums of gradients a rank takes part with
zeros where it has not used a parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from ..errors import NotServed, PipelineError
from ..halves import half_type
from ..plan.calltree import CallTree
from ..plan.plan_file import Plan
from ..record.naming import first_names
from ..record.subject import Backward, Subject
from .batch import Microbatch, Ran, parts_of
from .checking import same_everywhere
from .holding import Holding
from .losses import Losses, called
from .placement import broadcast_buffers, broadcast_state
from .suitable import check_values


class ShardedEngine:
    """Takes the place of `steps.Engine`.

    Args:
        holding: of the user's model.
        attach: tells the model that the user sees where its `backward` goes.
        loss_scale: gives the factor of the loss.
        on_shards: takes `id` -> name of the parameters before, and name -> parameter after they were sharded.
        average: whether to divide each microbatch's loss by their number.
        buffers: whether replicas take the buffers of replica 0 before each training step.

    Raises:
        PipelineError: the degree does not divide the number of ranks.
    """

    def __init__(
        self,
        holding: Holding,
        attach: Callable[[Backward | None], None],
        *,
        loss_scale: Callable[[], float],
        on_shards: Callable[[Mapping[int, str], Mapping[str, nn.Parameter]], None],
        average: bool,
        buffers: bool,
    ) -> None:
        self.holding = holding
        self.grid = grid = holding.grid
        self.root = holding.root
        self.plan: Plan | None = None
        self._attach = attach
        self._loss_scale = loss_scale
        self._on_shards = on_shards
        self._average = average
        self._buffers = buffers
        self._ran: list[str] = []
        self._used: set[int] = set()
        degree = grid.settings.sharded_data_parallel_degree
        if grid.world % degree:
            raise PipelineError(f"sharded_data_parallel_degree = {degree} does not divide {grid.world} ranks")

    def run(
        self,
        function: Callable[..., Any],
        microbatches: list[Microbatch],
        rows: Callable[[Microbatch], int | None] | None = None,
    ) -> Ran:
        """What `function` returned for each microbatch. Collective.

        Args:
            rows: tells how many rows a microbatch has, by which its loss counts.
        """
        same_everywhere(self.grid, self._trained(), "which parameters are trained")
        if not self.holding.partitioned:
            self._shard(function, microbatches[0])
        without = [parameter for parameter in self.root.parameters() if parameter.grad is None]
        self._used.clear()
        losses = Losses()
        scale = (1 / len(microbatches) if self._average else 1.0) * self._loss_scale()
        if self._buffers and self.root.training:
            broadcast_buffers(self.root, self.grid)
        results = []
        parts = parts_of(microbatches, rows)
        for part, microbatch in zip(parts, microbatches, strict=True):
            results.append(called(function, microbatch, losses, self._attach))
            same_everywhere(self.grid, repr((self._ran, losses.any)).encode(), f"which blocks they run ({self._ran})")
            self._ran.clear()
            total = losses.total()
            if total is not None:
                (total * (scale * part if self._average else scale)).backward()
            del total
        self._forget_unused(without)
        return Ran(results, parts)

    def _kinds(self) -> MixedPrecisionPolicy:
        """Types of what is gathered and summed; shards keep theirs.

        Raises:
            NotServed: a module has statistics of float32, which go together with parameters of float32 alone.
        """
        half = half_type(self.grid.settings)
        if half is None:
            return MixedPrecisionPolicy()
        for name, module in self.root.named_modules():
            if isinstance(module, nn.modules.batchnorm._NormBase) and module.affine and module.track_running_stats:
                raise NotServed(
                    f"master_weights without stages does not serve {type(module).__name__} ({name!r}) in sharded models",
                    hint="leave out master_weights, or use group norms",
                )
        return MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32)

    def _trained(self) -> bytes:
        return bytes(parameter.requires_grad for parameter in self.root.parameters())

    def _forget_unused(self, parameters: list[nn.Parameter]) -> None:
        """What no rank has used gets no gradient: the zeros of the sum go."""
        used = torch.tensor([float(id(parameter) in self._used) for parameter in parameters])
        if len(parameters):
            dist.all_reduce(used, group=self.grid.control_group)
        for parameter, somewhere in zip(parameters, used.tolist(), strict=True):
            if not somewhere:
                parameter.grad = None

    def _ran_everywhere(self, function: Callable[..., Any], microbatch: Microbatch) -> set[str]:
        """Modules that every rank runs for its first microbatch."""
        args, kwargs = microbatch
        subject = Subject(self.root, function, self._attach, args, kwargs, self.grid.device)
        with subject.untouched(), torch.no_grad():
            self._attach(Losses())
            try:
                calls = CallTree(self.root)
                with calls.watching():
                    mine = calls.run(function, *subject.inputs()).names()
            finally:
                self._attach(None)
        found: list[Any] = [None] * self.grid.world
        dist.all_gather_object(found, mine, group=self.grid.control_group)
        return set.intersection(*found)

    def _watch(self, name: str, module: nn.Module) -> None:
        """Notes when the block runs, and fills the gradients that it has not computed."""
        module.register_forward_pre_hook(lambda _module, _args: self._ran.append(name), prepend=True)
        state = module._get_fsdp_state()  # type: ignore[operator,union-attr]
        for group in getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]:
            if group is not None:
                group.post_backward = self._filling(group, group.post_backward)

    def _filling(self, group: Any, native: Callable[..., None]) -> Callable[..., None]:
        def post_backward(*unused: Any) -> None:
            for one in group.fsdp_params:
                if not hasattr(one, "_unsharded_param") or not one.unsharded_param.requires_grad:
                    continue
                if one.unsharded_param.grad is not None or one.unsharded_accumulated_grad is not None:
                    self._used.add(id(one.sharded_param))
                else:
                    one.unsharded_param.grad = torch.zeros_like(one.unsharded_param)
            native(*unused)

        return post_backward

    def _shard(self, function: Callable[..., Any], microbatch: Microbatch) -> None:
        check_values(self.root)
        names = self.holding.names
        self.root.to(self.grid.device)
        broadcast_state(self.root, self.grid)
        ran = self._ran_everywhere(function, microbatch)
        world, degree = self.grid.world, self.grid.settings.sharded_data_parallel_degree
        kind = self.grid.device.type
        if world == degree:
            mesh = init_device_mesh(kind, (degree,), mesh_dim_names=("shard",))
        else:
            mesh = init_device_mesh(kind, (world // degree, degree), mesh_dim_names=("replicate", "shard"))
        every = first_names(self.root)
        divided = blocks(self.root, ran)
        kinds = self._kinds()
        for block in divided:
            fully_shard(block, mesh=mesh, mp_policy=kinds)
        fully_shard(self.root, mesh=mesh, mp_policy=kinds)
        for module in [*divided, self.root]:
            self._watch(every[id(module)], module)
        self._on_shards(names, dict(self.root.named_parameters()))
        self.holding.settle()


def blocks(root: nn.Module, ran: set[str]) -> list[nn.Module]:
    """The entries of lists and sequences of modules that share no parameter with the rest, outermost lists only.

    Args:
        ran: names of modules that run for every microbatch; a list with another entry stays whole.
    """
    names = first_names(root)
    count: dict[int, int] = {}
    for _, parameter in root.named_parameters(remove_duplicate=False):
        count[id(parameter)] = count.get(id(parameter), 0) + 1

    def alone(module: nn.Module) -> bool:
        inside: dict[int, int] = {}
        for _, parameter in module.named_parameters(remove_duplicate=False):
            inside[id(parameter)] = inside.get(id(parameter), 0) + 1
        return bool(inside) and all(count[key] == number for key, number in inside.items())

    found: list[nn.Module] = []

    def visit(module: nn.Module) -> None:
        for child in [module] if isinstance(module, nn.Sequential) else module.children():
            if isinstance(child, (nn.ModuleList, nn.Sequential)):
                entries = [entry for entry in child if alone(entry)]
                if all(names[id(entry)] in ran for entry in entries):
                    found.extend(entries)
            else:
                visit(child)

    visit(root)
    return list(dict.fromkeys(found))
