"""Kinds of modules whose parameters can be divided, and how each computes with its part.

All of them give what the whole module gives, on every rank: whatever the model does with the result is right. A rank has
some of the rows of a Linear's weight, computes the features of those, and all features are gathered; of an Embedding it
has some of the words, and what the ranks have found is summed, in which all but one have zeros. Weights that a Linear
shares with an Embedding are divided along one axis in both.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from ...ground.exchanges import collected, entering, gathered, start_of, summed
from ...ground.torch_private import assert_async, call_instead, parameters_in, version_of

Compute = Callable[..., torch.Tensor]


class Entrance:
    """The entrance of inputs into modules of a tensor group. Ranks' parts of an input's gradient are summed: once
    for all modules that read the same tensor one after the other, as q, k and v of an attention do.

    Args:
        mesh: of the ranks of the group.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh
        self._read: Callable[[], torch.Tensor | None] = _nothing
        self._seen: tuple[int, bool, bool] | None = None
        self._entered: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The input as it is."""
        return entering(x, self.mesh) if x.is_inference() else self._once(x, x, lambda: entering(x, self.mesh))

    def collect(self, x: torch.Tensor, own: torch.Tensor, axis: int) -> torch.Tensor:
        """All of an input of which this rank has its own places along an axis. Collective."""
        return self._once(x, own, lambda: collected(own, self.mesh, x.shape[axis], axis))

    def _once(self, x: torch.Tensor, own: torch.Tensor, enter: Callable[[], torch.Tensor]) -> torch.Tensor:
        seen = version_of(own), own.requires_grad, torch.is_grad_enabled()
        if self._entered is None or self._read() is not x or self._seen != seen:
            self._entered = None  # not both at a time
            self._entered = enter()
            self._read, self._seen = weakref.ref(x), seen
        return self._entered

    def forget(self) -> None:
        """Lets go of what was read last."""
        self._read, self._seen, self._entered = _nothing, None, None


class Kind:
    """How one module is divided.

    axes: parameter -> the axis along which its ranks have parts.
    features: parts that there are; `noun` says of what.
    inputs: of one that can make a pair; 0 of others.
    opening: computes this rank's features alone. None if that is not known.
    closing: how the module is divided to take features in parts. None if that is not known.
    term: of one whose result is a sum over ranks, computes what this rank adds to it. None of others.
    reads: operations of its own forward that work with a part of a parameter; None for any.
    """

    noun = "features"
    reads: tuple[Callable[..., Any], ...] | None = (F.linear, F.embedding, torch.addmm)

    def __init__(self, module: nn.Module, features: int, axes: dict[str, int], compute: Callable[[Any, Any, Any], Any]):
        self.module, self.features, self.axes = module, features, axes
        self.inputs = 0
        self.opening: Callable[[Any, torch.Tensor], torch.Tensor] | None = None
        self.closing: Kind | None = None
        self.term: Callable[[Any, Any, Any], torch.Tensor] | None = None
        self._compute = compute

    @classmethod
    def summing(cls, module: nn.Module, features: int, axes: dict[str, int], term: Callable[[Any, Any, Any], Any]) -> Kind:
        """One whose result is the sum of what all ranks find."""
        kind = cls(module, features, axes, lambda module, entrance, x: summed(term(module, entrance, x), entrance.mesh))
        kind.term = term
        return kind

    def computing(self, entrance: Entrance) -> Compute:
        """Returns what stands for the module's forward when its parameters are divided over the entrance's group."""
        module, compute = self.module, self._compute
        return lambda *args, **kwargs: compute(module, entrance, only(*args, **kwargs))

    def complete(self, own: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
        """All features, of this rank's. Collective."""
        return gathered(own, mesh, self.features)

    def note(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Sees a call of the module before it is divided."""

    def reason(self, ranks: int) -> str:
        """Why the module cannot be divided among so many ranks, after what was seen of it; empty if it can."""
        return ""


def kind_of(module: nn.Module) -> Kind | None:
    """How a module can be divided; None if nobody knows. Its forward must be that of a known class, and its parameters as
    they were made there (no weight_norm, no parametrization)."""
    own = {name for name, parameter in parameters_in(module).items() if parameter is not None}
    forward = type(module).forward
    if "forward" in module.__dict__ or call_instead(module) is not None:
        return None  # a forward of its own
    if isinstance(module, nn.Linear) and forward is nn.Linear.forward and own in ({"weight"}, {"weight", "bias"}):
        bias = dict.fromkeys(own - {"weight"}, 0)
        return _of_pairs(module, (1, 0), bias, (_linear, _linear_part, _linear_term))
    if isinstance(module, nn.Embedding) and forward is nn.Embedding.forward and own == {"weight"}:
        unusual = module.max_norm is not None or module.scale_grad_by_freq or module.sparse
        return None if unusual else Kind.summing(module, module.weight.shape[0], {"weight": 0}, _embedding_term)
    is_gpt = type(module).__name__ == "Conv1D" and type(module).__module__ == "transformers.pytorch_utils"
    if is_gpt and own == {"weight", "bias"}:  # GPT-2's Linear, whose weight lies the other way
        return _of_pairs(module, (0, 1), {"bias": 0}, (_conv1d, _conv1d_part, _conv1d_term))
    return None


def _of_pairs(module: Any, axes: tuple[int, int], bias: dict[str, int], computes: tuple[Any, Any, Any]) -> Kind:
    """A module whose weight has inputs and features along two axes.

    Args:
        axes: of inputs and features.
        computes: all features; this rank's alone; what this rank's inputs add to all of them.
    """
    inputs, features = axes
    whole, part, term = computes
    count = module.weight.shape[features]
    kind = Kind(module, count, {**bias, "weight": features}, whole)
    kind.opening, kind.inputs = part, module.weight.shape[inputs]
    kind.closing = Kind.summing(module, count, {**bias, "weight": inputs}, term)
    return kind


def _nothing() -> None:
    return None


def only(*args: Any, **kwargs: Any) -> Any:
    """The one argument of the forward."""
    (value,) = (*args, *kwargs.values())
    return value


def _linear(module: Any, entrance: Entrance, x: torch.Tensor) -> torch.Tensor:
    return gathered(_linear_part(module, entrance(x)), entrance.mesh, module.weight.shape[0])


def _linear_part(module: Any, entered: torch.Tensor) -> torch.Tensor:
    return F.linear(entered, module.weight.to_local(), None if module.bias is None else module.bias.to_local())


def _linear_term(module: Any, entrance: Entrance, x: torch.Tensor) -> torch.Tensor:
    """Args:
    x: this rank's features of the input.
    """
    return _with_bias(F.linear(x, module.weight.to_local()), module.bias, entrance.mesh)


def _conv1d(module: Any, entrance: Entrance, x: torch.Tensor) -> torch.Tensor:
    return gathered(_conv1d_part(module, entrance(x)), entrance.mesh, module.weight.shape[1])


def _conv1d_part(module: Any, entered: torch.Tensor) -> torch.Tensor:
    weight = module.weight.to_local()
    flat = torch.addmm(module.bias.to_local(), entered.reshape(-1, entered.shape[-1]), weight)
    return flat.view(*entered.shape[:-1], weight.shape[1])


def _conv1d_term(module: Any, entrance: Entrance, x: torch.Tensor) -> torch.Tensor:
    """Args:
    x: this rank's features of the input.
    """
    return _with_bias(x @ module.weight.to_local(), module.bias, entrance.mesh)


def _with_bias(part: torch.Tensor, bias: Any, mesh: DeviceMesh) -> torch.Tensor:
    """This rank's term of a sum, with the places of the bias that are its own."""
    if bias is None:
        return part
    first, own = start_of(bias.shape[0], mesh.size(), mesh.get_local_rank()), bias.to_local()
    padded = F.pad(own, (first, bias.shape[0] - first - own.shape[0]))
    return part + padded.to(part.dtype)  # under autocast the bias stays float32, and the module's result would become that


def _embedding_term(module: Any, entrance: Entrance, words: torch.Tensor) -> torch.Tensor:
    weight, mesh = module.weight.to_local(), entrance.mesh
    first = start_of(module.weight.shape[0], mesh.size(), mesh.get_local_rank())
    known = (words >= 0) & (words < module.weight.shape[0])
    assert_async(known.all(), f"a word that the embedding of {module.weight.shape[0]} does not have")
    elsewhere = (words < first) | (words >= first + weight.shape[0])
    padding = None if module.padding_idx is None else module.padding_idx - first
    if padding is not None and not 0 <= padding < weight.shape[0]:
        padding = None
    found = F.embedding((words - first).masked_fill(elsewhere, 0), weight, padding)
    return found.masked_fill(elsewhere[..., None], 0)
