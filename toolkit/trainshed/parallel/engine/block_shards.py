"""Parameters of a model without stages, sharded over ranks block by block: FSDP2, or HSDP where shards are replicated.

Each block of a list of blocks is one unit, which is gathered when it runs; all other parameters are another unit. torch
averages gradients after each microbatch, so that a rank never holds all of them.

A gather needs all ranks. A list is therefore divided only if every rank has run each of its blocks for its first
microbatch, and the ranks compare after each forward which blocks they ran. In the sums of gradients a rank takes part with
zeros where it has not used a parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from ..ground.errors import PipelineError, TorchLacks
from ..ground.exchanges import length_of, start_of
from ..ground.grid import Grid
from ..ground.shards import refuse_hook, shard_axis, tensor_axis
from ..ground.torch_private import base_of, parameters_in, reshard, shard_groups
from ..ground.tree import map_leaves, tensors
from ..plan.calltree import CallTree
from ..tracing.naming import first_names
from ..tracing.subject import Backward, Subject
from .batch import Microbatch
from .checking import same_everywhere
from .losses import Losses

Hook = Callable[..., Any]


class BlockShards:
    """Shards the parameters that a model has.

    is_off: whether nothing is gathered now when a module runs.

    Args:
        mesh: of one axis, or of replicas and shards.
        kinds: types of what is gathered and summed.
        ran: names of modules that run for every microbatch.

    Raises:
        PipelineError: a parameter has a gradient hook, or a gradient.
    """

    def __init__(self, root: nn.Module, grid: Grid, mesh: DeviceMesh, kinds: MixedPrecisionPolicy, ran: set[str]) -> None:
        self._root, self._grid = root, grid
        self._ran: list[str] = []
        self._used: set[int] = set()
        self.is_off = False
        every = first_names(root)
        refuse_hooks(root)
        for name, parameter in root.named_parameters():
            if parameter.grad is not None:
                raise PipelineError(
                    f"{name!r} has a gradient from before the first step, which sharding does not keep",
                    hint="call optimizer.zero_grad() before the first step",
                )
        units = [*blocks(root, ran), root]
        for unit in units:
            with _hooked_by(unit, self._entering, self._leaving):
                fully_shard(unit, mesh=mesh, mp_policy=kinds, shard_placement_fn=partial(_cut, mesh.size(-1)))
            type(unit).__deepcopy__ = _refuse_copy  # type: ignore[attr-defined]
        self._groups = [group for unit in units for group in shard_groups(unit)]
        for unit in units:
            unit.register_forward_hook(self._without_views, prepend=True)
            name = every[id(unit)]
            unit.register_forward_pre_hook(lambda _module, _args, name=name: self._ran.append(name), prepend=True)
        for group in self._groups:
            group.post_backward = self._filling(group, group.post_backward)
        # torch leaves the last unit whole after a forward, for the backward that follows.
        root.register_forward_hook(lambda *_: None if torch.is_grad_enabled() else self.close())

    @property
    def each(self) -> Iterator[Any]:
        """torch's own objects, one for each parameter."""
        return (one for group in self._groups for one in group.fsdp_params)

    def begin(self) -> None:
        """Before the backward of a step."""
        self.close()
        self._ran.clear()
        self._used.clear()

    def compare(self, trains: bool) -> None:
        """After the forward of a microbatch. Collective over all ranks.

        Args:
            trains: whether there is a loss.

        Raises:
            PipelineError: the ranks did not run the same blocks.
        """
        ran = self._ran
        same_everywhere(self._grid, repr((ran, trains)).encode(), f"which blocks they run ({ran})", self._grid.everyone)
        ran.clear()

    @property
    def last(self) -> str:
        """Name of the block that has begun last in this microbatch, "" before the first."""
        return next((name for name in reversed(self._ran) if name), "")

    def used(self, parameters: Sequence[nn.Parameter]) -> list[bool]:
        """Returns whether some rank has computed a gradient since `begin`; others have added zeros. Collective over all."""
        used = torch.tensor([float(id(parameter) in self._used) for parameter in parameters])
        if len(parameters):
            dist.all_reduce(used, group=self._grid.everyone)
        return [bool(number) for number in used.tolist()]

    def close(self) -> None:
        """The modules have shards, also of what was left whole."""
        for group in self._groups:
            reshard(group)

    def let_go(self) -> None:
        """After a step that failed: no connection is kept here, so that nobody waits for this rank."""
        for group in self._groups:
            for name in ("shard_process_group", "replicate_process_group", "reduce_scatter_process_group"):
                vars(group.mesh_info).pop(name, None)

    def fill(self, values: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Gives parameters their values that were on the meta device when they were sharded, one after the other.

        Args:
            values: whole ones, by name.
        """
        known = {id(one.sharded_param): one for one in self.each}
        homes = {name: known[id(parameter)] for name, parameter in self._root.named_parameters() if id(parameter) in known}
        places = places_of(self._root)
        for name, value in values:
            one, old = homes[name], homes[name].sharded_param
            mesh, axis = old.device_mesh, old.placements[-1].dim
            place = value.shape[axis], mesh.size(-1), mesh.get_local_rank(mesh.ndim - 1)
            part = value.narrow(axis, start_of(*place), length_of(*place)).clone(memory_format=torch.contiguous_format)
            del value
            with torch.no_grad():
                shard = DTensor.from_local(part, mesh, old.placements, run_check=False, shape=old.shape, stride=old.stride())
                new = nn.Parameter(shard, requires_grad=old.requires_grad)
            for module, key in places[id(old)]:
                parameters_in(module)[key] = new
            one.reset_sharded_param()

    @contextmanager
    def off(self) -> Iterator[None]:
        """Within this context nothing is gathered when a module runs."""
        self.close()
        ran, was_off, self.is_off = list(self._ran), self.is_off, True
        try:
            yield
        finally:
            self._ran[:], self.is_off = ran, was_off

    def _entering(self, native: Hook, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """In the place of torch's hook, which gathers a unit's parameters; what it returns are the unit's arguments."""
        return None if self.is_off else native(module, args, kwargs)

    def _leaving(self, native: Hook, module: nn.Module, args: Any, output: Any) -> None:
        """In the place of torch's hook, which looks for the tensors in a unit's output whose gradients begin its backward.

        It overlooks those in objects that its trees do not know.
        """
        if not self.is_off:
            every = tensors(output, objects=True) if torch.is_grad_enabled() else []
            native(module, args, [self._held(one) for one in every])

    def _without_views(self, _module: nn.Module, _args: Any, output: Any) -> Any:
        """Before all hooks of the script: torch overlooks tensors that are views if they are changed in place."""
        if self.is_off or not torch.is_grad_enabled():
            return None
        views = any(_is_view(self._held(one)) for one in tensors(output, objects=True))
        return map_leaves(self._alone, output, objects=True) if views else None

    def _held(self, tensor: torch.Tensor) -> torch.Tensor:
        """What takes part in autograd of a tensor in a unit's output."""
        return tensor

    def _alone(self, leaf: Any) -> Any:
        """A tensor of its own in the place of a view."""
        return leaf.clone() if isinstance(leaf, torch.Tensor) and _is_view(leaf) else leaf

    def _filling(self, group: Any, native: Callable[..., None]) -> Callable[..., None]:
        """Fills the gradients that this rank has not computed."""

        def post_backward(*unused: Any) -> None:
            for one in group.fsdp_params:
                if not hasattr(one, "unsharded_param") or not one.unsharded_param.requires_grad:
                    continue
                if one.unsharded_param.grad is not None or one.unsharded_accumulated_grad is not None:
                    self._used.add(id(one.sharded_param))
                else:
                    one.unsharded_param.grad = torch.zeros_like(one.unsharded_param)
            native(*unused)

        return post_backward


def _cut(degree: int, parameter: nn.Parameter) -> Shard:
    """The same for all ranks of a tensor group, whose parts may differ in length."""
    sizes, axis = list(parameter.shape), tensor_axis(parameter)
    if axis is not None:
        sizes[axis] = length_of(sizes[axis], parameter.device_mesh.size(), 0)  # type: ignore[attr-defined]
    return Shard(shard_axis(sizes, degree, divided=axis))


def refuse_hooks(root: nn.Module) -> None:
    """Before a step.

    Raises:
        PipelineError: a parameter has a gradient hook.
    """
    for name, parameter in root.named_parameters():
        refuse_hook(name, parameter, "change the gradient after the step, or leave out sharded_data_parallel_degree")


def _refuse_copy(module: nn.Module, _memo: Any) -> NoReturn:
    raise PipelineError(
        f"{type(module).__name__.removeprefix('FSDP')} is sharded among ranks and cannot be copied",
        hint="copy the model before the first step, or build it again and load model.state_dict(), which all ranks call",
    )


@contextmanager
def _hooked_by(unit: nn.Module, entering: Hook, leaving: Hook) -> Iterator[None]:
    """Within this context who registers a hook of the unit's forward gets ours around it, which is given it."""
    made = 0

    def around(native: Hook, ours: Hook) -> Hook:
        def register(hook: Hook, **options: Any) -> Any:
            nonlocal made
            made += 1
            return native(partial(ours, hook), **options)

        return register

    own = vars(unit)
    own["register_forward_pre_hook"] = around(unit.register_forward_pre_hook, entering)
    own["register_forward_hook"] = around(unit.register_forward_hook, leaving)
    try:
        yield
    finally:
        del own["register_forward_pre_hook"], own["register_forward_hook"]
    if made != 2:
        raise TorchLacks(f"torch {torch.__version__} shards a module with {made} hooks in its forward, and not with 2")


def places_of(root: nn.Module) -> dict[int, list[tuple[nn.Module, str]]]:
    """Where each parameter is, by `id`: its modules, and its names there."""
    found: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in root.modules():
        for name, parameter in parameters_in(module).items():
            found.setdefault(id(parameter), []).append((module, name))
    return found


def _is_view(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad and base_of(tensor) is not None


def run_by_all(
    root: nn.Module,
    grid: Grid,
    attach: Callable[[Backward | None], None],
    function: Callable[..., Any],
    microbatches: Sequence[Microbatch],
) -> set[str]:
    """Modules that every rank runs for each of these microbatches. Collective over all ranks."""
    mine: set[str] | None = None
    for args, kwargs in microbatches:
        subject = Subject(root, function, attach, args, kwargs, grid.device)
        with subject.untouched(), torch.no_grad():
            attach(Losses())
            try:
                calls = CallTree(root)
                with calls.watching():
                    names = calls.run(function, *subject.inputs()).names()
            finally:
                attach(None)
        mine = set(names) if mine is None else mine & set(names)
    found: list[Any] = [None] * grid.world
    dist.all_gather_object(found, mine, group=grid.control_group)
    return set.intersection(*found)


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
