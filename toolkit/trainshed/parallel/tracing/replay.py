"""One stage's forward of one microbatch: the user's own step function, computing only this stage's positions.

Events of earlier stages give what was received from them, or else stand-ins on the meta device (which are exchanged for
the real tensor where they come to be one by a change in place); the first event of a later stage ends the forward. Every
event is compared with the record, by name and by the values that it reads: a forward that goes another way stops with the
place, and never gives a wrong gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import delitem, setitem
from typing import Any

import torch
from torch import nn

from ..ground.errors import TraceMismatch
from ..ground.tree import contents, exchange, holders, leaves, map_leaves, put_contents, tensors
from . import host_rng as dice
from . import notes
from .call_routing import UnitGates
from .intercept import OperationMode, patch_functions, restore
from .side_outputs import Place
from .trace import Event, Slot, Trace

_ATOMS = frozenset({type(None), bool, int, float, str, torch.dtype, torch.device, torch.Size})


class Finished(BaseException):
    """The first event of a later stage; no Exception, so that the user's `except Exception` lets it pass."""


class Unavailable:
    """In place of an object (no tensor, no plain value) that another stage made."""

    def __init__(self, where: str, kind: str) -> None:
        object.__setattr__(self, "_where", where)
        object.__setattr__(self, "_kind", kind)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        where, kind = object.__getattribute__(self, "_where"), object.__getattribute__(self, "_kind")
        raise TraceMismatch(
            f"{where} returned a {kind}, which cannot travel between stages, and {name!r} of it is used on another one",
            hint="return tensors, or keep both modules in one stage",
        )


