"""The optimizer as the user's script holds it."""

from __future__ import annotations

from typing import Any

import torch

from .state import session


class PipelineOptimizer:
    """Any torch optimizer over the model's parameters; it has state for what this rank holds, and only for that.

    It may be made before or after the model is wrapped. Everything that it does not define is the wrapped optimizer's.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.__dict__["optimizer"] = optimizer
        if session.model is not None:
            session.model._optimizer = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["optimizer"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["optimizer"], name, value)

    def step(self, closure: Any = None) -> Any:
        """One update of what this rank holds: parameters of other ranks have no gradient here."""
        return self.optimizer.step(closure) if closure is not None else self.optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets all gradients."""
        self.optimizer.zero_grad(set_to_none=set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The whole optimizer's state, in plain PyTorch's form, on every rank of the pipeline. Collective."""
        from .saving import gather_optimizer

        return gather_optimizer(self.optimizer)

    def local_state_dict(self, gather_if_shard: bool = True) -> dict[str, Any]:
        """State of this rank's parameters, by name."""
        from .saving import local_optimizer

        return local_optimizer(self.optimizer)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes the whole state or this rank's own; before the first step it is kept until the model is partitioned."""
        from .saving import load_optimizer

        load_optimizer(self.optimizer, state)
