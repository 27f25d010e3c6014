"""Counts a rank's memory of its stages, by what it is, and the parameters of a model, by how they are sharded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import nn

from ..ground.shards import shard_axis
from .candidates import RankLayout
from .costs import beside
from .plan_file import Plan

_MIB = 2**20


@dataclass(frozen=True)
class RankMemory:
    """MiB of one rank.

    values: parameters; `number` of them.
    gradients: of these; float32 where parameters are in half precision.
    states: what the optimizer keeps, float32 values of parameters in half precision included.
    activations: what the microbatches that are under way need for their backwards.
    divided: what share of the parameters are parts, which the other ranks of a tensor group have others of; 0 to 1.
    """

    values: float
    gradients: float
    states: float
    activations: float
    divided: float = 0.0
    number: int = 0

    @property
    def parameters(self) -> float:
        """With all that there is for as long as they are."""
        return self.values + self.gradients + self.states

    @property
    def parts(self) -> float:
        """Of the gradients, those of parts."""
        return self.gradients * self.divided

    @property
    def wholes(self) -> float:
        """Of the gradients, those of parameters that all ranks of a tensor group have whole."""
        return self.gradients * (1 - self.divided)


def held_by_ranks(plan: Plan, way: RankLayout) -> list[RankMemory]:
    """Returns what each rank of a pipeline holds."""
    return [_held(plan, way, rank) for rank in range(way.stages)]


def _held(plan: Plan, way: RankLayout, rank: int) -> RankMemory:
    own = [entry for entry in plan.predicted["stages"] if way.wish.seat(entry["stage"]) == rank]
    names = ("parameters_mib", "values_mib", "gradients_mib", "memory_mib", "divided_mib")
    every, values, gradients, memory, divided = (float(sum(entry[name] for entry in own)) for name in names)
    share, number = divided / every if every else 0.0, sum(entry["parameters"] for entry in own)
    return RankMemory(values, gradients, every - values - gradients, memory - every, share, number)


@dataclass(frozen=True)
class Weight:
    """One parameter as FSDP2 shards it.

    block: the entry of the outermost list of modules that it belongs to, which is gathered as one; "" for none.
    sizes: of its axes, along one of which it is shared out.
    value, gradient, states: MiB.
    """

    block: str
    sizes: tuple[int, ...]
    value: float
    gradient: float
    states: float

    @property
    def shard(self) -> float:
        """The bytes that are kept in shards: of parameters in half precision float32 values are kept, and they themselves
        are there while they are used."""
        return self.gradient + self.states + (self.value if self.gradient <= self.value else 0.0)

    def padded(self, degree: int) -> float:
        """How many times as much all shards are as the parameter: all of them are as long as the longest."""
        size = self.sizes[shard_axis(self.sizes, degree)] if self.sizes else 0
        return degree * -(-size // degree) / size if size else 1.0


def weights_of(root: nn.Module, optimizer_states: int) -> list[Weight]:
    """The parameters of a model.

    Args:
        optimizer_states: tensors of a parameter's size that the optimizer keeps.
    """
    found = []
    for name, parameter in root.named_parameters():
        elements, (gradient, states) = parameter.numel() / _MIB, beside(parameter, optimizer_states)
        value, sizes = elements * parameter.element_size(), tuple(parameter.shape)
        found.append(Weight(_block(name), sizes, value, elements * gradient, elements * states))
    return found


def of_tensor_rank(weights: Sequence[Weight], held: RankMemory) -> list[Weight]:
    """Returns what a rank of a tensor group has of a model's parameters: of all of them the same share, as on the mean.

    Args:
        held: what that rank holds of the model.
    """
    share = held.values / sum(one.value for one in weights)
    return [
        replace(one, value=one.value * share, gradient=one.gradient * share, states=one.states * share) for one in weights
    ]


def _block(name: str) -> str:
    parts = name.split(".")
    at = next((at for at, part in enumerate(parts) if part.isdigit()), None)
    return "" if at is None else ".".join(parts[: at + 1])
