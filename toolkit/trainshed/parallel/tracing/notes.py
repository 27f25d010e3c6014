"""Finds what the Python code of a forward notes: numbers, texts, containers of them, generators and iterators.

They are in attributes of modules and of objects that these hold, in classes, in variables that the step function and
what it calls have at hand, and in the object that the step function is bound to.
"""

from __future__ import annotations

import ctypes
import pickle
import random
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import torch
from torch import nn

from ..ground.torch_private import FORWARD_HOOKS, FORWARD_PRE_HOOKS, children_in
from .captured_values import ATOMS, OF_EVERY_MODULE, Variables, behind, functions_of, is_own, of_a_library
from .iteration import Iteration, is_iterator

Key = tuple[str, str]  # the module, "" for what belongs to none alone; and what of it
Notes = dict[Key, Any]
Function = Callable[..., Any] | None

_PLAIN = (int, float, complex, str, bytes)
_CONTAINERS = (list, deque, set, dict)
_DEEPEST = 3


class _OfClass:
    """The module itself has no such attribute: its class has."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _OfClass)

    __hash__ = None  # type: ignore[assignment]


class _Dice:
    """The state of a generator of random numbers; pickled, for it holds arrays."""

    def __init__(self, state: bytes) -> None:
        self.state = state

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Dice) and other.state == self.state

    __hash__ = None  # type: ignore[assignment]


class _Position:
    """How far an iterator is."""

    def __init__(self, at: int) -> None:
        self.at = at

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Position) and other.at == self.at

    __hash__ = None  # type: ignore[assignment]


class Place:
    """The place of a note: an entry of a mapping."""

    __slots__ = ("holder", "name")

    def __init__(self, holder: MutableMapping[str, Any], name: str) -> None:
        self.holder, self.name = holder, name

    def note(self) -> Any:
        """Returns what is there, to be compared and put back; None for what is not to be put back."""
        return _noted(self.holder.get(self.name, _MISSING))


def notes(root: nn.Module, function: Function = None) -> Notes:
    """All that is noted now.

    Args:
        function: the step function.
    """
    return {key: note for key, place in places(root, function) if (note := place.note()) is not None}


def changed(before: Notes, after: Notes) -> frozenset[Key]:
    """Lists what is another number, text or content."""
    return frozenset(key for key, value in after.items() if key in before and not _equal(before[key], value))


def put(root: nn.Module, noted: Notes, function: Function = None) -> None:
    """Puts back what is still of its kind; containers, generators and iterators stay the objects that they are."""
    for key, place in places(root, function, frozenset(noted)):
        if key in noted:
            _put(place.holder, place.name, noted[key])


def hold(root: nn.Module, function: Function = None) -> Notes:
    """All that is noted now, as `notes` gives it; from here on iterators have a way back."""
    found: Notes = {}
    for key, place in places(root, function):
        value: Any = place.holder.get(place.name)
        if is_iterator(value):
            place.holder[place.name] = Iteration(value)
        if (note := place.note()) is not None:
            found[key] = note
    return found


def forget_entries(root: nn.Module, function: Function, keys: frozenset[Key]) -> None:
    """Nobody goes back in an iterator.

    Args:
        keys: of what may be an iterator.
    """
    for _, place in places(root, function, keys):
        value = place.holder.get(place.name)
        if isinstance(value, Iteration):
            value.forget(value.at)


def places(root: nn.Module, function: Function = None, gone: frozenset[Key] = frozenset()) -> Iterator[tuple[Key, Place]]:
    """Every place where something may be noted, in one order on all ranks.

    Args:
        gone: keys of modules that are to be given where their attribute is not there any more.
    """
    used: set[Key] = set()
    seen: set[Any] = set()
    called: list[tuple[Any, type | None]] = [(function, None)]
    modules = list(root.named_modules())
    holders = _held_by_several([module for _, module in modules])
    placed = Counter(id(child) for _, module in modules for child in children_in(module).values())
    several = {where for where, module in modules if placed[id(module)] > 1}

    def of_module(where: str, name: str) -> Key:
        """A module that is registered in several places belongs to none alone."""
        return ("", f"{where}.{name}") if where in several else (where, name)

    def first(key: Key, identity: Any) -> Key | None:
        """A key for what was not given before."""
        if identity in seen:
            return None
        seen.add(identity)
        while key in used:
            key = key[0], f"{key[1]}'"
        used.add(key)
        return key

    kinds: dict[type, list[str]] = {}  # the names that a class gives, for a model has many modules of one class
    for where, module in modules:
        own, kind = module.__dict__, type(module)
        for name, value in list(own.items()):
            if name in OF_EVERY_MODULE:
                continue
            if (key := first(of_module(where, name), (id(own), name))) is not None:
                yield key, Place(own, name)
            if type(value) in ATOMS:
                continue
            if is_own(value):
                inner = value.__dict__
                shared = id(inner) in holders
                for part in list(inner):
                    key = ("", f"{where}.{name}.{part}".lstrip(".")) if shared else of_module(where, f"{name}.{part}")
                    if (key := first(key, (id(inner), part))) is not None:
                        yield key, Place(inner, part)
            elif callable(value) and not isinstance(value, (nn.Module, type)):
                called.append((value, kind))
        if kind not in kinds:
            kinds[kind] = list(_defaults(kind))
            for parent in kind.__mro__:
                if parent is nn.Module:
                    break
                if (parent, "mro") not in seen and not of_a_library(parent):
                    seen.add((parent, "mro"))
                    of_class = _ClassVariables(parent)
                    for name in list(of_class):
                        key = ("", f"{parent.__module__}.{parent.__qualname__}.{name}")
                        if (key := first(key, (parent, name))) is not None:
                            yield key, Place(of_class, name)
            called.append((getattr(kind, "forward", None), kind))
        for name in kinds[kind]:
            if name not in own and (key := first(of_module(where, name), (id(own), name))) is not None:
                yield key, Place(own, name)
        for hooks in (FORWARD_HOOKS, FORWARD_PRE_HOOKS):
            if own.get(hooks):
                called += [(hook, None) for hook in own[hooks].values()]
    for one in behind(function)[1] if function is not None else ():
        if is_own(one):
            for name in list(one.__dict__):
                if (key := first(("", f"{type(one).__qualname__}.{name}"), (id(one.__dict__), name))) is not None:
                    yield key, Place(one.__dict__, name)
    for start, owner in called:
        if (id(start), owner) in seen:
            continue
        seen.add((id(start), owner))
        for one in functions_of(start, owner):
            if (id(one), "variables") in seen:
                continue
            seen.add((id(one), "variables"))
            variables = Variables(one)
            for name in list(variables):
                key = ("", f"{one.__module__}.{one.__qualname__}:{name}")
                if (key := first(key, ("variable", variables.place(name)))) is not None:
                    yield key, Place(variables, name)
    for where, name in gone - used:
        if not where:
            continue
        there = next((module for found, module in modules if found == where), None)
        if there is not None and "." not in name:
            yield (where, name), Place(there.__dict__, name)


class _ClassVariables(MutableMapping[str, Any]):
    """The numbers, texts and containers of a class."""

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def __getitem__(self, name: str) -> Any:
        return vars(self._kind)[name]

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self._kind, name, value)

    def __delitem__(self, name: str) -> None:
        delattr(self._kind, name)

    def __iter__(self) -> Iterator[str]:
        for name, value in list(vars(self._kind).items()):
            if isinstance(value, (*_PLAIN, *_CONTAINERS)) and not name.startswith("__"):
                yield name

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _held_by_several(modules: list[nn.Module]) -> set[int]:
    """Ids of the attributes of objects that several modules hold."""
    once: set[int] = set()
    several: set[int] = set()
    for module in modules:
        for name, value in module.__dict__.items():
            if name not in OF_EVERY_MODULE and is_own(value):
                held = id(value.__dict__)
                (several if held in once else once).add(held)
    return several


def _defaults(kind: type) -> Iterator[str]:
    """Names of the numbers and texts that a module's class gives to all of its kind."""
    for parent in kind.__mro__:
        if parent is nn.Module:
            return
        if not parent.__module__.startswith("torch."):
            for name, value in vars(parent).items():
                if isinstance(value, _PLAIN) and not isinstance(value, bool) and not name.startswith("__"):
                    yield name


