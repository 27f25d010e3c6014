"""Functions that can be computed with parts of tensors (`part`), and which part of the result comes of that.

A function that is not here, or is called otherwise than its rule knows, is given whole tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from .op_call import OpCall, OpStrategy, Rule, is_ordinary, with_own
from .view_rules import VIEWS

Function = Callable[..., Any]


def name_of(func: Any) -> str:
    """Of a function, or of the attribute that it reads."""
    name = getattr(func, "__name__", "") or str(func)
    return str(getattr(getattr(func, "__self__", None), "__name__", name)) if name in ("__get__", "__set__") else name


def _elementwise(call: OpCall) -> OpStrategy | None:
    """Each place of the result is made of the same place of all tensors."""
    tensors = call.tensors()
    if name_of(call.func) == "where" and len(call.args) != 3:  # of one tensor it gives places
        return None
    first = next(one for one in tensors if call.axis_of(one) is not None)
    axis = call.axis_of(first)
    if axis is None:
        return None
    right = axis - first.ndim
    cuts = with_own(call, tensors, right, first.shape[axis])
    ndim = max(one.ndim for one in tensors)
    if cuts is None or (call.func in CHANGES and call.axis_of(call.args[0]) != ndim + right):
        return None
    return call.along(ndim + right, cuts=cuts)


def changes(way: OpStrategy) -> bool:
    """Returns whether a function changes its first argument."""
    return way.func in CHANGES or way.kwargs.get("inplace") is True


def _alone(call: OpCall) -> OpStrategy | None:
    """Elementwise, with no other tensor: what it is given besides is not broadcast."""
    first = call.first()
    return None if first is None else call.along(first[1])


def _to(call: OpCall) -> OpStrategy | None:
    """To another type; to a device where it is already."""
    first = call.first()
    if first is None:
        return None
    tensor, axis = first
    kwargs = dict(call.kwargs)
    where = [one for one in (*call.args[1:], kwargs.pop("device", None)) if isinstance(one, (str, torch.device))]
    if any(torch.device(one) != tensor.device for one in where):
        return None
    others = [one for one in call.args[1:] if not isinstance(one, (str, torch.device))]
    return OpStrategy(torch.Tensor.to, (tensor, *(others or [kwargs.pop("dtype", tensor.dtype)])), kwargs, axis)


def _like_type(call: OpCall) -> OpStrategy | None:
    tensor, other = call.args
    axis = call.axis_of(tensor)
    return None if axis is None else OpStrategy(torch.Tensor.to, (tensor, other.dtype), {}, axis)


def _normed(call: OpCall) -> OpStrategy | None:
    """Along one axis that is not in parts, and stays."""
    first, at = (
        call.first(),
        call.argument(2 if call.func is F.normalize else 1, "dim", 1 if call.func is F.normalize else None),
    )
    if first is None or type(at) is not int or at % first[0].ndim == first[1]:
        return None
    return call.along(first[1])


def _reduced(call: OpCall) -> OpStrategy | None:
    """Along axes that are not in parts; they go, or have one place then."""
    first, at = call.first(), call.argument(1, "dim")
    keeps = call.argument(2, "keepdim", False)
    if first is None or len(call.args) > 3 or type(keeps) is not bool:
        return None
    if call.func in _SPREADS and len(call.args) > 2:  # their third is another
        return None
    tensor, axis = first
    given = at if isinstance(at, (tuple, list)) else (at,)
    if not given or not all(type(one) is int for one in given):
        return None
    axes = [one % tensor.ndim for one in given]
    if axis in axes:
        return None
    return call.along(axis if keeps else axis - sum(one < axis for one in axes))


def _layer_norm(call: OpCall) -> OpStrategy | None:
    """Over the last axes, of which none is in parts."""
    tensor, shape = call.args[0], call.argument(1, "normalized_shape")
    axis = call.axis_of(tensor)
    others = [one for one in call.tensors() if one is not tensor]
    if axis is None or not isinstance(shape, (tuple, list)) or axis >= tensor.ndim - len(shape):
        return None
    return call.along(axis) if all(call.axis_of(one) is None and is_ordinary(one) for one in others) else None


def _matmul(call: OpCall) -> OpStrategy | None:
    """Of matrices that lie along axes in parts."""
    if call.kwargs or len(call.args) != 2:
        return None
    first = next(one for one in call.args if call.axis_of(one) is not None)
    axis, ndim = call.axis_of(first), max(one.ndim for one in call.args)
    if axis is None or axis - first.ndim > -3 or min(one.ndim for one in call.args) < 2:
        return None
    right = axis - first.ndim
    cuts = with_own(call, list(call.args), right, first.shape[axis])
    return None if cuts is None else call.along(ndim + right, cuts=cuts)


def _attention(call: OpCall) -> OpStrategy | None:
    """Of heads that are in parts, with the same mask for all or one for each."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    if len(call.args) > len(names) or not {*call.kwargs} <= {*names, "scale", "enable_gqa"}:
        return None
    query, key, value, mask, dropout, causal = (call.argument(at, name) for at, name in enumerate(names))
    scale, grouped = call.kwargs.get("scale"), call.kwargs.get("enable_gqa", False)
    axis = call.axis_of(query)
    if axis is None or axis > query.ndim - 3 or dropout or len({one.ndim for one in (query, key, value)}) > 1:
        return None
    right = axis - query.ndim
    heads, others = query.shape[axis], key.shape[axis]
    if others == heads:
        cuts = with_own(call, [query, key, value, *([] if mask is None else [mask])], right, heads)
    else:
        parts = all(call.axis_of(one) == axis and one.shape[axis] == others for one in (key, value))
        if not grouped or not parts or heads % others or not call.are_alike(others, heads // others, heads, 1):
            return None
        cuts = with_own(call, [query, *([] if mask is None else [mask])], right, heads)
    if cuts is None:
        return None
    options = {"attn_mask": mask, "is_causal": bool(causal), "scale": scale, "enable_gqa": grouped}
    return OpStrategy(call.func, (query, key, value), options, axis, cuts)


def _dropout(call: OpCall) -> OpStrategy | None:
    """Multiplies with a mask that is drawn for the whole tensor, as one process draws it."""
    first = call.first()
    if first is None:
        return None
    rate, training = call.argument(1, "p", 0.5), call.argument(2, "training", call.kwargs.get("train", True))
    times = torch.Tensor.mul_ if call.argument(3, "inplace", False) else torch.mul
    tensor, axis = first
    if not training:
        return OpStrategy(times, (tensor, 1.0), {}, axis)
    with torch.no_grad():
        ones = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).fill_(1)
        mask = F.dropout(ones, rate, True)
    return OpStrategy(times, (tensor, mask), {}, axis, {id(mask): axis}, drawn=frozenset({id(mask)}))


