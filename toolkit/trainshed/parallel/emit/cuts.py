"""Where the stages of an emitted file begin, and what they send; tried by running them one after the other."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..engine.block_shards import blocks
from ..plan.plan_file import Plan
from ..tracing.subject import Subject
from ..tracing.trace import Event, Slot, Trace
from .calls import ModelCall, NotEmitted, all_close, close, gradients, judged, quiet
from .stage_code import Stage

_LISTS = nn.ModuleList, nn.Sequential
ENGINE = "the engine runs this plan: `distribution: parallel` with partition_file"


def whole_blocks(root: nn.Module) -> tuple[str, ...]:
    """Modules that a plan for a file does not open: between blocks a cut sends results of modules."""
    names = {id(module): name for name, module in root.named_modules()}
    return tuple(names[id(block)] for block in blocks(root, set(names.values())))


@dataclass(frozen=True)
class Cuts:
    """The stages of a file.

    units, crossing: as of `Stage`.
    tied: names of one parameter, one of each stage that holds it, by stage.
    """

    units: dict[str, tuple[int, int, int]]
    crossing: list[list[tuple[str, int]]]
    tied: list[dict[int, str]]


def cuts_of(subject: Subject, plan: Plan, call: ModelCall) -> Cuts:
    """The cuts of a plan.

    Raises:
        NotEmitted: a stage needs what no module of another one gives, or the stages do not give what the model gives.
    """
    found = _cuts(subject, _stages_of(subject.root, plan))
    with subject.untouched():
        _try(found, call)
    return found


def _stages_of(root: nn.Module, plan: Plan) -> dict[str, int]:
    """Module -> its stage: blocks of lists where all that is in them is on one stage, else the plan's units. Those without
    parameters run on each stage.

    Raises:
        NotEmitted: a module is called several times, or a stage has no parameters.
    """
    counted = [unit for unit in plan.units if [*root.get_submodule(unit.unit).parameters()]]
    twice = [name for name, count in Counter(unit.unit for unit in counted).items() if count > 1]
    if twice:
        raise NotEmitted(f"{twice[0]!r} is called several times, by which torch's stages cannot be cut", hint=ENGINE)
    for stage in range(plan.stages):
        if stage not in {unit.stage for unit in counted}:
            raise _idle(stage)
    several = {_block(root, plan, unit.unit, unit.stage): unit.stage for unit in counted}
    return {part: stage for name, stage in several.items() for part in _parts(root, name)}


def _parts(root: nn.Module, name: str) -> list[str]:
    """The blocks in a module that has lists of them, for what it gives itself may be anything; else its own name."""
    module, parent = root.get_submodule(name), root.get_submodule(name.rpartition(".")[0])
    if isinstance(parent, _LISTS) or not any(isinstance(one, _LISTS) for one in module.modules()):
        return [name] if [*module.parameters()] else []
    return [part for own, _ in module.named_children() for part in _parts(root, f"{name}.{own}".lstrip("."))]


def _idle(stage: int) -> NotEmitted:
    return NotEmitted(f"stage {stage} has nothing to train, so that no gradient comes back to it", hint=ENGINE)


def _block(root: nn.Module, plan: Plan, name: str, stage: int) -> str:
    """The largest entry of a list of modules around a unit that is on its stage alone."""
    parts = name.split(".")
    for length in range(1, len(parts)):
        block, parent = ".".join(parts[:length]), ".".join(parts[: length - 1])
        inside = {unit.stage for unit in plan.units if unit.unit == block or unit.unit.startswith(f"{block}.")}
        if isinstance(root.get_submodule(parent), _LISTS) and inside == {stage}:
            return block
    return name


def _cuts(subject: Subject, stages: dict[str, int]) -> Cuts:
    trace = subject.record(stages)
    events = {event.name: event for event in trace.events if event.is_unit}
    between = next((event for event in trace.events if not event.is_unit and event.parameters), None)
    if between is not None:
        raise NotEmitted(
            f"{between.parameters[0]!r} is read between modules, by {between.name}(): no stage is known to own it",
            hint=ENGINE,
        )
    order = [name for name in trace.calls if name in stages]
    units = {name: (stages[name], *_form(subject.root, name, events.get(name))) for name in order}
    places = {number: place for name, event in events.items() for place, number in _values(name, event)}
    starts = [next(name for name in order if stages[name] == stage) for stage in range(1, stages[order[-1]] + 1)]
    crossing = [_sent(trace, places, trace.boundary(trace.calls.index(start))) for start in starts]
    return Cuts(units, crossing, _tied(subject.root, units))


def _form(root: nn.Module, name: str, event: Event | None) -> tuple[int, int]:
    """Number of a module's results, 0 for a tensor alone; features of an embedding."""
    module = root.get_submodule(name)
    result = event.result if event is not None else None
    values = len(result) if isinstance(result, (tuple, list)) else 0
    return values, module.embedding_dim if isinstance(module, nn.Embedding) else 0