def _noted(value: Any) -> Any:
    if value is _MISSING:
        return _OfClass()
    if isinstance(value, bool):
        return None
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, _CONTAINERS):
        return _copy(value) if _is_plain(value) else None
    if isinstance(value, Iteration):
        return _Position(value.at)
    state = rolled(value)
    return None if state is None else _Dice(pickle.dumps(state))


def _put(there: MutableMapping[str, Any], name: str, value: Any) -> None:
    now: Any = there.get(name)
    if isinstance(value, _OfClass):
        if isinstance(now, _PLAIN):
            del there[name]
    elif isinstance(value, _Dice):
        if (state := rolled(now)) is not None and pickle.dumps(state) != value.state:
            roll(now, pickle.loads(value.state))
    elif isinstance(value, _Position):
        if isinstance(now, Iteration):
            now.at = value.at
    elif isinstance(value, _PLAIN):
        if isinstance(now, _PLAIN) and type(now) is type(value) and not _equal(now, value):
            there[name] = value
        elif name not in there:
            there[name] = value  # it was taken back to the class's own
    elif type(now) is type(value) and not _equal(now, value) and _is_plain(now):
        _refill(now, value)


def rolled(value: Any) -> Any:
    """The state of a generator of random numbers; None of anything else."""
    if isinstance(value, torch.Generator):
        with torch.DisableTorchFunction():  # no part of a forward that is being recorded
            state = value.get_state()
            return ctypes.string_at(state.data_ptr(), state.numel())  # a pickled tensor is another text each time
    if isinstance(value, random.Random):
        return value.getstate()
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.random.Generator):
        return value.bit_generator.state
    if numpy is not None and isinstance(value, numpy.random.RandomState):
        return value.get_state()
    return None


