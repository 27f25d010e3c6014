"""The gradients of a loop as messages: which parameters there are, and gradients joined or cut to the size of a message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from .bucket_plan import MIB, pieces

SIZE = 4 * MIB  # bytes of a message


@dataclass(frozen=True)
class Described:
    """The properties that must be alike on all ranks of a group.

    shard: of a DTensor, along which axes of its mesh it is cut, and which piece this rank has; None for another tensor.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    shard: tuple[Any, ...] | None

    def __str__(self) -> str:
        cut = "" if self.shard is None else f", shard {self.shard}"
        return f"{self.name} {list(self.shape)} {self.kind}{cut}"


def named(parameters: nn.Module | Sequence[torch.Tensor]) -> list[tuple[str, torch.Tensor]]:
    """The parameters of a model, or those of a list, each once, with names for messages."""
    if isinstance(parameters, nn.Module):
        return list(parameters.named_parameters())
    return [(f"parameter {number}", one) for number, one in enumerate({id(one): one for one in parameters}.values())]


def described(name: str, parameter: torch.Tensor) -> Described:
    """The properties of a parameter that must be alike on all ranks."""
    shard = None
    if is_sharded(parameter):
        one: Any = parameter
        place = one.device_mesh.get_coordinate() or ()
        cut = [axis for axis, placement in enumerate(one.placements) if not placement.is_replicate()]
        shard = tuple((str(one.placements[axis]), place[axis], one.device_mesh.size(axis)) for axis in cut)
    return Described(name, tuple(parameter.shape), str(parameter.dtype).removeprefix("torch."), shard)


def is_sharded(tensor: torch.Tensor) -> bool:
    """Returns whether it is a DTensor (its module takes long to import where a script has none)."""
    return hasattr(tensor, "placements") and hasattr(tensor, "to_local")


def own_part(tensor: torch.Tensor) -> torch.Tensor:
    """The part on this rank: of a DTensor its local tensor, of any other all. Call it without gradients being recorded."""
    local: torch.Tensor = tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return local


def refusal(parameters: object, found: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Why gradients of these parameters are not exchanged here, "" where they are."""
    for module in parameters.modules() if isinstance(parameters, nn.Module) else ():
        if isinstance(module, DistributedDataParallel):
            return "the model is in DistributedDataParallel, which averages by itself: data.accelerate() makes that faster"
        if type(module).__name__ == "FullyShardedDataParallel":
            return "the model is in FullyShardedDataParallel, which averages by itself: use its HYBRID_SHARD, or fully_shard"
    empty = True
    for name, one in found:
        empty = False
        if is_lazy(one):
            return f"{name} has no shape yet: call the model once before"
        if one.device.type != "cpu":
            return f"{name} is on {one.device.type}: only gradients on the CPU are averaged here, use dist.all_reduce"
    return "there are no parameters" if empty else ""


def wrong_gradient(name: str, parameter: torch.Tensor) -> str:
    """Why a gradient cannot be exchanged, "" where it can or is not there."""
    gradient: Any = parameter.grad
    if gradient is None:
        return ""
    if gradient.layout != torch.strided:
        return f"the gradient of {name} is sparse: only dense gradients are averaged (sparse=False)"
    if gradient.dtype != parameter.dtype:
        return f"the gradient of {name} is {gradient.dtype}, and the parameter {parameter.dtype}"
    if is_sharded(gradient) != is_sharded(parameter) or (
        is_sharded(parameter) and tuple(gradient.placements) != tuple(parameter.placements)  # type: ignore[attr-defined]
    ):
        return f"the gradient of {name} is not sharded as its parameter is"
    return ""


def settled(gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The gradients, each with numbers in memory of its own that can be read and written as they lie there."""
    seen: set[int] = set()
    made = []
    for one in gradients:
        overlaps = any(step == 0 and size > 1 for step, size in zip(one.stride(), one.shape, strict=True))
        if id(one) in seen or overlaps or one.is_conj() or one.is_neg():
            one = one.clone(memory_format=torch.contiguous_format).resolve_conj().resolve_neg()
        seen.add(id(one))
        made.append(one)
    return made


@dataclass(frozen=True)
class GradientPiece:
    """A message: `flat` is a gradient's own memory, or part of `copied`, from which `parts` take their values afterwards."""

    flat: torch.Tensor
    copied: torch.Tensor | None = None
    parts: tuple[torch.Tensor, ...] = ()

    def put_back(self) -> None:
        """Gives the gradients the values of the copy; after this message and those before it."""
        at = 0
        for part in self.parts:
            assert self.copied is not None
            part.copy_(self.copied[at : at + part.numel()].view(part.shape))
            at += part.numel()


def joined(gradients: Sequence[torch.Tensor], size: int = SIZE) -> Iterator[GradientPiece]:
    """Gradients as messages of about `size` bytes, of one type each: the same ones wherever shapes and types are the same.

    Large ones go in pieces, small ones together; a copy is made when its message is asked for.
    """
    kinds: dict[torch.dtype, list[torch.Tensor]] = {}
    for one in gradients:
        real = torch.view_as_real(one) if one.is_complex() else one
        if real.numel():
            kinds.setdefault(real.dtype, []).append(real)
    for kind in kinds.values():
        held: list[torch.Tensor] = []
        bytes_held = 0
        for one in kind:
            if _bytes(one) >= size:
                yield from _cut(one, size)
                continue
            held.append(one)
            bytes_held += _bytes(one)
            if bytes_held >= size:
                yield _together(held)
                held, bytes_held = [], 0
        if held:
            yield _together(held)


def _cut(gradient: torch.Tensor, size: int) -> Iterator[GradientPiece]:
    flat = gradient.reshape(-1)  # a copy where the numbers lie in another order
    *others, last = flat.tensor_split(pieces(_bytes(gradient), size))
    yield from (GradientPiece(part) for part in others)
    yield GradientPiece(last) if gradient.is_contiguous() else GradientPiece(last, flat, (gradient,))


def _together(held: Sequence[torch.Tensor]) -> GradientPiece:
    flat = torch.cat([one.reshape(-1) for one in held])
    return GradientPiece(flat, flat, tuple(held))


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