def _values(name: str, event: Event) -> list[tuple[tuple[str, int], int]]:
    results = event.result if isinstance(event.result, (tuple, list)) else [event.result]
    slots = [(place, one) for place, one in enumerate(results) if isinstance(one, Slot) and one.kind == "value"]
    return [((name, place), slot.value) for place, slot in slots]


def _sent(trace: Trace, places: dict[int, tuple[str, int]], crossing: Sequence[int]) -> list[tuple[str, int]]:
    """The modules' results that a later stage needs: what is computed between modules it computes from them again."""
    made = {slot.value: event for event in trace.events for slot in event.slots if slot.kind == "value"}
    made.update({after: event for event in trace.events for _, after in event.mutated})
    found, seen, waiting = [], set(crossing), list(crossing)
    while waiting:
        number = waiting.pop()
        if number in places:
            found.append(number)
            continue
        fresh = {one for one in made[number].inputs if not trace.values[one].replicated} - seen if number in made else set()
        seen |= fresh
        waiting += fresh
    return [places[number] for number in sorted(found)]


def _tied(root: nn.Module, units: dict[str, tuple[int, int, int]]) -> list[dict[int, str]]:
    found: dict[int, dict[int, str]] = {}
    for name, parameter in root.named_parameters(remove_duplicate=False):
        stage = next((stage for unit, (stage, _, _) in units.items() if name.startswith(f"{unit}.")), None)
        if stage is not None:
            found.setdefault(id(parameter), {}).setdefault(stage, name)
    return [places for places in found.values() if len(places) > 1]


def _try(cuts: Cuts, call: ModelCall) -> None:
    """Runs all stages in this process, forward and backward.

    Raises:
        NotEmitted: they do something else than the model.
    """
    root = call.root
    kept = {id(one): one for one in (*root.parameters(), *root.buffers())}
    stages = [Stage(copy.deepcopy(root, dict(kept)), number, cuts.units, cuts.crossing, _all) for number in _numbers(cuts)]
    with quiet([root, *stages]):
        expected = call.output()
        wanted = gradients(judged(expected), root)
        outputs, given = _forward(stages, call)
        problem = "" if all_close(outputs[-1], [judged(expected).reshape(1)]) else "another result"
        found = _backward(outputs, given, root)
    wrong = [name for name, one in wanted.items() if not close(found.get(name), one)]
    if problem or wrong:
        raise NotEmitted(
            f"cut at the plan's modules, the model gives {problem or f'another gradient of {wrong[0]!r}'}", hint=ENGINE
        )


def _numbers(cuts: Cuts) -> range:
    return range(len(cuts.crossing) + 1)


def _all(output: Any, _targets: Any) -> torch.Tensor:
    return judged(output)


def _forward(stages: Sequence[Stage], call: ModelCall) -> tuple[list[list[torch.Tensor]], list[list[torch.Tensor]]]:
    """What each stage gives, and what it was given."""
    outputs, given = list[list[torch.Tensor]](), list[list[torch.Tensor]]()
    for number, stage in enumerate(stages):
        before = outputs[-1] if outputs else []
        given.append([one.detach().requires_grad_(one.requires_grad) for one in before])
        try:
            result = stage(*given[-1], **call.batch)
        except Exception as error:
            raise NotEmitted(
                f"stage {number} fails without the modules of earlier stages: {type(error).__name__}: {error}", hint=ENGINE
            ) from error
        outputs.append([result] if isinstance(result, torch.Tensor) else list(result))
        if not any(one.requires_grad for one in outputs[-1]):
            raise _idle(number)
    return outputs, given


def _backward(
    outputs: list[list[torch.Tensor]], given: list[list[torch.Tensor]], root: nn.Module
) -> dict[str, torch.Tensor | None]:
    """Gradients of the parameters: the sum of what the stages give."""
    named = {name: one for name, one in root.named_parameters() if one.requires_grad}
    found: dict[str, torch.Tensor | None] = dict.fromkeys(named)
    after: list[torch.Tensor | None] = [None]
    for made, inputs in zip(reversed(outputs), reversed(given), strict=True):
        live = [(one, gradient) for one, gradient in zip(made, after, strict=True) if one.requires_grad]
        wanted = [*named.values(), *(one for one in inputs if one.requires_grad)]
        several = torch.autograd.grad(
            [one for one, _ in live], wanted, [gradient for _, gradient in live], allow_unused=True
        )
        for name, gradient in zip(named, several, strict=False):
            if gradient is not None:
                before = found[name]
                found[name] = gradient if before is None else before + gradient
        rest = iter(several[len(named) :])
        after = [_of(one, next(rest)) if one.requires_grad else None for one in inputs]
    return found


def _of(given: torch.Tensor, gradient: torch.Tensor | None) -> torch.Tensor:
    return torch.zeros_like(given) if gradient is None else gradient
