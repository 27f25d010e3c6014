"""Numbers that scripts read of divided tensors: the whole tensor's.

torch's DTensor keeps `p.grad.norm()` as a part that each rank has of it, and gives that part to whoever asks for a number.
A clipping by hand, a trust ratio, a check for infinities then go by other numbers on each rank, without a word. So what
makes a number of a divided tensor, or leaves torch with its values, gathers it first.
"""

from __future__ import annotations

import zlib
from functools import partial
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor

from .engine.alarm import waited_in_vain
from .engine.object_collectives import READ, replicas_agree
from .ground.errors import PipelineError
from .ground.grid import Grid
from .ground.schemas import schema_of
from .ground.shards import whole
from .ground.torch_private import TAIL, base_of, become, dispatcher, operation_handlers, plain_on_all_ranks
from .ground.tree import map_leaves
from .session import session

_aten = torch.ops.aten
# What cannot be divided, for its size goes by values, or it is a fact about all of them.
_UNDIVIDED = (
    _aten.allclose.default,
    _aten.masked_select.default,
    _aten.nonzero.default,
    _aten._unique2.default,
    _aten.unique_dim.default,
)
# torch adds up parts of norms as if they were parts of a sum, and of truths as if they were numbers.
_SUMS = (
    *(_aten.sum.default, _aten.sum.dim_IntList),
    *(_aten.any.default, _aten.any.dim, _aten.any.dims),
)
_TRUTHS = frozenset(_SUMS[2:])
# torch writes into whole tensors what it has made of one part, or asserts that it does not.
_PLACED = (
    *(_aten.index_add_.default, _aten.index_copy_.default, _aten.index_put_.default),
    *(_aten.index_fill_.int_Scalar, _aten.index_fill_.int_Tensor, _aten.scatter_add_.default),
    *(_aten.scatter_.src, _aten.scatter_.value),
)
# torch takes the mean of the means of parts, which may have different sizes.
_LOSSES = (
    *(_aten.mse_loss.default, _aten.smooth_l1_loss.default, _aten.huber_loss.default, _aten.soft_margin_loss.default),
    *(_aten.binary_cross_entropy.default, _aten.binary_cross_entropy_with_logits.default),
)
_LOSS_GRADIENTS = (
    *(_aten.mse_loss_backward.default, _aten.smooth_l1_loss_backward.default, _aten.huber_loss_backward.default),
    *(_aten.soft_margin_loss_backward.default, _aten.binary_cross_entropy_backward.default),
)
# What a script does to a divided tensor by a whole one of its shape, between steps.
_BESIDE = (
    *(_aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor, _aten.lerp.Scalar, _aten.copy_.default),
    *(_aten.add_.Tensor, _aten.sub_.Tensor, _aten.mul_.Tensor, _aten.lerp_.Scalar),
    *(_aten._foreach_lerp_.Scalar, _aten._foreach_add_.List, _aten._foreach_sub_.List, _aten._foreach_copy_.default),
)
_NONE, _MEAN = 0, 1  # torch's numbers of reductions


def install() -> None:
    """From now on numbers of DTensors are the whole tensor's. Where nothing is divided, nothing changes."""
    handlers = operation_handlers()
    handlers[_aten._local_scalar_dense.default] = _number
    handlers.update(dict.fromkeys(_UNDIVIDED, _undivided))
    handlers.update(dict.fromkeys(_SUMS, _sum))
    handlers.update(dict.fromkeys(_PLACED, _placed))
    handlers.update(dict.fromkeys(_BESIDE, _beside))
    handlers[_aten.pow_.Scalar] = _pow
    handlers.update(dict.fromkeys((*_LOSSES, *_LOSS_GRADIENTS), _loss))
    runs = dispatcher()
    if native := getattr(type(runs), TAIL, None):
        setattr(runs, TAIL, partial(_tail, native, runs))
    shown: Any = DTensor
    shown.tolist, shown.numpy, shown.__format__ = _tolist, _numpy, _format


def read(tensor: DTensor) -> torch.Tensor:
    """The whole tensor, for a number of it. Collective over the ranks that have parts.

    Raises:
        PipelineError: one of them does something else.
    """
    if all(isinstance(one, Replicate) for one in tensor.placements):
        return tensor.to_local()
    try:
        if session.grid is not None:
            _meet(session.grid, tensor)
        return whole(tensor)
    except RuntimeError as error:
        if not waited_in_vain(error):
            raise
        raise PipelineError(
            "this rank waited in vain for the others to read a number of a divided tensor",
            details=str(error),
            hint="read it on all ranks: leave out `if rank() == 0`, and print what was read on one of them",
        ) from error


def _meet(here: Grid, tensor: DTensor) -> None:
    """Where a mesh is all ranks, they meet where a step begins as well: one that does not read is then told at once.

    Raises:
        PipelineError: a rank does something else, or reads another tensor.
    """
    mesh: DeviceMesh = tensor.device_mesh
    everyone = mesh.size() == here.world and not here.left
    groups = [here.control_group] if everyone else mesh.get_all_groups()
    device = torch.device("cpu") if everyone else here.device
    facts = zlib.crc32(repr((tensor.shape, tensor.placements, tensor.dtype)).encode())
    for group in groups:
        if not replicas_agree(READ, facts, False, group, device)[0]:
            raise PipelineError(
                "the ranks read numbers of different tensors, each of which is divided among them",
                hint="go through the parameters in the same order on all ranks",
            )


