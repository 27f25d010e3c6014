"""Kinds of modules whose parameters can be divided, and how each computes with its part.

All of them give what the whole module gives, on every rank: whatever the model does with the result is right. A rank has
some of the rows of a Linear's weight, computes the features of those, and all features are gathered; of an Embedding it
has some of the words, and what the ranks have found is summed, in which all but one have zeros. Weights that a Linear
shares with an Embedding are divided along one axis in both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

Compute = Callable[..., torch.Tensor]


class Kind:
    """How one module is divided.

    axes: parameter -> the axis along which its ranks have parts.
    features: parts that there are.
    """

    def __init__(self, module: nn.Module, features: int, axes: dict[str, int], compute: Callable[[Any, Any, Any], Any]):
        self.module, self.features, self.axes = module, features, axes
        self._compute = compute

    def computing(self, mesh: DeviceMesh) -> Compute:
        """What stands for the module's forward when its parameters are divided over `mesh`."""
        module, compute = self.module, self._compute
        return lambda *args, **kwargs: compute(module, mesh, _only(*args, **kwargs))


def kind_of(module: nn.Module) -> Kind | None:
    """How a module can be divided; None if nobody knows. Its forward must be that of a known class, and its parameters as
    they were made there (no weight_norm, no parametrization)."""
    own = {name for name, parameter in module._parameters.items() if parameter is not None}
    forward = type(module).forward
    if "forward" in module.__dict__ or module._compiled_call_impl is not None:
        return None  # a forward of its own
    if isinstance(module, nn.Linear) and forward is nn.Linear.forward and own in ({"weight"}, {"weight", "bias"}):
        return Kind(module, module.weight.shape[0], dict.fromkeys(sorted(own), 0), _linear)
    if isinstance(module, nn.Embedding) and forward is nn.Embedding.forward and own == {"weight"}:
        unusual = module.max_norm is not None or module.scale_grad_by_freq or module.sparse
        return None if unusual else Kind(module, module.weight.shape[0], {"weight": 0}, _embedding)
    is_gpt = type(module).__name__ == "Conv1D" and type(module).__module__ == "transformers.pytorch_utils"
    if is_gpt and own == {"weight", "bias"}:  # GPT-2's Linear, whose weight lies the other way
        weight: Any = module.weight
        return Kind(module, weight.shape[1], {"weight": 1, "bias": 0}, _conv1d)
    return None


def _only(*args: Any, **kwargs: Any) -> Any:
    """The one argument of the forward."""
    (value,) = (*args, *kwargs.values())
    return value


def _linear(module: Any, mesh: DeviceMesh, x: torch.Tensor) -> torch.Tensor:
    bias = None if module.bias is None else module.bias.to_local()
    part = F.linear(_entering(x, mesh), module.weight.to_local(), bias)
    return _gathered(part, mesh, module.weight.shape[0])


def _conv1d(module: Any, mesh: DeviceMesh, x: torch.Tensor) -> torch.Tensor:
    weight = module.weight.to_local()
    flat = torch.addmm(module.bias.to_local(), _entering(x, mesh).reshape(-1, x.shape[-1]), weight)
    return _gathered(flat.view(*x.shape[:-1], weight.shape[1]), mesh, module.weight.shape[1])


def _embedding(module: Any, mesh: DeviceMesh, words: torch.Tensor) -> torch.Tensor:
    weight = module.weight.to_local()
    first = start_of(module.weight.shape[0], mesh.size(), mesh.get_local_rank())
    known = (words >= 0) & (words < module.weight.shape[0])
    torch._assert_async(known.all(), f"a word that the embedding of {module.weight.shape[0]} does not have")
    elsewhere = (words < first) | (words >= first + weight.shape[0])
    padding = None if module.padding_idx is None else module.padding_idx - first
    if padding is not None and not 0 <= padding < weight.shape[0]:
        padding = None
    found = F.embedding((words - first).masked_fill(elsewhere, 0), weight, padding)
    found = found.masked_fill(elsewhere[..., None], 0)
    whole = DTensor.from_local(found, mesh, [Partial()], run_check=False).redistribute(placements=[Replicate()])
    return whole.to_local()


def _entering(x: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """The input as it is; each rank finds a part of its gradient, which is summed."""
    return DTensor.from_local(x, mesh, [Replicate()], run_check=False).to_local(grad_placements=[Partial()])


def _gathered(part: torch.Tensor, mesh: DeviceMesh, features: int) -> torch.Tensor:
    """The parts of all ranks, side by side along the last axis."""
    shape = torch.Size((*part.shape[:-1], features))
    stride = torch.empty(shape, device="meta").stride()
    parts = DTensor.from_local(part.contiguous(), mesh, [Shard(part.ndim - 1)], run_check=False, shape=shape, stride=stride)
    return parts.redistribute(placements=[Replicate()]).to_local()


def length_of(features: int, ranks: int, rank: int) -> int:
    """How many parts a rank has: as `torch.chunk` cuts, which DTensor does as well."""
    longest = -(-features // ranks)
    return max(0, min(longest, features - rank * longest))


def start_of(features: int, ranks: int, rank: int) -> int:
    """The number of a rank's first part."""
    return min(features, rank * -(-features // ranks))
