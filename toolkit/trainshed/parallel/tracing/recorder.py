"""Records what one forward does, with the real tensors of one microbatch."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from ..ground.errors import PipelineError
from ..ground.torch_private import (
    BACKWARD_HOOKS,
    BUFFERS,
    PARAMETERS,
    backward_hooks_of_all,
    buffers_in,
    children_in,
    has_hooks,
    saved_tensors_hooks_now,
    version_of,
)
from ..ground.tree import contents, holders, leaves, map_leaves, tensors
from . import host_rng as dice
from . import notes, rng
from .graph import nodes_of, parameters_reached
from .held import held_tensors
from .intercept import Interception, call_natively
from .naming import first_names, outside
from .operations import reads_values
from .side_outputs import Place, Sideways
from .trace import Event, Meta, Slot, Trace, Value

_CONSTANTS = (type(None), bool, int, float, str, bytes, torch.dtype, torch.device, torch.Size, nn.Module, type)


class Recorder:
    """Handler of an interception that records; see `record`.

    Args:
        known: an earlier record of the same forward: what it changes is then looked at more closely.

    sketch: sums of the losses, or of the results where there are none, each with that of the absolute values.
    """

    def __init__(self, root: nn.Module, units: Iterable[str], device: torch.device, known: Trace | None = None) -> None:
        self._root = root
        self._changing = frozenset(known.buffers) if known is not None else frozenset()
        self._watched = known.common if known is not None else frozenset()
        self._common: dict[notes.Key, notes.Place] = {}
        self._counted: notes.Notes = {}  # as the last unit has left it
        self._between: set[notes.Key] = set()
        self.sketch: list[tuple[float, float]] = []
        self._touched: dict[str, list[int]] = {}
        self._rolled = dice.get_state()
        self.trace = Trace(units=tuple(sorted(units)))
        self.device = device
        self.interception = Interception(self)
        self._modules = first_names(root)
        self._parameters = {id(value): name for name, value in reversed(list(root.named_parameters()))}
        self._buffers = {id(value): name for name, value in root.named_buffers()}
        self._units = frozenset(self.trace.units)
        self._sideways = Sideways(root)
        self._containers: list[str] = []
        self._paths: list[tuple[nn.Module, str]] = []  # the same modules, each with the name by which it was called
        self._held = list(held_tensors(root))
        self._held_ids = {id(tensor) for *_, tensor in self._held}
        self._changed_by: dict[int, list[int]] = {}  # id of such a tensor -> events that change it in place
        self._inside = frozenset(self._modules.values()) - outside(root, self._units)
        self._opaque: list[set[str]] = []
        self._token = object()
        self._storages: dict[int, dict[int, weakref.ref[torch.Tensor]]] = {}
        # Event, its position, values under the other names and before; whether the tensor was there before the forward.
        self._mutations: list[tuple[int, int, list[int], bool]] = []
        self._regions: dict[int, list[int]] = {}
        self._region_keep: list[Any] = []
        self._inputs: set[int] = set()
        self._input_storages: set[int] = set()
        self._input_views: list[int] = []  # positions at which a view of an input is changed by a stage
        self._free_marks: list[tuple[int, int, str]] = []
        self._backward: list[torch.Tensor] = []
        self._packed: set[int] = set()

    # What the interception calls -------------------------------------------------------------------------------------

    def device_of(self, tensor: torch.Tensor) -> torch.device | None:
        """All tensors are real here."""
        return None

    def reentrant(self) -> None:
        """Is replayed in the same way."""
        self.trace.reentrant = True

    def module_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Records a unit, walks into anything else."""
        name = self._modules.get(id(module))
        if self._opaque:
            if name is not None:
                self._opaque[-1].update(self._names_of(module))
                if self._containers:
                    self._refuse(f"{name} runs inside an autograd function")
            return call_natively(module, args, kwargs)
        if name is not None and name in self._units:
            with self.interception.lifted():
                return self._event(name, module, module, args, kwargs)
        if name is None:
            return call_natively(module, args, kwargs)
        self.trace.entries += module is self._root and not self._containers
        if name and _hooks_gradients(module):
            self.trace.atomic.setdefault(name, "it has a hook of its backward, which must see its input and its output")
        self._containers.append(name)
        self._paths.append((module, self._path(module, name)))
        try:
            return call_natively(module, args, kwargs)
        finally:
            self._containers.pop()
            self._paths.pop()

    def operation(self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Records an operation between units."""
        if self._opaque:
            return function(*args, **kwargs)
        return self._event(name, None, function, args, kwargs)

    # Events ----------------------------------------------------------------------------------------------------------

    def _event(
        self, name: str, unit: nn.Module | None, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        given = leaves((args, kwargs), objects=True)
        parts = list(unit.named_modules()) if unit is not None else []
        swapped = self._swapped(parts)
        given += swapped.values()
        places = self._sideways.look(name) if unit is not None else {}
        taken = self._taken(name, places)
        given += [tensor for _, value in taken for tensor in tensors(value)]
        held = [(holder, contents(holder)) for holder in holders((args, kwargs))] if unit is not None else []
        inputs = [leaf for leaf in given if isinstance(leaf, torch.Tensor)]
        self._find_strangers(name, inputs)
        history = nodes_of(inputs)
        versions = [_version(tensor) for tensor in inputs]
        buffers = self._buffers_of(parts)
        random_before, dice_before = rng.get_state(self.device), dice.get_state()
        self.trace.asks |= not dice.same(self._rolled, dice_before)  # drawn between the units, for any purpose
        numbers = tuple(tag[1] for tensor in inputs if (tag := self._tag(tensor)) is not None)
        replicated_inputs = all(self.trace.values[number].replicated for number in numbers)
        if unit is None and reads_values(name, args, kwargs):
            if replicated_inputs:
                self.trace.asks = True
            else:
                self._decides(f"{name} decides by a tensor's values")
        event = Event(name, unit is not None, 0, False, numbers, swapped=tuple(swapped))
        event.taken = tuple(place for place, _ in taken)
        counted = self._count_between() if unit is not None and self._common else {}
        names = self._names_of(unit) if unit is not None else set()
        names |= {self._parameters[id(tensor)] for tensor in inputs if id(tensor) in self._parameters}
        self._opaque.append(set())
        try:
            result = self._run(event, function, args, kwargs)
        finally:
            names |= self._opaque.pop()
        if counted:
            event.counts = self._count_inside(counted)
        refilled = _refilled(held)
        made = tensors((result, [now for _, _, now in refilled]), objects=True)
        mutated = [index for index, tensor in enumerate(inputs) if _version(tensor) != versions[index]]
        if not made and not mutated and unit is None:
            return result
        names |= {self._parameters[key] for key in parameters_reached(made, history) if key in self._parameters}
        event.random = not torch.equal(random_before, rng.get_state(self.device))
        self._rolled = dice.get_state()
        event.draws = not dice.same(dice_before, self._rolled)
        read = {buffer for buffer, *_ in buffers} | {self._buffers[id(t)] for t in inputs if id(t) in self._buffers}
        changes = {
            buffer for buffer, holder, key, was, version in buffers if holder.get(key) is not was or _version(was) != version
        }
        changes |= {self._buffers[id(inputs[index])] for index in mutated if id(inputs[index]) in self._buffers}
        event.changes = tuple(sorted(changes))
        changes_state = any(id(inputs[index]) in self._buffers or id(inputs[index]) in self._parameters for index in mutated)
        stays = names or event.random or event.draws or changes or changes_state or read & self._changing
        event.replicated = replicated_inputs and not stays
        for buffer in read | changes:
            self._touched.setdefault(buffer, []).append(len(self.trace.events))
        event.position = self._place(event, unit)
        event.parameters = tuple(sorted(names))
        if unit is None and changes_state:
            kind = "parameter" if any(id(inputs[index]) in self._parameters for index in mutated) else "buffer"
            self._decides(f"{name} changes a {kind} between modules")
        self.trace.mutates_inputs |= any(id(inputs[index]) in self._inputs for index in mutated)
        index = len(self.trace.events)
        self.trace.events.append(event)
        for at in mutated:
            if id(inputs[at]) in self._held_ids:
                self._changed_by.setdefault(id(inputs[at]), []).append(index)
        event.mutated = tuple((at, self._mutate(inputs[at], event, index)) for at in mutated)
        self._describe(event, result, refilled, given, inputs, held)
        if unit is not None and not event.replicated:
            self._find_left(event, places)
        # A module without parameters may answer by what the inputs hold, too.
        self.trace.asks |= (
            event.is_unit
            and event.replicated
            and any(slot.kind not in ("value", "holder", "own") for slot in leaves(event.result, objects=True))
        )
        self._note_region(event)
        return result

    def _count_between(self) -> notes.Notes:
        """Before a unit: what several modules can reach, as it is; notes what other code has changed since the last unit."""
        now = {key: place.note() for key, place in self._common.items()}
        self._between |= {key for key, value in now.items() if value != self._counted.get(key)}
        return now

    def _count_inside(self, before: notes.Notes) -> tuple[tuple[notes.Key, int], ...]:
        """After a unit: what it has added."""
        self._counted = {key: place.note() for key, place in self._common.items()}
        return tuple(
            (key, value - before[key])
            for key, value in self._counted.items()
            if type(value) is int and type(before[key]) is int and value != before[key]
        )

    def _describe(
        self,
        event: Event,
        result: Any,
        refilled: list[tuple[int, dict[Any, Any], dict[Any, Any]]],
        given: list[Any],
        inputs: list[torch.Tensor],
        held: list[tuple[Any, dict[Any, Any]]],
    ) -> None:
        """Notes the result, and what lists, mappings and objects among the arguments hold now."""
        fresh = len(self.trace.values)
        numbers = {id(holder): number for number, (holder, _) in enumerate(held)}

        def slot(leaf: Any) -> Slot:
            if id(leaf) in numbers and not isinstance(leaf, torch.Tensor):
                event.holders = True
                return Slot("holder", numbers[id(leaf)])
            tag = self._tag(leaf) if isinstance(leaf, torch.Tensor) else None
            if tag is not None and tag[1] >= fresh:  # the event gives one tensor several times
                return Slot("value", tag[1])
            return self._slot(leaf, event, given, inputs)

        event.result = map_leaves(slot, result, objects=True, stops=numbers)
        self._packed.update(tag[1] for tensor in _packed(result) if (tag := self._tag(tensor)) is not None)
        after = []
        for number, before, now in refilled:
            kept = {id(value): key for key, value in reversed(before.items())}
            slots = {
                key: Slot("kept", kept[id(value)])
                if id(value) in kept
                else map_leaves(slot, value, objects=True, stops=numbers)
                for key, value in now.items()
            }
            after.append((number, slots))
        event.refilled, event.holders = tuple(after), event.holders or bool(after)

    def _run(self, event: Event, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not event.is_unit:
            return function(*args, **kwargs)
        with _kept():
            return function(*args, **kwargs)

    def _find_left(self, event: Event, before: dict[Place, Any]) -> None:
        """What the unit has left sideways becomes part of its event."""

        def slot(leaf: Any) -> Slot:
            if not isinstance(leaf, torch.Tensor) or id(leaf) in self._parameters or id(leaf) in self._buffers:
                return Slot("opaque", type(leaf).__name__)
            tag = self._tag(leaf)
            return Slot("value", tag[1] if tag is not None else self._new_value(leaf, event))

        news = self._sideways.news(before, self._sideways.look(event.name))
        event.left = tuple((place, map_leaves(slot, value)) for place, value in news)

    def _find_strangers(self, name: str, inputs: list[torch.Tensor]) -> None:
        """Inputs that were computed, but not by anything that was seen: they have left a unit in a way unknown to us."""
        for tensor in inputs:
            if tensor.grad_fn is None or self._tag(tensor) is not None or id(tensor) in self._inputs:
                continue
            made = {self._parameters[key] for key in parameters_reached([tensor], set()) if key in self._parameters}
            makers = [event for event in self.trace.events if event.is_unit and made.intersection(event.parameters)]
            if not makers:
                continue
            now = max(0, len(self.trace.calls) - 1)
            reason = f"{name} reads a value that {makers[-1].name} has left outside of its results"
            for cut in range(makers[-1].position + 1, now + 2):
                self.trace.no_cut.setdefault(cut, reason)

    def _path(self, module: nn.Module, name: str) -> str:
        """The name by which a module is called: the one in the module around, where it has several."""
        if not self._paths:
            return name
        around, path = self._paths[-1]
        key = next((key for key, child in children_in(around).items() if child is module), None)
        return name if key is None else f"{path}.{key}".lstrip(".")

    def _place(self, event: Event, unit: nn.Module | None) -> int:
        if unit is not None and not event.replicated:
            self.trace.calls.append(event.name)
            self.trace.paths.append(self._path(unit, event.name))
        return max(0, len(self.trace.calls) - 1)

    def _buffers_of(self, parts: list[tuple[str, nn.Module]]) -> list[tuple[str, dict[str, Any], str, torch.Tensor, int]]:
        """Name, holder, key, tensor and version of each buffer of a unit.

        Args:
            parts: the modules that it is made of.
        """
        return [
            (f"{self._modules.get(id(module), '?')}.{key}".lstrip("."), buffers_in(module), key, buffer, _version(buffer))
            for _, module in parts
            for key, buffer in buffers_in(module).items()
            if buffer is not None
        ]

    def _swapped(self, parts: list[tuple[str, nn.Module]]) -> dict[tuple[str, str, str], torch.Tensor]:
        """Computed tensors that the unit has in place of its parameters or buffers (`torch.func.functional_call`)."""
        return {
            (name, kind, key): tensor
            for name, module in parts
            for kind in (PARAMETERS, BUFFERS)
            for key, tensor in getattr(module, kind).items()
            if tensor is not None and not self._is_own(tensor) and self._tag(tensor) is not None
        }

    def _is_own(self, tensor: torch.Tensor) -> bool:
        """Whether it is a parameter of the model's, which has no tag: to look for one takes longer."""
        return type(tensor) is nn.Parameter and id(tensor) in self._parameters

    def _taken(self, unit: str, places: dict[Place, Any]) -> list[tuple[Place, Any]]:
        """Values of this forward that lie in the unit before its call, from an earlier call or from code between units."""
        found = []
        for (anchor, keys), (holder, value) in places.items():
            if anchor[0] != "attributes" or not f"{anchor[1]}.".startswith(f"{unit}."):
                continue
            if any(self._tag(tensor) is not None for tensor in tensors(value)):
                last = keys[-1] - len(holder) if isinstance(holder, list) else keys[-1]
                found.append(((anchor, (*keys[:-1], last)), value))
        return found

    def _names_of(self, module: nn.Module) -> set[str]:
        return {self._parameters[id(value)] for value in module.parameters() if id(value) in self._parameters}

    def _slot(self, leaf: Any, event: Event, given: list[Any], inputs: list[torch.Tensor]) -> Slot:
        if isinstance(leaf, torch.Tensor):
            for index, tensor in enumerate(inputs):
                if tensor is leaf:
                    return Slot("argument", index)
            own = self._parameters.get(id(leaf)) or self._buffers.get(id(leaf))
            if own is not None:
                return Slot("own", own)
            tag = self._tag(leaf)  # of a tensor that is returned twice, or was made before
            return Slot("value", tag[1] if tag is not None else self._new_value(leaf, event))
        if isinstance(leaf, _CONSTANTS):
            return Slot("constant", leaf)
        for index, other in enumerate(given):
            if other is leaf:
                return Slot("leaf", index)
        return Slot("opaque", type(leaf).__name__)

    # Values ----------------------------------------------------------------------------------------------------------

    def _tag(self, tensor: torch.Tensor) -> tuple[object, int] | None:
        tag = getattr(tensor, "_trainshed", None)
        return tag if tag is not None and tag[0] is self._token else None

    def _new_value(self, tensor: torch.Tensor, event: Event) -> int:
        number = len(self.trace.values)
        self.trace.values[number] = Value(event.position, event.replicated, Meta.of(tensor))
        if id(tensor) not in self._parameters and id(tensor) not in self._buffers:
            tensor._trainshed = (self._token, number)  # type: ignore[attr-defined]
        self._storages.setdefault(_storage(tensor), {})[id(tensor)] = weakref.ref(tensor)
        return number

    def _mutate(self, tensor: torch.Tensor, event: Event, index: int) -> int:
        """A changed tensor is a new value; other names for its memory must live on the same stage (see `finish`)."""
        old = self._tag(tensor)
        if event.replicated:  # every stage does the same with all of those names
            return self._new_value(tensor, event)
        others = []
        for reference in self._storages.get(_storage(tensor), {}).values():
            other = reference()
            tag = self._tag(other) if other is not None else None
            if other is not None and other is not tensor and tag is not None:
                others.append(tag[1])
        if old is not None:
            self.trace.mutated_values.add(old[1])
        self.trace.mutated_values.update(others)
        group = list(dict.fromkeys(others + ([old[1]] if old is not None else [])))
        self._mutations.append((index, event.position, group, old is None))
        if id(tensor) not in self._inputs and _storage(tensor) in self._input_storages:
            self._input_views.append(event.position)
        return self._new_value(tensor, event)

    def _decides(self, how: str) -> None:
        """Values decide what happens next: the module around becomes one unit, or no stage may start later on."""
        if self._containers and self._containers[-1]:
            self._refuse(how)
        else:
            self._free_marks.append((len(self.trace.events), max(0, len(self.trace.calls) - 1), how))

    def _refuse(self, reason: str) -> None:
        name = self._containers[-1]
        if name:
            self.trace.atomic.setdefault(name, reason)
        else:
            raise PipelineError(
                f"the model's own forward cannot be cut: {reason}", hint="move that part into a separate module"
            )

    def _note_region(self, event: Event) -> None:
        """Events under one activation checkpoint are re-run together and so belong to one stage."""
        top = saved_tensors_hooks_now(False)
        if top is None or event.replicated or top[0] is _forget:
            return
        self._region_keep.append(top)
        self._regions.setdefault(id(top[0]), []).append(event.position)

    # The whole forward -----------------------------------------------------------------------------------------------

    def backward(self, losses: list[torch.Tensor]) -> None:
        """`model.backward(...)` in the step function."""
        self.trace.has_backward = True
        self._backward.extend(losses)

    def record(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Trace:
        """Runs the step function on one microbatch."""
        given = tensors((args, kwargs))
        self._inputs, self._input_storages = {id(tensor) for tensor in given}, {_storage(tensor) for tensor in given}
        noted, rolled = notes.notes(self._root, function), dice.get_state()
        self._rolled = rolled
        places = notes.places(self._root, function) if self._watched else ()
        self._common = {key: place for key, place in places if key in self._watched}
        self._counted = {key: place.note() for key, place in self._common.items()}
        # The graph is walked, never run: what it would save for a backward need not be kept.
        with torch.autograd.graph.saved_tensors_hooks(_forget, _forgotten), self.interception.active():
            result = function(*args, **kwargs)
            self.trace.draws = not dice.same(rolled, dice.get_state())
            self.trace.counters = notes.changed(noted, notes.notes(self._root, function))
            self._count_between()
            inside = self._common.keys() - self._between
            self.trace.tallies = frozenset(
                key for key in self.trace.counters if key[0] not in self._inside and key not in inside
            )
            self._note_buffers()
            self._note_held()
            trace = self._finish(result)
        self.sketch = _sketch(self._backward or tensors(result, objects=True))
        return trace

    def _note_held(self) -> None:
        """Which tensors in attributes every stage changes, in place or by another one."""
        events = self.trace.events
        makers = {slot.value: index for index, event in enumerate(events) for slot in event.slots if slot.kind == "value"}
        kept = set()
        for place, holder, key, was in self._held:
            there = key < len(holder) if isinstance(holder, list) else key in holder
            now = holder[key] if there else None
            tag = self._tag(now) if isinstance(now, torch.Tensor) and now is not was else None
            by = self._changed_by.get(id(was), [])
            if tag is not None and tag[1] in makers:
                by = [makers[tag[1]]]
            if by and all(events[index].replicated for index in by):
                kept.add(place)
                self.trace.kept_to = max(self.trace.kept_to, *by)
        self.trace.kept = frozenset(kept)

    def _note_buffers(self) -> None:
        """Which buffers were changed, and where; those too that were assigned anew between the units."""
        for index, event in enumerate(self.trace.events):
            for name in event.changes:
                self.trace.buffers[name] = event.position
                self._touched[name].append(index)
        known = {name: tensor for name, tensor in self._root.named_buffers(remove_duplicate=False)}
        of_before = set(self._buffers.values())
        fresh = [(0, name) for name in known if name not in of_before]
        for key, name in [*self._buffers.items(), *fresh]:
            now = known.get(name)
            tag = self._tag(now) if now is not None and id(now) != key else None
            if tag is not None and name not in self.trace.buffers and not self.trace.values[tag[1]].replicated:
                self.trace.buffers[name] = self.trace.values[tag[1]].position
                self.trace.anew += (name,)

    def _finish(self, result: Any) -> Trace:
        trace = self.trace
        end = max(0, trace.positions - 1)
        units = [index for index, event in enumerate(trace.events) if event.is_unit and not event.replicated]
        trace.tail = units[-1] + 1 if units else 0
        uses: dict[int, int] = {}  # value -> last event that reads it
        for index, event in enumerate(trace.events):
            for number in event.inputs:
                uses[number] = index
                if not event.replicated:
                    position = event.position if index < trace.tail else end + 1
                    trace.last_use[number] = max(trace.last_use.get(number, -1), position)
        for event in trace.events[trace.tail :]:
            made = [slot.value for slot in leaves(event.result, objects=True) if slot.kind == "value"]
            for number in [*made, *(number for _, number in event.mutated)]:
                trace.values[number] = replace(trace.values[number], position=end + 1)
        for tensor in [*tensors(result, objects=True), *self._backward]:
            tag = self._tag(tensor)
            if tag is not None:
                uses[tag[1]] = len(trace.events)
                trace.last_use[tag[1]] = end + 1
        trace.output = map_leaves(lambda leaf: Slot("value") if isinstance(leaf, torch.Tensor) else Slot("other"), result)
        self._forbid_cuts(uses, end)
        trace.free_from = min([index for index, position, _ in self._free_marks if position < end] + [trace.tail])
        trace.decided_from = min([index for index, _, _ in self._free_marks] + [len(trace.events)])
        trace.reads = bool(self._free_marks)
        reached = parameters_reached(self._backward, set())
        trace.reached = frozenset(self._parameters[key] for key in reached if key in self._parameters)
        return trace

    def _forbid_cuts(self, uses: dict[int, int], end: int) -> None:
        trace = self.trace
        through_a_view = "a value is changed in place through another view of it"
        for index, position, group, unknown in self._mutations:
            later = [number for number in group if uses.get(number, -1) > index]
            for cut in range(1, position + 1) if later else ():
                # Two names that cross a cut have memories of their own behind it.
                crossing = [
                    number for number in group if trace.values[number].position < cut <= self._read(number, uses, end)
                ]
                if len(crossing) + unknown > 1 and not set(later).isdisjoint(crossing):
                    trace.no_cut.setdefault(cut, through_a_view)
            for number in later:
                if trace.values[number].replicated:  # other stages make it anew, and do not see the change
                    for cut in range(position + 1, self._last_read(number, index, uses, end) + 1):
                        trace.no_cut.setdefault(cut, through_a_view)
        for cut in range(min(self._input_views, default=end) + 1, end + 1):
            trace.no_cut.setdefault(cut, "a view of an input is changed in place")
        for name in trace.buffers:
            around = [
                trace.events[index].position for index in self._touched.get(name, []) if not trace.events[index].replicated
            ]
            for cut in range(min(around, default=0) + 1, max([*around, trace.buffers[name]], default=0) + 1):
                trace.no_cut.setdefault(cut, f"the buffer {name} is changed on one side of it and used on the other")
        for number in self._packed:
            for cut in range(trace.values[number].position + 1, trace.last_use.get(number, -1) + 1):
                trace.no_cut.setdefault(cut, "a packed sequence has another number of rows in each batch")
        for positions in self._regions.values():
            for cut in range(min(positions) + 1, max(positions) + 1):
                trace.no_cut.setdefault(cut, "it would split an activation checkpoint")
        for _, position, how in self._free_marks:
            for cut in range(position + 1, end + 1):
                trace.no_cut.setdefault(cut, f"{how} before it")

    def _read(self, number: int, uses: dict[int, int], end: int) -> int:
        """Last position at which a value is read; -1 for none."""
        if number not in uses:
            return -1
        return self.trace.events[uses[number]].position if uses[number] < len(self.trace.events) else end

    def _last_read(self, number: int, index: int, uses: dict[int, int], end: int) -> int:
        """Last position after event `index` at which something follows from a replicated value."""
        events = [event for event in self.trace.events[index + 1 :] if number in event.inputs]
        everywhere = uses[number] >= len(self.trace.events) or any(event.replicated for event in events)
        return end if everywhere else max(event.position for event in events)


def _refilled(held: list[tuple[Any, dict[Any, Any]]]) -> list[tuple[int, dict[Any, Any], dict[Any, Any]]]:
    """Number, contents before and contents now of what is not as it was."""
    found = []
    for number, (holder, before) in enumerate(held):
        now = contents(holder)
        if list(now) != list(before) or any(now[key] is not value for key, value in before.items()):
            found.append((number, before, now))
    return found


def _sketch(made: list[torch.Tensor]) -> list[tuple[float, float]]:
    """Sum, and sum of the absolute values, of each tensor."""
    plain = (tensor.detach() for tensor in made if tensor.is_floating_point() and tensor.layout == torch.strided)
    return [
        (float(tensor.sum(dtype=torch.float64)), float(torch.linalg.vector_norm(tensor, 1, dtype=torch.float64)))
        for tensor in plain
        if not tensor.is_meta
    ]


def _hooks_gradients(module: nn.Module) -> bool:
    return has_hooks(module, BACKWARD_HOOKS) or any(backward_hooks_of_all)


def _packed(result: Any) -> list[torch.Tensor]:
    """The rows of packed sequences in a result."""
    if isinstance(result, PackedSequence):
        return [result.data]
    return [tensor for item in result for tensor in _packed(item)] if isinstance(result, (tuple, list)) else []


@contextmanager
def _kept() -> Iterator[None]:
    """Within the block a backward is possible: a unit may compute gradients of its own, for a penalty. Not afterwards."""
    boxes: list[list[torch.Tensor]] = []

    def keep(tensor: torch.Tensor) -> list[torch.Tensor]:
        boxes.append([tensor])
        return boxes[-1]

    def give(box: list[torch.Tensor]) -> torch.Tensor:
        return box[0] if box else _forgotten(None)

    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, give):
            yield
    finally:
        for box in boxes:
            box.clear()


def _forget(_tensor: torch.Tensor) -> None:
    return None


def _forgotten(_nothing: None) -> torch.Tensor:
    raise PipelineError(
        "gradients are computed inside the forward (backward, or torch.autograd.grad for a gradient penalty)",
        hint="for a loss call model.backward(loss); put a penalty of gradients and the modules that it goes through into "
        "one module, whose forward computes both, and name that in `atomic`",
    )


def _version(tensor: torch.Tensor) -> int:
    try:
        return version_of(tensor)
    except RuntimeError:  # inference tensors do not count their versions
        return 0


def _storage(tensor: torch.Tensor) -> int:
    try:
        return id(tensor.untyped_storage())
    except (RuntimeError, NotImplementedError):  # inside vmap there is no storage to speak of
        return id(tensor)