class StageForward:
    """Runs positions `first` to `last - 1` of a trace.

    Args:
        gates: of the trace's units.
        received: numbers of values from the previous stage -> tensors, shapes as recorded.
        wanted: numbers of the values to hand on.

    elsewhere: units of other stages of this rank.
    passing: whether this is no stage, and leaves nothing behind.
    rolled: event that draws from Python's or numpy's generators -> their states after it; those of earlier stages are given.
    """

    def __init__(
        self,
        trace: Trace,
        gates: UnitGates,
        device: torch.device,
        first: int,
        last: int,
        received: dict[int, torch.Tensor],
        wanted: tuple[int, ...],
    ) -> None:
        self.trace = trace
        self.first, self.last = first, last
        self.is_last = last >= trace.positions
        self.checked_to = trace.free_from  # event from which the last stage is free
        self.values = dict(received)
        self.wanted = frozenset(wanted)
        self.elsewhere: frozenset[str] = frozenset()
        self.passing = False
        self.rolled: dict[int, dice.State] = {}
        self.losses: list[torch.Tensor] = []
        self._gates = gates
        self._mode = OperationMode(self)
        self._device = device
        self._token = object()
        self._next = 0  # index of the next recorded event
        self._depth = 0
        self._free = False
        self._beyond = False  # the first event of a later stage has come
        self._ended = False  # and nothing is computed any more
        self._sideways = gates.sideways
        self._ghosts: set[int] = set()
        for number, tensor in received.items():
            self._tag(tensor, number)
        self._keep: list[torch.Tensor] = []  # ids of stand-ins must not be given to other tensors
        self._undo: list[Callable[[], None]] = []
        self._common: dict[notes.Key, notes.Place] = {}

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns what the step function returns on the last stage; None on the others.

        Raises:
            TraceMismatch: the forward differs from the record.
        """
        if self.trace.uses_functions:
            patch_functions(self._mode)
        if self.trace.counts:
            self._common = dict(notes.places(self._gates.root, function))
        anew = [(holder, key, holder.get(key)) for holder, key in self._gates.buffers(self.trace.anew)]
        try:
            with self._gates.kept(self), self._mode:
                result = function(*args, **kwargs)
                if self._over() or self._beyond:  # to the end with stand-ins, or the user's code has caught what ended it
                    return None
                if not self.is_last or self._next < self.checked_to:
                    raise self._differs("the step function ended", "before its last recorded event")
                return map_leaves(self._bind, result, objects=True)
        except Finished:
            return None
        finally:
            restore()
            for undo in reversed(self._undo):
                undo()
            for event in self.trace.events[self._next :] if self._common and not self.is_last else ():
                self._count(event)
            for holder, key, before in anew:
                if id(holder.get(key)) in self._ghosts:  # another stage's buffer now: a stand-in must not stay behind
                    holder[key] = before

    # What the interception calls -------------------------------------------------------------------------------------

    def device_of(self, tensor: torch.Tensor) -> torch.device | None:
        """Stand-ins claim the stage's own device."""
        return self._device if id(tensor) in self._ghosts else None

    def reentrant(self) -> None:
        """As it was recorded."""

    def unit_call(self, name: str, native: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A unit is an event; PyTorch is itself while it runs."""
        if self._depth:
            return native(*args, **kwargs)
        mode, gates = self._mode, self._gates
        gates.keeper = None
        left = mode.leave()
        try:
            event = self._plain(name, True, args, kwargs)
            if event is None:
                return self._event(name, True, native, args, kwargs)
            try:
                return self._done(event, native, args, kwargs)
            except (RuntimeError, NotImplementedError) as error:
                self._explain(name, error)
                raise
        finally:
            mode.resume(left)
            gates.keeper = self

    def _plain(self, name: str, is_unit: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Event | None:
        """The recorded event, where it is no later stage's, reads and makes values, and nothing else is to be seen to: most
        events are like that, and `_event` would find out the same in ten times as long."""
        index, trace = self._next, self.trace
        if self._free or self._beyond or index >= (trace.decided_from if self.is_last else trace.tail):
            return None
        event = trace.events[index]
        if event.name != name or not event.plain or event.is_unit is not is_unit:
            return None
        here = self._is_here(event)
        if not here and (event.sole is None or event.position >= self.last):
            return None
        numbers = []
        for one in (*args, *kwargs.values()) if kwargs else args:
            if type(one) is torch.Tensor:
                tag = getattr(one, "_trainshed", None)
                if tag is not None:
                    if tag[0] is not self._token or (here and id(one) in self._ghosts):
                        return None
                    numbers.append(tag[1])
            elif type(one) not in _ATOMS:
                return None
        return event if event.inputs == tuple(numbers) else None

    def _is_here(self, event: Event) -> bool:
        """Whether this stage computes the next event; the last one computes all that comes after the modules."""
        alone = self.is_last and self._next >= self.checked_to
        return alone or event.replicated or self.first <= event.position < self.last

    def _done(self, event: Event, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a plain event, or what stands for it."""
        here = self._is_here(event)
        self._next += 1
        if not here and event.sole is not None:
            return self._ghost(event.sole)
        self._depth += 1
        try:
            result = function(*args, **kwargs)
        finally:
            self._depth -= 1
        if event.sole is None or type(result) is not torch.Tensor:
            self._mark(event, result, tensors((args, kwargs), objects=True), [])
            return result
        result._trainshed = (self._token, event.sole)  # type: ignore[attr-defined]
        if event.sole in self.wanted:
            self.values[event.sole] = result
        return result

    def operation(self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operation between units."""
        if self._depth:
            return function(*args, **kwargs)
        event = self._plain(name, False, args, kwargs)
        if event is None:
            return self._event(name, False, function, args, kwargs)
        return self._done(event, function, args, kwargs)

    def backward(self, losses: list[torch.Tensor]) -> None:
        """`model.backward(...)` in the step function: only the last stage comes that far."""
        if self._beyond:
            return
        self.losses.extend(self._bind(loss) for loss in losses)

    def _over(self) -> bool:
        """Whether no later stage has a module to run, and only what comes after the modules is left, for the last one."""
        return not self.is_last and self.last >= self.trace.positions and self._next >= self.trace.tail

    # Events ----------------------------------------------------------------------------------------------------------

    def _compute(self, function: Callable[..., Any], args: Any, kwargs: Any, given: list[Any]) -> Any:
        """Calls the function with real tensors in place of stand-ins.

        Lists, dictionaries and objects stay those of the user's code, which may read what the function puts there.
        """
        if self._ghosts and any(id(leaf) in self._ghosts for leaf in given):
            args, kwargs = exchange(self._bind, args), exchange(self._bind, kwargs)
        return self._call(function, args, kwargs)

    def _call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Calls the function; what it calls in turn is not intercepted."""
        self._depth += 1
        try:
            return function(*args, **kwargs)
        finally:
            self._depth -= 1

    def _event(self, name: str, is_unit: bool, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        given = leaves((args, kwargs), objects=True)
        if self._free:
            return self._compute(function, args, kwargs, given)
        if self._beyond and self._next >= self.trace.decided_from:
            self._ended = True
        if self._ended:
            return self._ending(is_unit, function, args, kwargs, given)
        event = self.trace.events[self._next] if self._next < len(self.trace.events) else None
        if is_unit and event is not None and event.swapped and event.name == name:
            given += self._swapped(event)
        taken: list[tuple[Any, Any]] = []
        if is_unit and event is not None and event.taken and event.name == name:
            taken = self._places(event.name, event.taken)
            given += [tensor for holder, key in taken for tensor in self._found(holder, key)]
        inputs = [leaf for leaf in given if isinstance(leaf, torch.Tensor)]
        numbers = tuple(number for tensor in inputs if (number := self._number(tensor, name)) is not None)
        if self.is_last and self._next >= self.checked_to:
            return self._tail_event(name, function, args, kwargs, event, given, inputs, numbers)
        if event is None or event.name != name or event.inputs != numbers:
            if is_unit:
                raise self._differs(f"module {name!r}", self._expected(event, numbers))
            return self._untracked(name, function, args, kwargs, event, numbers, given)
        if (not event.replicated and event.position >= self.last) or self._over():
            self._beyond = True
            done = not self.trace.tallies and self._next > self.trace.kept_to
            if done or self._next >= self.trace.decided_from:
                self._ended = True
                raise Finished
        index, self._next = self._next, self._next + 1
        places = self._places(event.name, [place for place, _ in event.left]) if event.left else []
        held = holders((args, kwargs)) if event.holders else []
        if event.replicated or (event.position >= self.first and not self._beyond):
            if event.swapped:
                self._bind_swapped(event)
            for holder, key in taken:
                holder[key] = map_leaves(self._bind, holder[key])
            counted = self._counts(event)
            try:
                result = self._compute(function, args, kwargs, given)
            except (RuntimeError, NotImplementedError) as error:
                if is_unit:
                    self._explain(name, error)
                raise
            if counted != [value - more for value, (_, more) in zip(self._counts(event), event.counts, strict=True)]:
                raise TraceMismatch(
                    f"{name} adds another number to {event.counts[0][0][1]} than it did when it was recorded",
                    hint="other modules can read that: let each module count in an attribute of its own",
                )
            if event.draws:
                self.rolled[index] = dice.get_state()
            self._mark(event, result, inputs, held)
            for (holder, key), (_, slots) in zip(places, event.left, strict=True):
                self._mark_left(event, slots, holder, key)
            return result
        if index in self.rolled:
            dice.set_state(self.rolled[index])
        self._count(event)
        result = self._stand_in(event, given, inputs, held)
        known = {
            number: t for t in [*tensors(result, objects=True), *inputs] if (number := self._number(t, name)) is not None
        }
        for (holder, key), (_, slots) in zip(places, event.left, strict=True):
            if self.passing or name in self.elsewhere:
                self._note_before(holder, key)
            self._sideways.put(holder, key, map_leaves(lambda slot: self._made_by_another(event, slot, known), slots))
        return result

    def _counts(self, event: Event) -> list[int]:
        return [self._common[key].note() for key, _ in event.counts]

    def _count(self, event: Event) -> None:
        """Adds what another stage's unit adds."""
        for key, more in event.counts:
            place = self._common[key]
            place.holder[place.name] += more

    def _ending(self, is_unit: bool, function: Callable[..., Any], args: Any, kwargs: Any, given: list[Any]) -> Any:
        """After the end of this stage's part: a `finally` or the exit of a `with` puts back what it has changed. What fails
        for want of values is done by the stage that has them, as is whatever follows."""
        if is_unit:
            raise Finished
        try:
            return self._compute(function, args, kwargs, given)
        except Exception:
            raise Finished from None

    def _note_before(self, holder: Any, key: Any) -> None:
        """What is there now is put back at the end: the stage of the unit goes on with it."""
        there = key < len(holder) if isinstance(holder, list) else key in holder
        self._undo.append(partial(setitem, holder, key, holder[key]) if there else partial(delitem, holder, key))

    def _tail_event(
        self,
        name: str,
        function: Callable[..., Any],
        args: Any,
        kwargs: Any,
        event: Event | None,
        given: list[Any],
        inputs: list[torch.Tensor],
        numbers: tuple[int, ...],
    ) -> Any:
        """After the last module the forward is this stage's alone, and may decide by anything. As long as it does what is
        recorded, it does so with the values that are recorded: others were left here by the wrong module."""
        if event is not None and self._next < self.trace.decided_from and event.name == name:
            if event.inputs != numbers:
                raise self._differs(f"operation {name!r}", self._expected(event, numbers))
            self._next += 1
            held = holders((args, kwargs)) if event.holders else []
            result = self._compute(function, args, kwargs, given)
            self._mark(event, result, inputs, held)
            return result
        result = self._compute(function, args, kwargs, given)
        self._free = event is None or bool(tensors(result, objects=True))
        return result

    def _places(self, unit: str, places: Sequence[Place]) -> list[tuple[Any, Any]]:
        try:
            return self._sideways.holders(list(places))
        except (LookupError, AttributeError, TypeError) as error:
            raise TraceMismatch(
                f"{unit} left or found a value in an attribute or a hook that is gone now ({error})",
                hint="change hooks before the first step only",
            ) from error

    @staticmethod
    def _found(holder: Any, key: Any) -> list[torch.Tensor]:
        """The values that lie in a place now."""
        try:
            return tensors(holder[key])
        except LookupError:
            return []

    def _mark_left(self, event: Event, slots: Any, holder: Any, key: Any) -> None:
        try:
            made = leaves(holder[key])
        except LookupError:
            made = []
        expected = leaves(slots)
        if len(made) != len(expected):
            raise self._differs(f"what {event.name!r} left in an attribute or a hook", f"{len(expected)} values there")
        for slot, leaf in zip(expected, made, strict=True):
            if slot.kind == "value" and isinstance(leaf, torch.Tensor):
                self._tag(leaf, slot.value)
                if slot.value in self.wanted:
                    self.values[slot.value] = leaf

    def _made_by_another(self, event: Event, slot: Slot, known: dict[int, torch.Tensor]) -> Any:
        if slot.kind != "value":
            return Unavailable(event.name, slot.value)
        if slot.value not in known:
            known[slot.value] = self._ghost(slot.value)
        return known[slot.value]

    def _untracked(
        self,
        name: str,
        function: Callable[..., Any],
        args: Any,
        kwargs: Any,
        event: Event | None,
        numbers: tuple[int, ...],
        given: list[Any],
    ) -> Any:
        """Runs an operation that is not in the record: allowed if it returns no tensor (a question about one)."""
        ghosts = any(id(leaf) in self._ghosts for leaf in given)
        try:
            # Questions about a stand-in's shape and type are answered by the stand-in itself.
            result = self._call(function, args, kwargs)
        except (RuntimeError, NotImplementedError) as error:
            if ghosts:
                raise self._differs(f"operation {name!r}", self._expected(event, numbers)) from error
            raise
        if tensors(result, objects=True):
            raise self._differs(f"operation {name!r}", self._expected(event, numbers))
        return result

    def _mark(self, event: Event, result: Any, inputs: list[torch.Tensor], held: list[Any]) -> None:
        for index, number in event.mutated:
            real = self._bind(inputs[index])
            self._tag(inputs[index], number)
            self._tag(real, number)
            self.values[number] = real  # the user may go on with the stand-in that this is the value of
        self._mark_made(event, f"the result of {event.name!r}", event.slots, result, inputs, held)
        for number, after in event.refilled:
            what, now = f"what {event.name!r} put into its argument", contents(held[number])
            if list(now) != list(after):
                raise self._differs(what, f"{', '.join(map(str, after))}, now {', '.join(map(str, now))}")
            for key, slots in after.items():
                if not (isinstance(slots, Slot) and slots.kind == "kept"):
                    self._mark_made(event, what, leaves(slots, objects=True), now[key], inputs, held)

    def _mark_made(
        self, event: Event, what: str, slots: Sequence[Slot], result: Any, inputs: list[torch.Tensor], held: list[Any]
    ) -> None:
        """Notes which values the tensors are that an event has made.

        Args:
            what: they are, for errors.
            slots: of what is recorded.
        """
        stops = set(map(id, held))
        made = leaves(result, objects=True, stops=stops)
        if len(slots) != len(made):
            raise self._differs(what, f"{len(slots)} values, now {len(made)}")
        for slot, leaf in zip(slots, made, strict=True):
            if slot.kind == "holder" and leaf is not held[slot.value]:
                raise self._differs(what, "one of its arguments")
            if slot.kind == "value" and isinstance(leaf, torch.Tensor):
                self._tag(leaf, slot.value)
                if slot.value in self.wanted:
                    self.values[slot.value] = leaf
            elif slot.kind == "argument":
                if not isinstance(leaf, torch.Tensor):
                    raise self._differs(what, "one of its arguments")
                tag = getattr(inputs[slot.value], "_trainshed", None)
                if tag is not None and tag[0] is self._token:
                    self._tag(leaf, tag[1])
            elif slot.kind == "own" and self._gates.tensor(slot.value) is not leaf:
                raise self._differs(f"the result of {event.name!r}", f"{slot.value!r}")
            elif slot.kind == "constant" and slot.value != leaf:
                raise self._differs(what, f"{slot.value!r}, now {leaf!r}")
            elif slot.kind == "value":
                raise self._differs(what, f"a tensor, now {type(leaf).__name__}")

    def _swapped(self, event: Event) -> list[Any]:
        """The computed tensors that a unit has in place of its parameters now."""
        return [getattr(self._gates.part(event.name, part), kind).get(key) for part, kind, key in event.swapped]

    def _bind_swapped(self, event: Event) -> None:
        for part, kind, key in event.swapped:
            there = getattr(self._gates.part(event.name, part), kind)
            there[key] = self._bind(there[key])

    def _stand_in(self, event: Event, given: list[Any], inputs: list[torch.Tensor], held: list[Any]) -> Any:
        for index, number in event.mutated:
            self._tag(inputs[index], number)
            if not isinstance(inputs[index], nn.Parameter):
                # A tensor that every stage makes (`torch.zeros`) and another one has filled in: what it holds here is old.
                self._ghosts.add(id(inputs[index]))
                self._keep.append(inputs[index])

        made: dict[int, torch.Tensor] = {}

        def make(slot: Slot) -> Any:
            if slot.kind == "value":
                if slot.value not in made:  # an event may give one tensor several times
                    made[slot.value] = self._ghost(slot.value)
                return made[slot.value]
            if slot.kind == "own":
                return self._gates.tensor(slot.value)
            if slot.kind == "argument":
                return inputs[slot.value]
            if slot.kind == "leaf":
                return given[slot.value]
            if slot.kind == "holder":
                return held[slot.value]
            return slot.value if slot.kind == "constant" else Unavailable(event.name, slot.value)

        result = map_leaves(make, event.result, objects=True)
        for number, after in event.refilled:
            before = contents(held[number])
            put_contents(held[number], {key: self._refill(make, slots, before) for key, slots in after.items()})
        return result

    @staticmethod
    def _refill(make: Callable[[Slot], Any], slots: Any, before: dict[Any, Any]) -> Any:
        if isinstance(slots, Slot) and slots.kind == "kept":
            return before[slots.value]
        return map_leaves(make, slots, objects=True)

    # Values ----------------------------------------------------------------------------------------------------------

    def _ghost(self, number: int) -> torch.Tensor:
        """What stands for a value of another stage."""
        if number in self.values:  # received: an activation checkpoint around its next use must see it
            return self.values[number]
        ghost = self.trace.values[number].meta.empty()
        self._ghosts.add(id(ghost))
        self._keep.append(ghost)
        self._tag(ghost, number)
        return ghost

    def _tag(self, tensor: torch.Tensor, number: int) -> None:
        if type(tensor) is torch.Tensor or not isinstance(tensor, nn.Parameter):
            tensor._trainshed = (self._token, number)  # type: ignore[attr-defined]

    def _number(self, tensor: torch.Tensor, name: str) -> int | None:
        tag = getattr(tensor, "_trainshed", None)
        if tag is None:
            return None
        if tag[0] is self._token:
            return tag[1]
        if tensor.device.type == "meta" and self._device.type != "meta":
            raise _left_by_an_earlier_microbatch(name)
        return None

    def _explain(self, unit: str, error: Exception) -> None:
        """After an error in a unit.

        Raises:
            TraceMismatch: there is in it what stood for a value in an earlier microbatch.
        """
        there = [value for _, value in self._sideways.look(unit).values()]
        old = [tensor for tensor in tensors(there) if tensor.is_meta and self._device.type != "meta"]
        if any(getattr(tensor, "_trainshed", (self._token,))[0] is not self._token for tensor in old):
            raise _left_by_an_earlier_microbatch(unit) from error

    def _bind(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or id(leaf) not in self._ghosts:
            return leaf
        number = leaf._trainshed[1]  # type: ignore[attr-defined]
        real = self.values.get(number)
        if real is None:
            raise TraceMismatch(
                f"value {number}, made by {self._maker(number)}, is needed here but was not sent to this stage",
                hint="the forward differs from the recorded one",
            )
        return real

    def _maker(self, number: int) -> str:
        for event in self.trace.events:
            if any(slot.kind == "value" and slot.value == number for slot in leaves(event.result, objects=True)):
                return event.name
        return "an earlier operation"

    def _expected(self, event: Event | None, numbers: tuple[int, ...]) -> str:
        if event is None:
            return "the end of the forward"
        kind = "module" if event.is_unit else "operation"
        if event.inputs != numbers:
            return f"{kind} {event.name!r} on values {event.inputs}, now on {numbers}"
        return f"{kind} {event.name!r}"

    def _differs(self, what: str, expected: str) -> TraceMismatch:
        around = [event.name for event in self.trace.events[max(0, self._next - 1) : self._next]]
        after = f" after {around[-1]!r}" if around else ""
        return TraceMismatch(
            f"the forward differs from the recorded one: {what}{after} where the record has {expected}",
            hint="control flow that depends on values must be inside one module: name it in `atomic`",
        )


def _left_by_an_earlier_microbatch(name: str) -> TraceMismatch:
    return TraceMismatch(
        f"{name} reads a value that an earlier microbatch left on another stage",
        hint="make it a buffer that is changed in place, or keep both in one stage: name the module in `atomic`",
    )