def _named(names: str, *owners: Any) -> list[Function]:
    return [getattr(owner, name) for name in names.split() for owner in owners if hasattr(owner, name)]


_MIXING = (
    "add sub mul div true_divide pow maximum minimum where masked_fill lerp addcmul addcdiv eq ne lt le gt ge fmod "
    "remainder floor_divide logical_and logical_or logical_xor bitwise_and bitwise_or atan2 clamp clip rsub subtract "
    "multiply divide float_power __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __rdiv__ "
    "__pow__ __rpow__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __and__ __or__"
)
_ALONE = (
    "neg negative abs absolute exp exp2 expm1 log log2 log10 log1p sqrt rsqrt square reciprocal sin cos tan tanh sigmoid "
    "relu erf erfc sign floor ceil round trunc logical_not isnan isinf isfinite nan_to_num __neg__ __invert__ __abs__ clone "
    "detach contiguous float half bfloat16 double bool int long zeros_like ones_like full_like"
)
_ACTIVATIONS = (
    "relu relu6 gelu silu mish elu celu selu leaky_relu hardtanh hardswish hardsigmoid sigmoid tanh softplus softsign "
    "tanhshrink softshrink hardshrink threshold logsigmoid"
)
_MIXING_HERE = (
    "add_ sub_ mul_ div_ pow_ masked_fill_ addcmul_ addcdiv_ clamp_ __iadd__ __isub__ __imul__ __itruediv__ __ipow__ lerp_"
)
_OPERATORS_HERE = (
    "__iadd__ __isub__ __imul__ __itruediv__ __idiv__ __ifloordiv__ __imod__ __ipow__ __iand__ __ior__ __ixor__ __ilshift__ "
    "__irshift__"
)
_ALONE_HERE = "neg_ abs_ exp_ log_ sqrt_ rsqrt_ square_ sin_ cos_ tanh_ sigmoid_ relu_ zero_ fill_"
_ATTRIBUTES = "shape dtype device ndim is_cuda is_meta is_cpu is_sparse layout is_nested is_quantized itemsize"
_QUESTIONS = (
    "size dim ndimension numel nelement element_size __len__ is_floating_point is_complex stride is_contiguous get_device "
    "__hash__"
)
_OF_ITSELF = (
    "register_hook register_post_accumulate_grad_hook retain_grad backward requires_grad_ share_memory_ set_ resize_ "
    "data_ptr untyped_storage storage __dlpack__"
)