def roll(value: Any, state: Any) -> None:
    """Puts a generator where `rolled` found it."""
    if isinstance(value, torch.Generator):
        value.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    elif isinstance(value, random.Random):
        value.setstate(state)
    elif hasattr(value, "bit_generator"):
        value.bit_generator.state = state
    else:
        value.set_state(state)


def _is_plain(container: Any, depth: int = 0) -> bool:
    """Whether there are numbers and texts alone in it, and containers of them."""
    values = [*container, *container.values()] if isinstance(container, dict) else container
    return all(
        isinstance(value, _PLAIN)
        or value is None
        or (depth < _DEEPEST and isinstance(value, (*_CONTAINERS, tuple)) and _is_plain(value, depth + 1))
        for value in values
    )


def _copy(value: Any) -> Any:
    if not isinstance(value, _CONTAINERS):
        return value
    made = value.copy()
    if isinstance(made, dict):
        for key in made:
            made[key] = _copy(made[key])
    elif not isinstance(made, set):
        for number, entry in enumerate(made):
            made[number] = _copy(entry)
    return made


def _refill(now: Any, was: Any) -> None:
    """Gives a container the content of another one; containers in it stay the ones that they are."""
    if isinstance(now, dict):
        for key in [key for key in now if key not in was]:
            del now[key]
        for key, value in was.items():
            now[key] = _refilled(now.get(key), value)
    elif isinstance(now, set):
        now.clear()
        now.update(was)
    else:
        kept = list(now)
        now.clear()
        now.extend(_refilled(kept[number] if number < len(kept) else None, value) for number, value in enumerate(was))


def _refilled(now: Any, was: Any) -> Any:
    if isinstance(was, _CONTAINERS) and type(now) is type(was):
        _refill(now, was)
        return now
    return _copy(was)


def _equal(one: Any, other: Any) -> bool:
    return bool(one == other)


_MISSING: Any = object()
