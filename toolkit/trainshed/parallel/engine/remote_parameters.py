"""Parameters that other ranks hold: they keep their names, shapes and settings, take no memory, and cannot be read.

A read would give not-a-number here and the values elsewhere: a checkpoint, an average or an evaluation that looks right and
is not. What needs values is refused with words; what an optimizer's loop over all parameters does goes on.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import nn
from torch.utils.dlpack import from_dlpack, to_dlpack

from ..ground.errors import PipelineError
from ..ground.torch_private import LOADS, SHALLOW
from ..ground.tree import map_leaves, tensors

# What a loop over all parameters may ask or set. Attributes are facts, too, but for those that are tensors.
_FACTS = frozenset(
    {
        *("size", "dim", "ndimension", "stride", "numel", "nelement", "element_size", "storage_offset", "__len__"),
        *("is_floating_point", "is_complex", "is_contiguous", "is_signed", "is_inference", "is_same_size", "get_device"),
        *("requires_grad_", "__set__", "__delete__", "register_hook", "register_post_accumulate_grad_hook", "has_names"),
        *("untyped_storage", "data_ptr", "__dir__", SHALLOW),
    }
)
# New tensors of the same shape.
_MAKERS = frozenset(
    {
        *("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like"),
        *("new_empty", "new_zeros", "new_ones", "new_full", "new_tensor"),
    }
)
# In place of a rank's number. NOT_YET: no values have been made, on any rank; IN_SHARDS: the values are in another tensor,
# of which this rank has a part.
_SEVERAL, NOT_YET, IN_SHARDS = -1, -2, -3
_NOWHERE = frozenset({NOT_YET, IN_SHARDS})
_TENSORS = frozenset({"T", "mT", "H", "mH", "real", "imag"})
# In-place operations that draw random numbers, and torch.nn.init's. They draw here as well: what is drawn next is then the
# same on all ranks.
_RANDOM = frozenset(
    {
        *("normal_", "uniform_", "random_", "bernoulli_", "exponential_", "cauchy_", "log_normal_", "geometric_"),
        *(
            "xavier_uniform_",
            "xavier_normal_",
            "kaiming_uniform_",
            "kaiming_normal_",
            "trunc_normal_",
            "orthogonal_",
            "sparse_",
        ),
    }
)
# Who reads gradients to update or to clip them, which counts all stages; accelerate and Trainer look for DTensors first.
_CLIPPERS = ("torch.", "trainshed.parallel.", "accelerate.", "transformers.trainer")
_TOTALS = frozenset({"get_total_norm", "clip_grads_with_norm_"})


class AbsentGradient(torch.Tensor):
    """The gradient of a parameter of another rank, and what is computed from it: known are its shape and that rank.

    An update by hand (`parameter -= 0.1 * parameter.grad`) then goes by here, and is done where the parameter is.
    """

    _home: tuple[str, int]
    _shown: torch.device

    @classmethod
    def of(cls, parameter: Any) -> AbsentGradient:
        """The gradient of an absent parameter."""
        with torch.DisableTorchFunctionSubclass():
            meta = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
        return cls._like(meta, parameter.device, *parameter._home)

    @classmethod
    def _like(cls, meta: torch.Tensor, device: torch.device, name: str, rank: int) -> AbsentGradient:
        made = meta.as_subclass(cls)  # torch puts no such tensor into one that has values
        made._shown, made._home = device, (name, rank)
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Gives what has a shape and no values, and refuses whatever would be read here."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "?")
        attribute = getattr(getattr(func, "__self__", None), "__name__", "") if name == "__get__" else ""
        if attribute == "device":
            return args[0]._shown
        if name in _FACTS or (attribute and attribute not in _TENSORS | {"data", "grad"}):
            with torch.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if _in_place(name):
            return args[0] if _changes_itself(name, args, kwargs) else _refuse_gradient((args, kwargs))
        homes = {one._home for one in _absent((args, kwargs))}  # type: ignore[attr-defined]
        try:
            with torch.DisableTorchFunctionSubclass():
                result = func(*map_leaves(_shape_of, args), **map_leaves(_shape_of, kwargs))
        except (RuntimeError, NotImplementedError, TypeError):
            result = None
        if not isinstance(result, torch.Tensor):
            _refuse_gradient((args, kwargs))
        ranks = {rank for _, rank in homes}
        device = next(one._shown for one in tensors((args, kwargs)) if isinstance(one, AbsentGradient))
        return cls._like(result, device, min(homes)[0], ranks.pop() if len(ranks) == 1 else _SEVERAL)


def _shape_of(leaf: Any) -> Any:
    with torch.DisableTorchFunctionSubclass():
        return torch.empty(leaf.shape, dtype=leaf.dtype, device="meta") if isinstance(leaf, torch.Tensor) else leaf


class AbsentParameter(nn.Parameter):
    """A parameter of another rank; `_home` is its name and that rank's number in the pipeline."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Answers what is known, lets go by what its own rank does, and refuses all else."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "?")
        if name == "__get__":
            attribute = getattr(getattr(func, "__self__", None), "__name__", "")
            if attribute == "data":
                return args[0]
            if attribute in _TENSORS:
                _refuse(args, attribute)
            if attribute == "grad" and args[0]._home[1] == IN_SHARDS and not _asked_by_optimizer():
                _refuse(args, "grad")
            if attribute == "grad" and args[0]._home[1] not in _NOWHERE and not _asked_by_torch():
                return AbsentGradient.of(args[0])
        elif name == "__set__" and isinstance(args[1], AbsentGradient):
            return None if args[1]._home[1] == args[0]._home[1] else _refuse_gradient(args)
        elif name not in _FACTS and name not in _MAKERS:
            if name.startswith("_foreach_") and name.endswith("_"):
                return _change_those_here(func, args, kwargs)
            if not args and "tensor" in kwargs:  # torch.nn.init hands on all by name
                args = (kwargs.pop("tensor"),)
            if _changes_itself(name, args, kwargs):
                if name in _RANDOM:
                    func(torch.empty(args[0].shape, dtype=args[0].dtype, device=args[0].device), *args[1:], **kwargs)
                return args[0]
            if _stays_as_it_is(name, args, kwargs):
                return args[0]
            if any(isinstance(one, AbsentGradient) for one in tensors((args, kwargs))):
                return AbsentGradient.__torch_function__(func, types, args, kwargs)
            _refuse((args, kwargs), name)
        with torch.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    def __deepcopy__(self, memo: Any) -> NoReturn:
        """Refused."""
        _refuse(self, "a copy")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refused."""
        _refuse(self, "pickle")

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        name, rank = self._home  # type: ignore[attr-defined]
        where = {NOT_YET: "without values yet", IN_SHARDS: "sharded"}.get(rank, f"on rank {rank} of the pipeline")
        return f"AbsentParameter({name!r}, {list(self.shape)}, {where})"


def _changes_itself(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an operation changes a parameter by numbers and by tensors that its own rank has as well (`clamp_`,
    `mul_(0.9)`, `copy_(other)`): that rank does the same."""
    if not _in_place(name) or name == "set_" or not isinstance(args[0], (AbsentParameter, AbsentGradient)):
        return False
    if args[0]._home[1] in _NOWHERE:  # type: ignore[union-attr]
        return False
    if name == "copy_" and sys._getframe(2).f_code.co_name == LOADS:
        return False  # on one rank alone it would load a part
    homes = {one._home[1] for one in _absent((args[1:], kwargs))}  # type: ignore[attr-defined]
    return homes <= {args[0]._home[1]}  # type: ignore[union-attr]


