"""Options of optimizers as the script gives them (learning rate, momentum), put back when a checkpoint has brought its own.

Optimizers save their options with their state, and schedulers their base rates: a script that is started again with another
learning rate goes on with the old one. With the setting `checkpoint_options: given` it goes on with the one that it gives.
"""

from __future__ import annotations

from .state import ObjectState, OptimizerState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

GIVEN = "given"
_RATES = ("lr", "initial_lr")
_CYCLED = ("momentum", "betas")  # by a scheduler that keeps their bounds in the group


class GivenOptions:
    """Options that a script has given to its optimizers and schedulers, noted before a checkpoint is loaded.

    Args:
        states: those of a Checkpointer.
    """

    def __init__(self, states: Sequence[Any]) -> None:
        optimizers = [(state.name, state.optimizer) for state in states if isinstance(state, OptimizerState)]
        self._given = [
            (name, optimizer, number, {key: _plain(value) for key, value in group.items() if _is_option(key, value)})
            for name, optimizer in optimizers
            for number, group in enumerate(optimizer.param_groups)
        ]
        self._schedulers = [
            (scheduler, list(scheduler.base_lrs))
            for state in states
            if isinstance(state, ObjectState)
            for scheduler in _schedulers(state.thing)
        ]

    def put_back(self) -> list[str]:
        """Puts them back, and scales learning rates that schedulers have changed; a line for each that differs."""
        changed = []
        for name, optimizer, number, given in self._given:
            group = optimizer.param_groups[number]
            for key, value in given.items():
                saved = _plain(group.get(key))
                if key in _RATES or saved == value or (key in _CYCLED and "max_momentum" in group):
                    continue
                group[key] = value
                changed.append(f"{name} group {number}: {key} {value} instead of {saved}")
            changed += _put_rate(f"{name} group {number}", given, group)
        for scheduler, base in self._schedulers:
            if scheduler.base_lrs != base:
                scheduler.base_lrs = base
                scheduler._last_lr = [_plain(group["lr"]) for group in scheduler.optimizer.param_groups]
        return changed


def _put_rate(where: str, given: dict[str, Any], group: dict[str, Any]) -> list[str]:
    """The learning rate: as given, or where a scheduler has changed it since, as much changed."""
    if "lr" not in given:
        return []
    scheduled = "initial_lr" in group
    before = _plain(group["initial_lr"] if scheduled else group["lr"])
    after = given.get("initial_lr", given["lr"])
    if before == after:
        return []
    rate = _plain(group["lr"]) * after / before if scheduled and before else after
    for key, value in (("lr", rate), ("initial_lr", after)):
        if key not in group:
            continue
        if hasattr(group[key], "fill_"):
            group[key].fill_(value)
        else:
            group[key] = value
    return [f"{where}: lr {after:.6g} instead of {before:.6g}"]


def _is_option(key: str, value: Any) -> bool:
    """Whether an entry of a group is a number or a few of them; all else stays as the checkpoint has it."""
    if key == "params" or value is None:
        return False
    if isinstance(value, (list, tuple)):
        return all(isinstance(one, (int, float)) for one in value)
    return isinstance(value, (bool, int, float)) or (hasattr(value, "fill_") and value.numel() == 1)


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "fill_") else value


def _schedulers(thing: Any) -> Iterator[Any]:
    """A scheduler of torch, and those that it is made of."""
    if hasattr(thing, "base_lrs") and hasattr(thing, "optimizer"):
        yield thing
    for inner in getattr(thing, "_schedulers", ()):
        yield from _schedulers(inner)
