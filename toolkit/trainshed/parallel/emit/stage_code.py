"""A stage of a model in plain torch: the cuts are tried with it, and its classes are pasted into the emitted file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Reached(Exception):
    """The forward has come to the first module of the next stage."""


class Elsewhere(nn.Module):
    """Stands for a module of another stage.

    One of an earlier stage gives what was received, and zeros or None for what nobody reads. The first one of the next
    stage ends the forward; no other is called.

    Args:
        values: results of the module, 0 where it is one tensor. width: features of an embedding, else 0.
    """

    def __init__(self, name: str, values: int, width: int, received: dict[tuple[str, int], Any], *, ends: bool) -> None:
        super().__init__()
        self.name, self.values, self.width, self.received, self.ends = name, values, width, received, ends

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.ends:
            raise Reached
        first = next(one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor))
        zero = torch.zeros((), device=first.device) if self.width else first.new_zeros(())
        zeros = zero.expand(*first.shape, self.width) if self.width else zero.expand(first.shape)
        found = [self.received.get((self.name, number), None if number else zeros) for number in range(self.values or 1)]
        return tuple(found) if self.values else found[0]


class Stage(nn.Module):
    """The model without the modules of other stages: called with what the stage before has sent, and the batch.

    Args:
        units: module -> its stage, number of results (0: one tensor), features where it is an embedding (else 0).
        crossing: for each cut, (module, number of its result) of what is sent.
        loss: of the model's output and the targets.
    """

    def __init__(
        self,
        model: nn.Module,
        number: int,
        units: dict[str, tuple[int, int, int]],
        crossing: list[list[tuple[str, int]]],
        loss: Callable[[Any, Any], torch.Tensor],
    ) -> None:
        super().__init__()
        self.model, self.loss = model, loss
        self.found: dict[tuple[str, int], Any] = {}
        self.given = crossing[number - 1] if number else []
        self.sent = crossing[number] if number < len(crossing) else []
        later = [name for name, (stage, _, _) in units.items() if stage > number]
        for name, (stage, values, width) in units.items():
            parent, _, own = name.rpartition(".")
            if stage == number:
                model.get_submodule(name).register_forward_hook(self._keep(name))
            else:
                other = Elsewhere(name, values, width, self.found, ends=name in later[:1])
                setattr(model.get_submodule(parent), own, other)

    def _keep(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def keep(_module: nn.Module, _args: Any, result: Any) -> None:
            for number, one in enumerate(result if isinstance(result, (tuple, list)) else [result]):
                if (name, number) in self.sent:
                    self.found[name, number] = one

        return keep

    def forward(self, *received: torch.Tensor, targets: Any = None, **batch: Any) -> Any:
        self.found.update({key: Dense.apply(one) for key, one in zip(self.given, received, strict=True)})
        try:
            return self.loss(self.model(**batch), targets).reshape(1)
        except Reached:
            return tuple(self.found[key].contiguous() for key in self.sent)
        finally:
            self.found.clear()


class Dense(torch.autograd.Function):
    """The same tensor; its gradient is made contiguous, for only such ones can be sent."""

    @staticmethod
    def forward(_context: Any, value: torch.Tensor) -> torch.Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(_context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.contiguous()