def _in_place(name: str) -> bool:
    if name.startswith("__i") and name.endswith("__"):
        return name not in ("__index__", "__int__", "__invert__", "__iter__")
    return (name.endswith("_") and not name.endswith("__")) or name == "__setitem__"


def _absent(where: Any) -> list[torch.Tensor]:
    return [one for one in tensors(where) if isinstance(one, (AbsentParameter, AbsentGradient))]


def _change_those_here(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """An operation on many tensors at once, for those that are here."""
    here = [number for number, one in enumerate(args[0]) if not isinstance(one, AbsentParameter)]

    def chosen(given: Any) -> Any:
        return [given[number] for number in here] if isinstance(given, (list, tuple)) else given

    mine = [chosen(one) for one in args]
    named = {key: chosen(one) for key, one in kwargs.items()}
    if any(isinstance(one, AbsentParameter) for one in tensors((mine, named))) or any(
        isinstance(one, AbsentParameter) and one._home[1] in _NOWHERE  # type: ignore[attr-defined]
        for one in args[0]
    ):
        _refuse((args, kwargs), func.__name__)
    if here:
        func(*mine, **named)


def _stays_as_it_is(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether it is moved to where it is (`module.to(x.device)`)."""
    if name != "to" or not isinstance(args[0], AbsentParameter):
        return False
    like = torch.empty(0, dtype=args[0].dtype, device=args[0].device)
    moved = like.to(*args[1:], **kwargs)
    return moved.dtype == like.dtype and moved.device == like.device


def _asked_by_torch() -> bool:
    """Whether it is torch, an optimizer of any origin, or a library that leaves clipping to torch."""
    at: Any = sys._getframe(2)
    if at.f_globals.get("__name__", "").startswith(_CLIPPERS):
        return True
    # `get_total_norm` takes the list of gradients that there are; the list may be made in a frame of its own.
    for near in (at, at.f_back):
        if near is not None and not _TOTALS.isdisjoint(near.f_code.co_names):
            return True
    while at is not None:
        if at.f_globals.get("__name__") == "torch.optim.optimizer":
            return True
        at = at.f_back
    return False


def _asked_by_optimizer() -> bool:
    """Whether it is an optimizer that forgets gradients, and follows to the shards before it reads some."""
    return str(sys._getframe(2).f_globals.get("__name__", "")).startswith("torch.optim.")


def _refuse(where: Any, what: str) -> NoReturn:
    name, rank = _first(where)._home
    if rank == NOT_YET:
        raise PipelineError(
            f"parameter {name!r} has no values before the first step ({what})",
            hint="the model was built with delayed_initialization(): what changes or reads parameters belongs inside that "
            "block, or after the first step; load_checkpoint() may come before it",
        )
    if rank == IN_SHARDS:
        raise PipelineError(
            f"parameter {name!r} was sharded in the first step, and this is the tensor of before ({what})",
            hint="take parameters from model.named_parameters() again, after the first step and between steps",
        )
    raise PipelineError(
        f"parameter {name!r} is on rank {rank} of the pipeline, and cannot be read on this one ({what})",
        hint="model.state_dict(), called on all ranks, gives the whole model, and model.local_named_parameters() what is "
        "here; model.load_state_dict() loads; the model runs in functions with @step",
    )


def _refuse_gradient(where: Any) -> NoReturn:
    gradients = [one for one in _absent(where) if isinstance(one, AbsentGradient)]
    name, rank = gradients[0]._home
    elsewhere = f"on rank {rank}" if rank != _SEVERAL else "on other ranks"
    raise PipelineError(
        f"the gradient of {name!r} is {elsewhere} of the pipeline, and cannot be read on this one",
        hint="torch.nn.utils.clip_grad_norm_ and get_total_norm count all stages; model.local_parameters() are those here",
    )


def _first(where: Any) -> Any:
    """The first absent parameter in an operation's arguments."""
    waiting = [where]
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, AbsentParameter):
            return one
        if isinstance(one, (tuple, list)):
            waiting.extend(one)
        elif isinstance(one, dict):
            waiting.extend(one.values())
    raise PipelineError("a parameter of another rank is read")


class Absent:
    """The absent parameters of a rank: one element in memory each, shown with the full shape."""

    def __init__(self) -> None:
        self._absent: list[tuple[nn.Parameter, torch.Tensor, tuple[int, ...]]] = []  # what stands for it, its own strides

    def give_up(self, root: nn.Module, homes: Mapping[str, int], device: torch.device, *, move: bool = True) -> None:
        """Moves what is local to the device and frees the rest.

        Args:
            homes: name -> rank in the pipeline, of the parameters that are not here.
            move: False leaves where it is what is local.
        """
        with torch.inference_mode(False):  # the first step may be an evaluation; training comes later
            for name, parameter in root.named_parameters():
                if isinstance(parameter, AbsentParameter):
                    continue
                if name not in homes:
                    if move:
                        parameter.data = parameter.data.to(device)
                    continue
                value = math.nan if parameter.is_floating_point() else 0
                element = torch.full((1,) * max(parameter.dim(), 1), value, dtype=parameter.dtype, device=device)
                stride = parameter.stride()
                shown = element.expand(parameter.shape) if parameter.dim() else element.reshape(())
                self._absent.append((parameter, shown, stride))
                parameter.data = shown
                parameter.grad = None
                parameter._home = (name, homes[name])  # type: ignore[attr-defined]
                parameter.__class__ = AbsentParameter
            for buffer in root.buffers() if move else ():
                buffer.data = buffer.data.to(device)

    def adopt(self, emptied: Sequence[tuple[nn.Parameter, tuple[int, ...]]]) -> None:
        """Takes parameters that are absent already, with the strides of their values."""
        with torch.DisableTorchFunctionSubclass():
            self._absent += [(one, one.data, stride) for one, stride in emptied]

    @staticmethod
    def find(parameter: nn.Parameter, home: int) -> None:
        """An absent parameter is on this rank of the pipeline."""
        parameter._home = (parameter._home[0], home)  # type: ignore[attr-defined]

    def take_back(self, parameter: nn.Parameter, value: torch.Tensor) -> None:
        """An absent parameter is here from now on."""
        self._absent = [one for one in self._absent if one[0] is not parameter]
        with torch.inference_mode(False):
            parameter.__class__ = nn.Parameter
            parameter.data = value
            del parameter._home  # type: ignore[attr-defined]

    @contextmanager
    def as_zeros(self) -> Iterator[None]:
        """Within the block they are zeros that can be read: a forward is recorded for its shapes alone.

        They lie in memory as on their own ranks, since the strides of what is made from them are recorded, too; but all of
        them in the same memory.
        """
        with torch.inference_mode(False):
            spans = [_span(shown, stride) for _, shown, stride in self._absent]
            device = self._absent[0][1].device if self._absent else None
            memory = torch.zeros(max(spans, default=0), dtype=torch.uint8, device=device)
            for (parameter, shown, stride), span in zip(self._absent, spans, strict=True):
                own = from_dlpack(to_dlpack(memory))[:span].view(shown.dtype)  # a storage of its own
                parameter.__class__ = nn.Parameter
                parameter.data = own.as_strided(shown.shape, stride)
        try:
            yield
        finally:
            for parameter, shown, _ in self._absent:
                parameter.data = shown
                parameter.__class__ = AbsentParameter


def _span(shown: torch.Tensor, stride: tuple[int, ...]) -> int:
    """Bytes from the first to the last element of a tensor with these strides."""
    if not shown.numel():
        return 0
    last = sum((length - 1) * step for length, step in zip(shown.shape, stride, strict=True))
    return (last + 1) * shown.element_size()
