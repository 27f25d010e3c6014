"""Compares what follows the gradients of a verified step with one process: the norm that a script gets, what it does to the
gradients, and the weights and states that its optimizer makes.

The norm is compared with that of whole gradients. What a script does to gradients is its own; but parts of one gradient are
not multiplied by several numbers in one process. And one rank takes the optimizer's step with whole parameters, gradients
and states, with which all ranks compare what they have made.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from .engine.object_collectives import NORM, UPDATE, objects
from .engine.remote_parameters import AbsentParameter
from .engine.verify.after_gradients import AfterGradients, Scaled, by_rank, scaled
from .engine.verify.comparing import factor_of, rounding
from .engine.verify.tensor_digest import Sketch
from .ground.errors import PipelineError
from .ground.shards import whole
from .ground.torch_private import hooks_behind
from .session import session
from .undivided_update import Held, Made, UndividedUpdate, bunched, entries_of, made_of, whole_entry

_HINT = 'until it is mended go on without this check (verify = "off")'
# Parts of codes and of counts that rounding may change, and codes of a small tensor.
_CODES, _CODE = 1 / 64, 2.0
_COUNTS = 1e-6


# The norm -----------------------------------------------------------------------------------------------------------------


def check_norm(
    found: torch.Tensor, gradients: Iterable[tuple[str, torch.Tensor]], kind: float, *, together: bool = True
) -> None:
    """Compares a norm that a script gets in a verified step with that of whole gradients. Collective where ranks have
    others, or parts of them.

    Args:
        together: whether they have.

    Raises:
        PipelineError: on all ranks then, if it is another one.
    """
    after = session.after
    if after is None or not after.due:
        return
    given = list(gradients)
    lengths = {name: float(torch.linalg.vector_norm(whole(one.detach()).double(), kind)) for name, one in given}
    units = [torch.finfo(one.dtype).eps for one in (*(one for _, one in given), found)]
    mine = lengths, float(whole(found)), max(units)
    every = _gathered(NORM, mine) if together else [mine]
    known = {name: length for lengths, *_ in reversed(every) for name, length in lengths.items()}
    right = float(torch.linalg.vector_norm(torch.tensor([*known.values(), 0.0], dtype=torch.float64), kind))
    for rank, (_, norm, unit) in enumerate(every):
        allowed = (4 if unit > 1e-5 else 1) * rounding(unit) * right
        where = f" on rank {rank}" if together else ""
        if math.isfinite(right) and not abs(norm - right) <= allowed:
            raise PipelineError(
                f"step {after.due} is not right: the norm of the gradients is {norm:.6g}{where}, and {right:.6g} in "
                "one process",
                hint=f"report this with the model; {_HINT}",
            )
    after.norms += 1


# The optimizer ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Told:
    """What a rank says of an optimizer's step before it.

    sizes: bytes of the whole parameters that it updates, by name.
    groups: what the groups of its parameters say, by name.
    refusal: why the step cannot be compared.
    """

    sizes: Mapping[str, int]
    groups: Mapping[str, Mapping[str, Any]]
    scaled: Scaled
    refusal: str = ""


@dataclass(frozen=True)
class _Wrong:
    """What differs on a rank: sorted by what comes first."""

    name: str
    what: str
    distance: float
    allowed: float
    factor: float
    of: str = "its size"


class OptimizerCheck:
    """One step of an optimizer, in which all ranks take part.

    Args:
        refusal: why this one cannot be compared.
    """

    def __init__(self, after: AfterGradients, optimizer: torch.optim.Optimizer, refusal: str) -> None:
        self._after, self._optimizer, self._grid = after, optimizer, after.holding.grid
        names = after.holding.names
        groups = list(enumerate(optimizer.param_groups))
        every = [(names[id(one)], Held(at, one)) for at, group in groups for one in group["params"] if id(one) in names]
        self._held = {name: one for name, one in sorted(every, key=lambda one: one[0]) if _moves(one.parameter)}
        self._options = {name: _options(optimizer.param_groups[one.group]) for name, one in every}
        self._refusal = refusal
        self._made: dict[str, Made] = {}
        self._before: dict[str, Sketch] = {}

    def is_of(self, optimizer: torch.optim.Optimizer) -> bool:
        """Returns whether this optimizer takes the step."""
        return self._optimizer is optimizer

    def begin(self) -> bool:
        """Before the step: whether it can be compared.

        Raises:
            PipelineError: on all ranks, if gradients were changed in another way on one of them, or its groups say something
                else.
        """
        gradients = {name: one.parameter.grad for name, one in self._held.items()}
        sizes = {name: one.parameter.numel() * one.parameter.element_size() for name, one in self._held.items()}
        done = scaled(self._after.before, gradients)
        told: list[_Told] = _gathered(UPDATE, _Told(sizes, self._options, done, self._refusal))
        self._compare_groups(told)
        self._compare_gradients(told)
        return self._take(told)

    def _take(self, told: list[_Told]) -> bool:
        holders: dict[str, list[int]] = {}
        every: dict[str, int] = {}
        for rank, one in enumerate(told):
            every.update(one.sizes)
            for name in one.sizes:
                holders.setdefault(name, []).append(rank)
        refusal = next((one.refusal for one in told if one.refusal), "")
        bunches: list[list[str]] = []
        if not refusal and every and self._grid.rank == 0:
            together = not type(self._optimizer).__module__.startswith("torch.optim.") or self._has_hooks()
            order = [*(name for name in self._options if name in every), *sorted(every.keys() - self._options.keys())]
            bunches = bunched(order, every, self._grid, together=together)
            refusal = "" if bunches else "there is no room for whole parameters, gradients and states"
        bunches, refusal = _gathered(UPDATE, (bunches, refusal))[0]
        if not bunches:
            return self._not_compared(refusal) if every else False
        update = UndividedUpdate(self._optimizer, self._grid, self._held, holders)
        update.run(bunches)
        self._made, refusal = _gathered(UPDATE, (update.made, update.reason))[0]
        self._before = update.before
        return not refusal or self._not_compared(refusal)

    def _has_hooks(self) -> bool:
        return bool(hooks_behind(self._optimizer.register_step_pre_hook))

    def _not_compared(self, reason: str) -> bool:
        name = type(self._optimizer).__name__
        self._after.say(f"verified up to the gradients: the step of {name} is not compared with one process: {reason}")
        return False

    def end(self) -> None:
        """After the step.

        Raises:
            PipelineError: on all ranks, if one of them has made something else of a parameter.
        """
        wrong: list[_Wrong] = []
        count = 0
        for name, one in self._held.items():
            entries = entries_of(self._optimizer, one.parameter)
            values = {key: whole_entry(entries[key], one.parameter) for key in sorted(entries)}
            have, want = made_of(whole(one.parameter.detach()), values), self._made.get(name)
            if want is not None:
                count += len(have.states)
                wrong += _compared(name, self._before[name], have, want)
        for rank, found in enumerate(_gathered(UPDATE, wrong)):
            if found:
                raise self._problem(rank, found)
        norms = " their norm," if self._after.norms else ""
        self._after.say(
            f"verified against one process: gradients,{norms} {len(self._made)} weights and their states after the step of "
            f"{type(self._optimizer).__name__}"
        )

    def _problem(self, rank: int, found: list[_Wrong]) -> PipelineError:
        one, name = found[0], type(self._optimizer).__name__
        amount = f"the difference is {one.distance:.1e} of {one.of}, rounding explains {one.allowed:.1e}"
        if math.isfinite(one.factor) and abs(one.factor - 1) > 1e-3:
            amount += f"; it is {one.factor:.3g} times what it should be"
        more = f" (wrong in all: {len(found)} on this rank)" if len(found) > 1 else ""
        return PipelineError(
            f"step {self._after.due} is not right after the step of {name}: {one.what} of {one.name!r} on rank {rank} is "
            f"not that of one process: {amount}{more}",
            hint="see whether the optimizer goes by its rank, or by what a rank has (to_local(), a norm of its parameters); "
            + _HINT,
        )

    def _compare_groups(self, told: list[_Told]) -> None:
        first: dict[str, tuple[int, Mapping[str, Any]]] = {}
        for rank, one in enumerate(told):
            for name, options in one.groups.items():
                other, known = first.setdefault(name, (rank, options))
                for key in options.keys() & known.keys():
                    if options[key] != known[key] and options[key] == options[key]:
                        raise PipelineError(
                            f"the ranks differ in {key} of {name!r}: it is {options[key]} on rank {rank}, {known[key]} on "
                            f"rank {other}",
                            hint="give the optimizer the same settings on all ranks",
                        )

    def _compare_gradients(self, told: list[_Told]) -> None:
        line, certain = by_rank([one.scaled for one in told])
        if not line:
            return
        if not certain:
            self._after.say(f"warning: {line}; where that comes of a norm, it was one of a rank's own gradients")
            return
        raise PipelineError(
            f"step {self._after.due} is not right: {line}, which one process does not",
            hint="clip by torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm), whose norm is that of all ranks, or "
            + _HINT,
        )


def _moves(parameter: Any) -> bool:
    """Whether this rank updates it."""
    return not isinstance(parameter, AbsentParameter) and parameter.grad is not None


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    """What a group says in numbers and words."""
    found = {key: value.item() if _is_number(value) else value for key, value in group.items() if key != "params"}
    return {key: value for key, value in found.items() if isinstance(value, (bool, int, float, str)) or value is None}


def _is_number(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not isinstance(value, DTensor) and value.dim() == 0 and not value.is_meta


def _compared(name: str, before: Sketch, have: Made, want: Made) -> list[_Wrong]:
    found: list[_Wrong] = []
    unit, length = want.weights.unit, want.weights.length
    added, distance = want.weights.distance(before), have.weights.distance(want.weights)
    # A number of the weights is rounded once, whatever was added to it: in half precision few come out otherwise.
    allowed = (unit / 8 if unit > 1e-5 else unit) * length + rounding(unit) * added
    if not distance <= allowed:
        scale = added or length or 1.0
        factor = factor_of(have.weights.minus(before), want.weights.minus(before))
        found.append(_Wrong(name, "the value", distance / scale, allowed / scale, factor, "what the step adds"))
    for key in have.states.keys() & want.states.keys():
        one, other = have.states[key], want.states[key]
        if isinstance(one, Sketch) and isinstance(other, Sketch):
            distance, length = one.distance(other), max(one.length, other.length)
            allowed = rounding(one.unit) * length if one.unit else max(_CODES * length, _CODE)
            factor = factor_of(one, other)
        elif isinstance(one, float) and isinstance(other, float):
            distance, length, factor = abs(one - other), abs(other), math.nan
            allowed = _COUNTS * length
        else:
            continue
        if not distance <= allowed and distance == distance:
            scale = length or 1.0
            found.append(_Wrong(name, f"the state {key!r}", distance / scale, allowed / scale, factor))
    return found


def _gathered(at: str, mine: Any) -> list[Any]:
    if session.after is None:
        raise RuntimeError("there is one process")
    grid = session.after.holding.grid
    return objects(at, mine, range(grid.world), grid.control_group, torch.device("cpu"))