def _number(_op: Any, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
    return read(args[0]).item()


def _sum(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """As torch's own; parts of norms are joined before, truths after."""
    given = args[0]
    if any(isinstance(one, Partial) and type(one) is not Partial for one in given.placements):
        given = _joined(given)
    found = _native(op, (given, *args[1:]), kwargs)
    return _joined(found) if op in _TRUTHS else found


def _pow(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """As torch's own, of norms whose parts are joined before: in place (`norm.square_()`) torch does not do it."""
    changed = args[0]
    if any(isinstance(one, Partial) for one in changed.placements):
        become(changed, _joined(changed))
    return _native(op, args, kwargs)


def _native(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """torch's own, which runs while ours is not there."""
    handlers = operation_handlers()
    ours = handlers.pop(op)
    try:
        return op(*args, **kwargs)
    finally:
        handlers[op] = ours


def _joined(tensor: DTensor) -> DTensor:
    """What ranks have found of it is joined; shards stay where they are."""
    kept = [Replicate() if isinstance(one, Partial) else one for one in tensor.placements]
    return tensor if kept == list(tensor.placements) else tensor.redistribute(placements=kept)


def _undivided(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return op(*(read(one) if isinstance(one, DTensor) else one for one in args), **kwargs)


def _whole_of(leaf: Any) -> Any:
    return read(leaf) if isinstance(leaf, DTensor) else leaf


def _placed(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A write to some places of a tensor: into the whole one, of which each rank keeps its part."""
    changed, rest = args[0], map_leaves(_whole_of, (args[1:], kwargs))
    if not isinstance(changed, DTensor):
        return op(changed, *rest[0], **rest[1])
    made = op(read(changed).clone(), *rest[0], **rest[1])
    parts = distribute_tensor(made, changed.device_mesh, changed.placements, src_data_rank=None)
    return changed.copy_(parts)


def _loss(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A mean over all numbers, and the gradient of one."""
    taken = schema_of(op).arguments
    names = [one.name for one in taken]
    given = {one.name: one.default_value for one in taken} | dict(zip(names, args, strict=False)) | kwargs
    if given["reduction"] != _MEAN:
        return _native(op, args, kwargs)
    given["reduction"] = _NONE
    if op in _LOSSES:
        return op(*given.values()).mean()
    size = given["self"]
    given["grad_output"] = torch.ones_like(size) * (given["grad_output"] / size.numel())
    return op(*given.values())


def _beside(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Takes a plain tensor beside a divided one for one that all ranks have alike. A copy of a parameter that a script moves
    between steps is one; what a batch was made to, in a step, is not.

    Raises:
        PipelineError: their shapes differ.
    """
    plain = None if session.in_step else _plain(args)
    if plain is None or session.updating:
        return _native(op, args, kwargs)
    if any(len({one.shape for one in tensors}) > 1 for tensors in _together(args)):
        raise PipelineError(
            f"{op} takes a parameter or gradient that is divided among ranks and a tensor of shape {tuple(plain.shape)} "
            "that is not",
            hint="use tensors of the parameter's own shape, the same on all ranks; or full_tensor(), which all ranks call",
        )
    with plain_on_all_ranks():
        return _native(op, args, kwargs)


def _plain(args: tuple[Any, ...]) -> torch.Tensor | None:
    """A tensor that is not divided; numbers are on all ranks."""
    flat = (one for each in args for one in (each if isinstance(each, (list, tuple)) else (each,)))
    found = (one for one in flat if isinstance(one, torch.Tensor) and not isinstance(one, DTensor) and one.dim())
    return next(found, None)


def _together(args: tuple[Any, ...]) -> list[list[torch.Tensor]]:
    """Tensors that are taken together: one group, or for lists of them one of each place."""
    lists = [each for each in args if isinstance(each, (list, tuple)) and each and isinstance(each[0], torch.Tensor)]
    groups = zip(*lists, strict=False) if lists else [args]
    return [[one for one in group if isinstance(one, torch.Tensor) and one.dim()] for group in groups]


def _tail(native: Any, runs: Any, op: Any, args: tuple[Any, ...], *facts: Any) -> Any:
    """The end of an operation. torch has added a whole number to a plain tensor (`total += p.grad.norm()`), and asserts that
    it does not; and does not say that it has changed a copy (`p.grad[0].zero_()`), and not the tensor.

    Raises:
        PipelineError: what was changed is a piece of a divided tensor that does not lie in its memory.
    """
    changed = args[0] if facts[-2] else None
    if isinstance(changed, DTensor):
        whole_one = base_of(changed)
        if isinstance(whole_one, DTensor) and _memory(whole_one) != _memory(changed):
            raise PipelineError(
                f"{op} changes a piece of a tensor that is divided among ranks, which is a copy here",
                hint="change the tensor as a whole, with torch.where or a mask of its shape: p.grad.mul_(mask)",
            )
    elif isinstance(changed, torch.Tensor):
        return changed
    return native(runs, op, args, *facts)


def _memory(tensor: DTensor) -> int:
    return tensor.to_local().untyped_storage().data_ptr()


def _tolist(tensor: Any) -> Any:
    return read(tensor.detach()).tolist()  # type: ignore[no-untyped-call]


def _numpy(tensor: DTensor, *, force: bool = False) -> Any:
    array = read(tensor).numpy(force=force)
    array.flags.writeable = False  # what is written there would not be in the tensor
    return array


def _format(tensor: DTensor, form: str) -> str:
    return format(tensor.item(), form) if not tensor.dim() else object.__format__(tensor, form)
