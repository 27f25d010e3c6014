"""Loss scales as scripts for Amazon's library ask for them."""

from __future__ import annotations

from typing import Any, NamedTuple

from trainshed.base.errors import did_you_mean, shorten
from trainshed.parallel import GradScaler
from trainshed.parallel.ground.errors import PipelineError


class ScaleRules(NamedTuple):
    """How a loss scale moves.

    init_scale: where it begins.
    scale_factor: what it is multiplied with, and divided by.
    scale_window: steps without an overflow until it grows.
    min_scale: what it never falls below.
    delayed_shift: overflows until it falls. With 1 each one makes it smaller; with more, those before are forgiven.
    consecutive_hysteresis: whether any step without an overflow forgives those before; else it takes a whole window.
    """

    init_scale: float = 2.0**16
    scale_factor: float = 2.0
    scale_window: int = 1000
    min_scale: float = 1.0
    delayed_shift: int = 1
    consecutive_hysteresis: bool = False


class LossScale(NamedTuple):
    """A scale between two steps.

    clean: steps without an overflow since it last moved, or since the last overflow.
    left: overflows until it falls.
    """

    scale: float
    clean: int
    left: int


def after(now: LossScale, overflow: bool, rules: ScaleRules) -> LossScale:
    """The scale after a step, as Megatron-LM's and DeepSpeed's documented loss scalers move it."""
    if overflow:
        if now.left > 1:
            return LossScale(now.scale, 0, now.left - 1)
        return LossScale(max(now.scale / rules.scale_factor, rules.min_scale), 0, now.left)
    left = rules.delayed_shift if rules.consecutive_hysteresis else now.left
    if now.clean + 1 < rules.scale_window:
        return LossScale(now.scale, now.clean + 1, left)
    return LossScale(now.scale * rules.scale_factor, 0, rules.delayed_shift)


def scale_rules(given: dict[str, Any]) -> ScaleRules:
    """Rules from the options of a `DistributedOptimizer`.

    Raises:
        PipelineError: an option has no such name, or cannot have this value.
    """
    kinds = {name: type(value) for name, value in ScaleRules._field_defaults.items()}
    least = {"scale_factor": 1.0, "scale_window": 1, "delayed_shift": 1, "init_scale": 0.0, "min_scale": 0.0}
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in kinds:
            raise PipelineError(f"{name} is not an option of a loss scale", hint=did_you_mean(name, kinds))
        try:
            values[name] = kinds[name](value)
        except (TypeError, ValueError, OverflowError):
            values[name] = None
        strict = kinds[name] is float
        known = values[name] is not None and (name not in least or values[name] >= least[name])
        if not known or (strict and not least[name] < values[name] < float("inf")):
            bound = f"{'more than' if strict else 'at least'} {least[name]:g}" if name in least else "true or false"
            raise PipelineError(f"{name} = {shorten(repr(value))}, and must be a number: {bound}")
    return ScaleRules(**values)


class StaticScaler(GradScaler):
    """A loss scale that stays; steps that overflow are left out."""

    def update(self, new_scale: Any = None) -> None:
        """Forgets what was found."""
        super().update(new_scale if new_scale is not None else self.get_scale())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Changes nothing: the script says the scale."""


class DynamicScaler(GradScaler):
    """A loss scale that moves by rules."""

    def __init__(self, rules: ScaleRules) -> None:
        super().__init__(init_scale=rules.init_scale)
        self._rules, self._clean, self._left = rules, 0, rules.delayed_shift

    def update(self, new_scale: Any = None) -> None:
        """Moves the scale after a step; `new_scale` sets it."""
        found = [flag for state in self._per_optimizer_states.values() for flag in state["found_inf_per_device"].values()]
        if new_scale is None and found:
            now = LossScale(self.get_scale(), self._clean, self._left)
            new_scale, self._clean, self._left = after(now, any(bool(flag) for flag in found), self._rules)
        super().update(new_scale)

    def state_dict(self) -> dict[str, Any]:
        """As torch's, with what has happened since the scale moved."""
        return {**super().state_dict(), "_clean": self._clean, "_left": self._left}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on where `state_dict` was; the rules stay this one's."""
        super().load_state_dict(state_dict)
        self._clean = min(int(state_dict.get("_clean", state_dict["_growth_tracker"])), self._rules.scale_window - 1)
        self._left = min(int(state_dict.get("_left", self._rules.delayed_shift)), self._rules.delayed_shift)
