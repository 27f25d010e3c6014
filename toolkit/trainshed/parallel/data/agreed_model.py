"""The model that hosts have agreed on, in fragments that are exchanged one at a time."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import nn

from .between_hosts import LocalStepsError


def cut(sizes: Sequence[int], pieces: int) -> list[range]:
    """Divides tensors into pieces in a row, the largest as small as it can be.

    Args:
        sizes: how many numbers each tensor has.
        pieces: 1 to the number of tensors.
    """
    least, most = max(sizes, default=0), sum(sizes)
    while least < most:  # the least size with which so many pieces are enough
        middle = (least + most) // 2
        if len(_filled(sizes, pieces, middle)) <= pieces:
            most = middle
        else:
            least = middle + 1
    return _filled(sizes, pieces, least)


def _filled(sizes: Sequence[int], pieces: int, size: int) -> list[range]:
    """Pieces of at most `size`; towards the end smaller ones, so that none is left without a tensor."""
    found, first, held = list[range](), 0, 0
    for at, one in enumerate(sizes):
        short = pieces - len(found) - 1 >= len(sizes) - at  # each tensor left is needed as a piece of its own
        if at > first and (held + one > size or short):
            found.append(range(first, at))
            first, held = at, 0
        held += one
    return [*found, range(first, len(sizes))]


class AgreedModel:
    """The model that hosts agree on, the speed of the outer optimizer, and how far the script's own model is from there.

    Args:
        inner: the script's model.
        fragments: pieces that are exchanged one at a time; buffers go with the last one.
        rate, momentum: of SGD with Nesterov's momentum.

    Raises:
        ValueError: the model has fewer parameters than fragments.
    """

    def __init__(self, inner: nn.Module, fragments: int, rate: float, momentum: float) -> None:
        self._inner, self._rate, self._momentum = inner, rate, momentum
        self.own = [one for one in inner.parameters() if one.requires_grad]
        if len({parameter.device for parameter in self.own}) > 1:
            raise ValueError("the model's parameters are on several devices")
        if not 1 <= fragments <= max(1, len(self.own)):
            raise ValueError(f"fragments = {fragments}: from 1 to {len(self.own)}, the model's trainable parameters")
        self.outer = copy.deepcopy(inner).requires_grad_(False)
        pairs = zip(self.outer.parameters(), inner.parameters(), strict=True)
        self._outer = [one for one, own in pairs if own.requires_grad]
        self.pieces = cut([one.numel() for one in self.own], fragments)
        self.begin()

    def begin(self) -> None:
        """From the outer module's values, without speed."""
        self.exact = [one.float() for one in self._outer]  # the same tensors, unless they are of less precision
        self.speed = [torch.zeros_like(one) for one in self.exact]

    def size(self, fragment: int) -> int:
        """How many numbers of it are exchanged."""
        return sum(self.own[at].numel() for at in self.pieces[fragment])

    @torch.no_grad()
    def change(self, fragment: int) -> torch.Tensor:
        """Returns what the script's own steps have taken away from it, float32 [size].

        Raises:
            LocalStepsError: other parameters are trained than were in the beginning.
        """
        trained = [one for one in self._inner.parameters() if one.requires_grad]
        if list(map(id, trained)) != list(map(id, self.own)):
            raise LocalStepsError(
                "parameters were frozen or unfrozen since LocalSteps was made: call finish() before that, on all hosts, and "
                "make it anew afterwards"
            )
        return torch.cat([(self.exact[at] - self.own[at]).reshape(-1) for at in self.pieces[fragment]])

    @torch.no_grad()
    def step(self, fragment: int, change: torch.Tensor) -> None:
        """One step of the outer optimizer by the mean change of all hosts, [size]."""
        first = 0
        for at in self.pieces[fragment]:
            exact, speed = self.exact[at], self.speed[at]
            part = change[first : first + exact.numel()].view_as(exact)
            first += exact.numel()
            speed.mul_(self._momentum).add_(part)
            exact.sub_(part.add(speed, alpha=self._momentum), alpha=self._rate)
            self._outer[at].copy_(exact)

    @torch.no_grad()
    def follow(self, fragment: int, mix: float) -> None:
        """The script's parameters become the agreed ones, but for a part `mix` of themselves."""
        for at in self.pieces[fragment]:
            if mix:
                self.own[at].lerp_(self._outer[at].to(self.own[at].dtype), 1 - mix)
            else:
                self.own[at].copy_(self._outer[at])

    @torch.no_grad()
    def follow_all(self) -> None:
        """The script's model becomes the one agreed on, buffers and frozen parameters too."""
        pairs = zip(
            (*self.outer.parameters(), *self.outer.buffers()),
            (*self._inner.parameters(), *self._inner.buffers()),
            strict=True,
        )
        for outer, own in pairs:
            own.copy_(outer)

    def tensors(self) -> list[torch.Tensor]:
        """All that hosts have agreed on, for one that does not have it."""
        wider = [exact for exact, outer in zip(self.exact, self._outer, strict=True) if exact is not outer]
        return [*self.outer.parameters(), *self.outer.buffers(), *wider, *self.speed]

    @torch.no_grad()
    def take(self, tensors: Sequence[torch.Tensor]) -> None:
        """The same from another host."""
        for mine, theirs in zip(self.tensors(), tensors, strict=True):
            mine.copy_(theirs)

    # --- buffers: running means and the like ---

    def buffers(self) -> list[torch.Tensor]:
        """Those of the script's model."""
        return list(self._inner.buffers())

    def changed_buffers(self) -> list[bool]:
        """Which of them are not those agreed on."""
        pairs = zip(self.outer.buffers(), self._inner.buffers(), strict=True)
        return [not torch.equal(outer, own) for outer, own in pairs]

    @torch.no_grad()
    def take_buffers(self, agreed: Sequence[torch.Tensor | None], follow: bool) -> None:
        """Those that hosts have agreed on, None: as they were.

        Args:
            follow: whether the script's model gets the same; else its own whole numbers stay, which count on.
        """
        for outer, own, value in zip(self.outer.buffers(), self._inner.buffers(), agreed, strict=True):
            if value is not None:
                outer.copy_(value)
                if follow or outer.is_floating_point():
                    own.copy_(outer)