def _getters(names: str) -> list[Any]:
    return [getattr(torch.Tensor, name).__get__ for name in names.split() if hasattr(torch.Tensor, name)]


# What is the same of the whole tensor, and what this rank's part can tell.
FACTS = frozenset(
    [*_getters(_ATTRIBUTES), *_named(_QUESTIONS, torch.Tensor), *_named("is_floating_point is_complex numel", torch)]
)
HELD = frozenset(_getters("requires_grad is_leaf _version"))
_CHANGES_HERE = _named(f"{_MIXING_HERE} {_ALONE_HERE}", torch.Tensor, torch, F)
# Functions that change their first argument.
CHANGES = frozenset(
    [
        *_CHANGES_HERE,
        torch.Tensor.__setitem__,
        *(
            getattr(owner, name)
            for owner in (torch.Tensor, torch, F)
            for name in dir(owner)
            if name.endswith("_") and not name.endswith("__") and not name.startswith("_") and callable(getattr(owner, name))
        ),
        *_named(_OPERATORS_HERE, torch.Tensor),
    ]
)
_SPREADS = frozenset(_named("var std", torch, torch.Tensor))
# Functions after which a tensor itself has to be what it was: its gradient, hooks, memory.
REFUSED = frozenset(
    [
        *_named(_OF_ITSELF, torch.Tensor),
        *(
            getattr(torch.Tensor, name).__set__
            for name in ("data", "grad", "requires_grad", "real", "imag")
            if hasattr(getattr(torch.Tensor, name), "__set__")
        ),
        *(getattr(torch.Tensor, name).__get__ for name in ("grad", "retains_grad")),
        torch.autograd.grad,
        torch.autograd.backward,
    ]
)
_RULES: dict[Any, Rule] = {
    **dict.fromkeys(_named(_MIXING, torch, torch.Tensor), _elementwise),
    **dict.fromkeys(_named(_MIXING_HERE, torch.Tensor), _elementwise),
    **dict.fromkeys(_named(_ALONE, torch, torch.Tensor), _alone),
    **dict.fromkeys(_named(_ALONE_HERE, torch.Tensor, torch), _alone),
    **dict.fromkeys(_named(_ACTIVATIONS, F, torch), _alone),
    torch.Tensor.to: _to,
    torch.Tensor.type_as: _like_type,
    torch.Tensor.data.__get__: _alone,  # type: ignore[attr-defined]
    **dict.fromkeys(_named("softmax log_softmax cumsum", torch, torch.Tensor, F), _normed),
    F.normalize: _normed,
    **dict.fromkeys(_named("mean sum amax amin max min argmax argmin logsumexp var std", torch, torch.Tensor), _reduced),
    **dict.fromkeys(_named("layer_norm rms_norm", torch, F), _layer_norm),
    **dict.fromkeys(_named("matmul bmm __matmul__", torch, torch.Tensor), _matmul),
    F.scaled_dot_product_attention: _attention,
    F.dropout: _dropout,
    torch.dropout: _dropout,
    **VIEWS,
}


def way_of(call: OpCall) -> OpStrategy | None:
    """How a function is computed in parts; None if it needs whole tensors."""
    rule = _RULES.get(call.func)
    if rule is None or call.kwargs.get("out") is not None:
        return None
    try:
        return rule(call)
    except (AttributeError, IndexError, TypeError, ValueError, ZeroDivisionError):  # torch says better what is wrong
        return None
