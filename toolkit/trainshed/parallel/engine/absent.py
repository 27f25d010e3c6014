"""Parameters that other ranks hold: they keep their names, shapes and settings, take no memory, and cannot be read.

A read would give not-a-number here and the values elsewhere: a checkpoint, an average or an evaluation that looks right and
is not. What needs values is refused with words; what an optimizer's loop over all parameters does goes on.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import nn

from ..errors import PipelineError
from ..tree import tensors

# What a loop over all parameters may ask or set. Attributes are facts, too, but for those that are tensors.
_FACTS = frozenset(
    {
        *("size", "dim", "ndimension", "stride", "numel", "nelement", "element_size", "storage_offset", "__len__"),
        *("is_floating_point", "is_complex", "is_contiguous", "is_signed", "is_inference", "is_same_size", "get_device"),
        *("requires_grad_", "__set__", "__delete__", "register_hook", "register_post_accumulate_grad_hook", "has_names"),
        *("untyped_storage", "data_ptr", "__dir__", "_has_compatible_shallow_copy_type"),
    }
)
# New tensors of the same shape.
_MAKERS = frozenset(
    {
        *("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like"),
        *("new_empty", "new_zeros", "new_ones", "new_full", "new_tensor"),
    }
)
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
            if attribute == "grad" and not _asked_by_torch():
                _refuse_gradient(args[0])
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
            _refuse((args, kwargs), name)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    def __deepcopy__(self, memo: Any) -> NoReturn:
        """Refused."""
        _refuse(self, "a copy")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refused."""
        _refuse(self, "pickle")

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        name, rank = self._home  # type: ignore[attr-defined]
        return f"AbsentParameter({name!r}, {list(self.shape)}, on rank {rank} of the pipeline)"


def _changes_itself(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an operation changes a parameter by numbers and by tensors that its own rank has as well (`clamp_`,
    `mul_(0.9)`, `copy_(other)`): that rank does the same."""
    in_place = (name.endswith("_") and not name.endswith("__")) or name == "__setitem__"
    if not in_place or name == "set_" or not isinstance(args[0], AbsentParameter):
        return False
    if name == "copy_" and sys._getframe(2).f_code.co_name == "_load_from_state_dict":
        return False  # on one rank alone it would load a part
    homes = {one._home[1] for one in tensors((args[1:], kwargs)) if isinstance(one, AbsentParameter)}  # type: ignore[attr-defined]
    return homes <= {args[0]._home[1]}  # type: ignore[attr-defined]


def _change_those_here(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """An operation on many tensors at once, for those that are here."""
    here = [number for number, one in enumerate(args[0]) if not isinstance(one, AbsentParameter)]

    def chosen(given: Any) -> Any:
        return [given[number] for number in here] if isinstance(given, (list, tuple)) else given

    mine = [chosen(one) for one in args]
    named = {key: chosen(one) for key, one in kwargs.items()}
    if any(isinstance(one, AbsentParameter) for one in tensors((mine, named))):
        _refuse((mine, named), func.__name__)
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


def _refuse(where: Any, what: str) -> NoReturn:
    name, rank = _first(where)._home
    raise PipelineError(
        f"parameter {name!r} is on rank {rank} of the pipeline, and cannot be read on this one ({what})",
        hint="model.state_dict(), called on all ranks, gives the whole model, and model.local_named_parameters() what is "
        "here; model.load_state_dict() loads; the model runs in functions with @step",
    )


def _refuse_gradient(parameter: Any) -> NoReturn:
    name, rank = parameter._home
    raise PipelineError(
        f"the gradient of {name!r} is on rank {rank} of the pipeline, and cannot be read on this one",
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
        self._parameters: list[nn.Parameter] = []
        self._elements: list[torch.Tensor] = []

    def give_up(self, root: nn.Module, homes: Mapping[str, int], device: torch.device) -> None:
        """Moves what is local to the device and frees the rest.

        Args:
            homes: name -> rank in the pipeline, of the parameters that are not here.
        """
        for name, parameter in root.named_parameters():
            if isinstance(parameter, AbsentParameter):
                continue
            if name not in homes:
                parameter.data = parameter.data.to(device)
                continue
            value = math.nan if parameter.is_floating_point() else 0
            element = torch.full((1,) * max(parameter.dim(), 1), value, dtype=parameter.dtype, device=device)
            shape = parameter.shape
            parameter.data = element.expand(shape) if parameter.dim() else element.reshape(())
            parameter.grad = None
            parameter._home = (name, homes[name])  # type: ignore[attr-defined]
            parameter.__class__ = AbsentParameter
            self._elements.append(element)
            self._parameters.append(parameter)
        for buffer in root.buffers():
            buffer.data = buffer.data.to(device)

    @contextmanager
    def as_zeros(self) -> Iterator[None]:
        """Within the block they are zeros that can be read: a forward is recorded for its shapes alone."""
        self._set(nn.Parameter, 0.0)
        try:
            yield
        finally:
            self._set(AbsentParameter, math.nan)

    def _set(self, kind: type[nn.Parameter], value: float) -> None:
        for parameter in self._parameters:
            parameter.__class__ = kind
        for element in self._elements:
            if element.is_floating_point():
                element.fill_(value)
