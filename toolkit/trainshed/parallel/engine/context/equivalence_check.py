"""Tries a call of a block before it is divided among ranks: whole, then in parts, forward and backward.

The results, the gradients of what it was given and of its parameters, buffers, attributes that others may read, and the
state of the random generator have to be those of the whole block. So a block that mixes positions in any other way than by
attention (a convolution, a mean, a norm over positions, a scan, a router with room for so many tokens) is found on its first
call, on all ranks alike, whatever its class is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from trainshed.base.errors import shorten

from ...ground.errors import NotServed
from ...ground.torch_private import version_of
from ...ground.tree import leaves, map_leaves
from ...tracing import rng
from ..verify.traces import Traces, no_gradients
from .crossing import Crossing, OthersStopped, cut, join, shared
from .op_handlers import Inside
from .rules import Rule
from .slices import Slices

Run = Callable[..., Any]
# Units of rounding that sums in another order may differ by.
_ORDER = 64
_PLAIN = (int, float, complex, str, bytes, bool, type(None))


@dataclass
class Tried:
    """The result of one run.

    gradients: of leaves of the arguments by number, and of parameters by name; of this rank alone for parts.
    kept: by module and attribute, what the forward has put there.
    lengths, crossed: of keys of attention, and whether they were gathered.
    """

    results: list[Any] = field(default_factory=list)
    gradients: dict[int | str, torch.Tensor | None] = field(default_factory=dict)
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    kept: dict[tuple[str, str], Any] = field(default_factory=dict)
    random: torch.Tensor | None = None
    changed: bool = False
    lengths: Sequence[int] = ()
    crossed: Sequence[bool] = ()


class Proof:
    """One call of a block.

    Args:
        native: the block's own forward.
        given: (args, kwargs).

    whole: what the block gives, undivided.
    """

    def __init__(self, module: nn.Module, native: Run, given: Any, crossing: Crossing) -> None:
        self._module, self._native, self._given, self._crossing = module, native, given, crossing
        self._device = crossing.device
        self.whole = self._run(None)

    def of_parts(self, rule: Rule) -> tuple[Rule | None, str]:
        """The rule with what is known of the results then; and why it is not right. Collective, never hangs.

        All ranks get a rule, or none of them.
        """
        self._crossing.begin()
        why, found, failed = "", rule, None
        try:
            parts = self._run(rule)
            found, why = self._compared(rule, parts)
        except OthersStopped:
            why = ""
        except NotServed as error:
            failed = error
        except Exception as error:
            why = _in_words(error)
        well = self._crossing.ended(not why and failed is None)
        if failed is not None:
            raise failed
        return (found, "") if well else (None, self._crossing.first_of(why))

    def _run(self, rule: Rule | None) -> Tried:
        """Forward and backward; nothing of it stays."""
        module, found = self._module, Tried()
        every = leaves(self._given)
        inputs = {at: _leaf(leaf) for at, leaf in enumerate(every) if isinstance(leaf, torch.Tensor)}
        before = {(name, key): one for name, key, one in _attributes(module)}
        traces = Traces(module, lambda: None, self._device)
        slices = None if rule is None else Slices(every[rule.hidden].size(rule.axis), self._crossing.ranks)
        layouts = {} if rule is None or slices is None else {slices.size(self._crossing.rank): (slices, rule.axis)}
        sites = None if slices is None else [length == slices.length for length in self.whole.lengths]
        inside = Inside(self._crossing, layouts, sites)
        try:
            # Hooks of its own, for those of an activation checkpoint around must not see what is tried.
            with no_gradients(module), torch.enable_grad(), saved_tensors_hooks(torch.Tensor.detach, _same_tensor):
                passed = {at: one.clone() for at, one in inputs.items()}
                versions = {at: version_of(one) for at, one in passed.items()}
                args, kwargs = entering(self._given, passed, rule, slices, self._crossing)
                with inside:
                    found.results = leaves(self._native(*args, **kwargs))
                found.changed = any(version_of(one) != versions[at] for at, one in passed.items())
                if rule is not None and slices is not None:
                    found.results, self._joins = _joined(found.results, self.whole.results, slices, self._crossing)
                with inside.recomputing():
                    _backward(found.results)
                found.gradients = {at: one.grad for at, one in inputs.items() if one.requires_grad}
                found.gradients.update((name, p.grad) for name, p in module.named_parameters() if p.requires_grad)
            found.results = [one.detach() if isinstance(one, torch.Tensor) else one for one in found.results]
            found.random = rng.get_state(self._device)
            found.buffers = {name: one.detach().clone() for name, one in module.named_buffers()}
            found.kept = {
                (name, key): one.detach() if isinstance(one, torch.Tensor) else one
                for name, key, one in _attributes(module)
                if before.get((name, key), _attributes) is not one
            }
            found.lengths, found.crossed = inside.lengths, inside.crossed
            return found
        finally:
            traces.restore()
            for name, key, one in list(_attributes(module)):
                if (name, key) in before and before[name, key] is not one:
                    module.get_submodule(name).__dict__[key] = before[name, key]

    def _compared(self, rule: Rule, parts: Tried) -> tuple[Rule, str]:
        whole = self.whole
        found = replace(rule, joins=self._joins, sites=tuple(parts.crossed))
        if parts.changed or whole.changed:
            return found, "it changes its input in place"
        if whole.random is not None and parts.random is not None and not torch.equal(whole.random, parts.random):
            return found, "it draws random numbers in another way than by dropout"
        for number, (one, other) in enumerate(zip(parts.results, whole.results, strict=True)):
            if not self._same(one, other):
                what = "its result" if number == 0 else f"part {number + 1} of its result"
                return found, f"{what} is not that of the whole sequence"
        for place, kept in whole.kept.items():
            if place not in parts.kept or not self._same(parts.kept[place], kept):
                name = ".".join(filter(None, place))
                return found, f"its forward keeps {name!r} for others to read, which is not that of the whole sequence"
        for name, buffer in whole.buffers.items():
            if not self._same(parts.buffers[name], buffer):
                return found, f"its buffer {name!r} is not that of the whole sequence"
        # A gradient that cancels out (of a bias of keys) is what rounding leaves of the others.
        largest = max((float(one.norm()) for one in whole.gradients.values() if one is not None), default=0.0)
        for key, gradient in whole.gradients.items():
            like = self._module.get_parameter(key) if isinstance(key, str) else leaves(self._given)[key]
            have, want = (torch.zeros_like(like) if one is None else one for one in (parts.gradients[key], gradient))
            if isinstance(key, str):
                have = self._crossing.mean(have)
            if not self._same(have, want, _ORDER * largest):
                what = f"of {key!r}" if isinstance(key, str) else "of what it is given"
                return found, f"the gradient {what} is not that of the whole sequence"
        return found, ""

    def _same(self, one: Any, other: Any, around: float = 0.0) -> bool:
        """Args:
        around: length of what it may be a difference of.
        """
        if not isinstance(other, torch.Tensor):
            return type(one) is type(other) and (not isinstance(other, _PLAIN) or one == other)
        if not isinstance(one, torch.Tensor) or one.shape != other.shape or one.dtype != other.dtype:
            return False
        if not other.is_floating_point():
            return torch.equal(one, other)
        unit = torch.finfo(other.dtype).eps
        if torch.is_autocast_enabled(self._device.type):
            unit = max(unit, torch.finfo(torch.get_autocast_dtype(self._device.type)).eps)
        one, other = one.double(), other.double()
        known = torch.isfinite(other)
        if not torch.equal(torch.isfinite(one), known):
            return False
        one, other = one[known], other[known]
        return bool((one - other).norm() <= unit**0.5 * other.norm() + unit * around + unit**2)


def entering(
    given: Any, passed: dict[int, torch.Tensor], rule: Rule | None, slices: Slices | None, crossing: Crossing
) -> Any:
    """The arguments of a block with its tensors cut.

    Args:
        given: (args, kwargs).
        passed: number of a leaf -> the tensor in its place.
    """
    numbers = iter(range(1 << 30))

    def entered(leaf: Any) -> Any:
        number = next(numbers)
        if not isinstance(leaf, torch.Tensor):
            return leaf
        tensor = passed.get(number, leaf)
        if rule is None or slices is None:
            return tensor
        axis = rule.cuts[number]
        if axis is not None:
            return cut(tensor, crossing, axis, slices)
        return shared(tensor, crossing) if tensor.requires_grad and torch.is_grad_enabled() else tensor

    return map_leaves(entered, given)


def _joined(
    results: Sequence[Any], wholes: Sequence[Any], slices: Slices, crossing: Crossing
) -> tuple[list[Any], tuple[int | None, ...]]:
    """Results of parts, joined as the whole's shapes tell; and along which axes.

    Raises:
        ValueError: they are others than the whole's.
    """
    if len(results) != len(wholes):
        raise ValueError(f"it returns {len(results)} values, not {len(wholes)}")
    found: list[Any] = []
    axes: list[int | None] = []
    mine = slices.size(crossing.rank)
    for one, whole in zip(results, wholes, strict=True):
        axis = None
        if isinstance(one, torch.Tensor) and isinstance(whole, torch.Tensor) and one.shape != whole.shape:
            other = [at for at, sizes in enumerate(zip(one.shape, whole.shape, strict=False)) if sizes[0] != sizes[1]]
            if (
                one.ndim != whole.ndim
                or len(other) != 1
                or (one.size(other[0]), whole.size(other[0])) != (mine, slices.length)
            ):
                raise ValueError(f"it returns a tensor of shape {tuple(one.shape)} where the whole has {tuple(whole.shape)}")
            axis = other[0]
            one = join(one, crossing, axis, slices)
        found.append(one)
        axes.append(axis)
    return found, tuple(axes)


def _backward(results: Sequence[Any]) -> None:
    looked_at = [one for one in results if isinstance(one, torch.Tensor) and one.requires_grad]
    if looked_at:
        torch.autograd.backward(looked_at, [_weights(one) for one in looked_at])


def _weights(like: torch.Tensor) -> torch.Tensor:
    flat = torch.linspace(-1.0, 2.0, like.numel(), device=like.device, dtype=torch.float64)
    return (7 * flat).cos().view(like.shape).to(like.dtype)


def _same_tensor(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _attributes(module: nn.Module) -> list[tuple[str, str, Any]]:
    """Tensors and numbers in attributes: the module's name, the attribute, the value."""
    return [
        (name, key, value)
        for name, one in module.named_modules()
        for key, value in one.__dict__.items()
        if isinstance(value, (torch.Tensor, int, float)) and key != "training"
    ]


def _in_words(error: Exception) -> str:
    """Why a block's part came to no end."""
    if "modified inplace" in str(error):  # what autograd says of a part of the input that the block writes to
        return "it changes its input in place"
    return f"with a part of the sequence it ends with {type(error).__name__}: {shorten(str(error), 200)}"
