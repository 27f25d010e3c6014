"""The optimizer as the user's script holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from .state import session

if TYPE_CHECKING:
    from .grid import Grid


class PipelineOptimizer(torch.optim.Optimizer):
    """Any torch optimizer over the model's parameters; it has state for what this rank holds, and only for that.

    It may be made before or after the model is wrapped. It is an `Optimizer` by type alone, as learning rate schedulers
    ask for one: everything that it does not define is the wrapped optimizer's.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        if session.model is not None:
            session.model._optimizer = self

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.optimizer!r})"

    @property
    def state(self) -> Any:
        """The wrapped optimizer's."""
        return self.optimizer.state

    @state.setter
    def state(self, value: Any) -> None:
        self.optimizer.state = value

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The wrapped optimizer's."""
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, value: list[dict[str, Any]]) -> None:
        self.optimizer.param_groups = value

    @property
    def defaults(self) -> dict[str, Any]:
        """The wrapped optimizer's."""
        return self.optimizer.defaults

    @defaults.setter
    def defaults(self, value: dict[str, Any]) -> None:
        self.optimizer.defaults = value

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the wrapped optimizer's."""
        self.optimizer.add_param_group(param_group)

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        """One update of what this rank holds: parameters of other ranks have no gradient here."""
        if session.grid is not None and session.grid.settings.shard_optimizer_state and len(session.grid.replica_ranks) > 1:
            return self._sharded_step(session.grid)
        return self.optimizer.step(closure) if closure is not None else self.optimizer.step()

    def _sharded_step(self, grid: Grid) -> Any:
        """ZeRO-1: each replica updates its share of the parameters, has optimizer state for that alone, and sends it."""
        trained = [p for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        loads = [0] * len(grid.replica_ranks)
        owner: dict[int, int] = {}
        for number in sorted(range(len(trained)), key=lambda n: (-trained[n].numel(), n)):
            owner[number] = loads.index(min(loads))
            loads[owner[number]] += trained[number].numel()
        kept = {number: p.grad for number, p in enumerate(trained) if owner[number] != grid.place.replica}
        for number in kept:
            trained[number].grad = None
        result = self.optimizer.step()
        for number, gradient in kept.items():
            trained[number].grad = gradient
        with torch.no_grad():
            for number, parameter in enumerate(trained):
                dist.broadcast(parameter.data, src=grid.replica_ranks[owner[number]], group=grid.replica_group)
        return result

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
