"""Values that modules and functions have at hand without being given them."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterator, MutableMapping
from typing import Any

from torch import nn

from ..ground.torch_private import CALL

# Attributes of every module: its parameters, hooks, children and the like.
OF_EVERY_MODULE = frozenset(vars(nn.Module())) | {CALL, "_is_hf_initialized"}
# Whose functions keep nothing for a model; transformers' recorder of outputs is known by name.
_LIBRARIES = frozenset(
    {
        *("builtins", "torch", "torchvision", "numpy", "collections", "functools", "itertools", "types", "typing"),
        *("transformers", "trainshed", "unittest", "logging", "inspect", "contextlib", "copy"),
    }
)
# Nothing is inside of these: most attributes are, and a plan asks about those of each of a thousand layers many times.
ATOMS = frozenset({bool, int, float, complex, str, bytes, type(None)})
# Functions that are called by functions are followed so far.
_FAR = 4


def closure_of(function: Any) -> Iterator[tuple[str, Any, Any]]:
    """(name, cell, value) of each variable that a function reads of those around it; without those not set yet."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=False):
        try:
            value = cell.cell_contents
        except ValueError:
            continue
        yield name, cell, value


def behind(function: Any) -> tuple[list[types.FunctionType], list[Any]]:
    """The functions that run when one is called, and the objects that they are given without the caller: that of a method,
    an object that can be called, those of a `functools.partial`."""
    functions: list[types.FunctionType] = []
    objects: list[Any] = []
    waiting = [function]
    while waiting:
        one = waiting.pop(0)
        while hasattr(one, "__wrapped__"):
            one = one.__wrapped__
        if isinstance(one, functools.partial):
            given = [*one.args, *one.keywords.values()]
            waiting += [one.func, *(value for value in given if isinstance(value, _CALLED))]
            objects += [value for value in given if not isinstance(value, _CALLED)]
        elif isinstance(one, types.MethodType):
            objects.append(one.__self__)
            waiting.append(one.__func__)
        elif isinstance(one, types.FunctionType):
            functions.append(one)
        elif (call := _call_of(one)) is not None:
            objects.append(one)
            waiting.append(call)
    return functions, objects


def _call_of(value: Any) -> types.FunctionType | None:
    """What runs when an object is called, if its class is written in Python."""
    call = inspect.getattr_static(type(value), "__call__", None)
    return call if isinstance(call, types.FunctionType) else None


def name_of(function: Any) -> str:
    """The qualified name of a function, that of its class for an object that can be called."""
    while isinstance(function, functools.partial) or hasattr(function, "__wrapped__"):
        function = function.func if isinstance(function, functools.partial) else function.__wrapped__
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def of_a_library(kind: Any) -> bool:
    """Returns whether a class or function is not the script's own."""
    return (getattr(kind, "__module__", None) or "builtins").partition(".")[0] in _LIBRARIES


def is_own(value: Any) -> bool:
    """Returns whether it is an object of the script's own that notes things, as a configuration does."""
    kind = type(value)
    if kind in ATOMS:
        return False
    if isinstance(value, (nn.Module, type, types.FunctionType)) or not isinstance(getattr(value, "__dict__", None), dict):
        return False
    return kind.__name__ == "SimpleNamespace" or not (of_a_library(kind) or hasattr(kind, "__torch_function__"))


class Variables(MutableMapping[str, Any]):
    """The variables of a function that are not its own: those around it, and those of its module that it names."""

    def __init__(self, function: types.FunctionType) -> None:
        self._cells = {name: cell for name, cell, _ in closure_of(function)}
        self._globals = function.__globals__
        self._named = _names(function.__code__)

    def __getitem__(self, name: str) -> Any:
        if name not in self._cells:
            return self._globals[name]
        try:
            return self._cells[name].cell_contents
        except ValueError:
            raise KeyError(name) from None

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self._cells:
            self._cells[name].cell_contents = value
        else:
            self._globals[name] = value

    def __delitem__(self, name: str) -> None:
        if name in self._cells:
            del self._cells[name].cell_contents
        else:
            del self._globals[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._cells
        yield from (name for name in self._named if name in self._globals and name not in self._cells)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def place(self, name: str) -> int:
        """Equal for one variable of several functions."""
        return id(self._cells[name]) if name in self._cells else hash((id(self._globals), name))


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> tuple[str, ...]:
    """Names of variables of the module, and of attributes, in a function and the functions inside it."""
    found = dict.fromkeys(code.co_names)
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            found.update(dict.fromkeys(_names(one)))
    return tuple(found)


def functions_of(start: Any, owner: type | None = None) -> list[types.FunctionType]:
    """A function of the script's own, and those that it calls as far as their names tell, in a fixed order.

    Args:
        start: anything that can be called.
        owner: the class whose methods it calls by `self`.
    """
    found: dict[int, types.FunctionType] = {}
    waiting: list[tuple[Any, int]] = [(start, 0)]
    while waiting:
        function, far = waiting.pop(0)
        while hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        if isinstance(function, functools.partial):
            waiting += [(one, far) for one in (function.func, *function.args, *function.keywords.values())]
        function = getattr(function, "__func__", function)
        if not isinstance(function, (types.FunctionType, nn.Module)):
            owner = owner or type(function)
            function = _call_of(function) or function
        if not isinstance(function, types.FunctionType) or id(function) in found or of_a_library(function):
            continue
        found[id(function)] = function
        if far < _FAR:
            variables = Variables(function)
            waiting += [(value, far + 1) for value in variables.values() if isinstance(value, _CALLED)]
            if owner is not None:
                methods = (getattr(owner, name, None) for name in _names(function.__code__))
                waiting += [(one, far + 1) for one in methods if isinstance(one, types.FunctionType)]
    return list(found.values())


_CALLED = (types.FunctionType, types.MethodType, functools.partial)
