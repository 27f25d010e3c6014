"""Modules of Amazon's library. Fused ones are torch's own here; tensor parallel ones can be named, but not built.

A script that registers a tensor parallel class (`tp_register_with_module`) or asks `isinstance` of one runs as it is:
none of its modules is replaced. With `tensor_parallel_degree` they are divided as they are.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from trainshed.parallel.ground.errors import NotServed

from ....unserved import ALTERNATIVES, UnservedName
from . import huggingface

FusedLayerNorm = nn.LayerNorm
_TENSOR_PARALLEL = "Distributed"


class TensorParallel(nn.Module):
    """A class of Amazon's library whose weights are split over ranks.

    Raises:
        NotServed: it is built.
    """

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        raise NotServed(
            f"smp.nn.{type(self).__name__} is not supported: it splits its weights over ranks (tensor parallelism)",
            hint="use the module of torch.nn or transformers that it stands for: tensor_parallel_degree divides that",
        )


def __getattr__(name: str) -> Any:
    if name.startswith(_TENSOR_PARALLEL):
        globals()[name] = type(name, (TensorParallel,), {})
        return globals()[name]
    if name.startswith("__"):
        raise AttributeError(name)
    raise UnservedName(f"smp.nn.{name} is not supported", hint=ALTERNATIVES["nn"])


__all__ = ["FusedLayerNorm", "TensorParallel", "huggingface"]
