"""Brings the calls of units to the stage that replays a forward.

A gate stands in each unit itself: in the attribute that `Module.compile` fills and that `nn.Module.__call__` looks at. To
replace `nn.Module.__call__` for each microbatch instead would cost a third of a millisecond every time, since Python then
forgets what it had cached about every subclass. Without a keeper a call is the module's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ..ground.torch_private import CALL, buffers_in, call_itself
from .side_outputs import Sideways


class Gatekeeper(Protocol):
    """Decides what happens to the call of a unit."""

    def unit_call(self, name: str, native: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Stands for `native(*args, **kwargs)`, the module's own call."""


class Watcher(Protocol):
    """Looks at the units that run."""

    def begin(self, microbatch: int) -> None:
        """Before the forward of a microbatch."""

    def around(self, name: str, native: Callable[..., Any]) -> Callable[..., Any]:
        """Stands for `native`, a unit's own call, which is not made where another stage has the unit."""

    def backward(self, microbatch: int) -> None:
        """Before the backward of a microbatch, or a part of it."""

    def close(self) -> None:
        """After the backward of all microbatches."""


class UnitGates:
    """The gates of one model.

    again: units that run again in their backward instead of keeping what it needs.
    away: units whose operations keep elsewhere what their backward needs, as `moved` sees to.
    keeper: handles the calls of units; None lets all calls pass.
    watch: looks at those that run, in a step that is verified.
    left: makes of what a unit gives what may leave it; None where that is all.
    root: the user's model.
    sideways: places where units leave values.
    """

    def __init__(self, root: nn.Module) -> None:
        self.keeper: Gatekeeper | None = None
        self.watch: Watcher | None = None
        self.again: frozenset[str] = frozenset()
        self.away: frozenset[str] = frozenset()
        self.moved: Callable[..., Any] | None = None
        self.left: Callable[[Any], Any] | None = None
        self.root = root
        self.see()

    def see(self) -> None:
        """Looks at the model again, which has other modules now."""
        self.sideways = Sideways(self.root)
        self._modules = dict(self.root.named_modules())

    def put(self, units: Iterable[str]) -> None:
        """Puts gates into these modules; again after a module has been compiled."""
        for name in units:
            module = self._modules[name]
            module.__dict__[CALL] = _Gate(self, name, module, compiled_call(module))

    def buffers(self, names: Iterable[str]) -> list[tuple[dict[str, Any], str]]:
        """Finds where these buffers are: what holds them, and under which key."""
        parts = [name.rpartition(".") for name in names]
        return [(buffers_in(self._modules[module]), key) for module, _, key in parts]

    def tensor(self, name: str) -> Any:
        """A parameter or buffer of the model."""
        module, _, key = name.rpartition(".")
        return getattr(self._modules[module], key)

    def watched(self, watch: Watcher | None, microbatch: int) -> None:
        """From here on `watch` looks at the units, in the forward of a microbatch."""
        self.watch = watch
        if watch is not None:
            watch.begin(microbatch)

    def part(self, unit: str, name: str) -> nn.Module:
        """A module inside of a unit; "" is the unit itself."""
        module = self._modules[unit]
        return module.get_submodule(name) if name else module  # scripted modules have no get_submodule

    @contextmanager
    def kept(self, keeper: Gatekeeper | None) -> Iterator[None]:
        """Within this context `keeper` handles the calls of units; None lets them pass."""
        before, self.keeper = self.keeper, keeper
        try:
            yield
        finally:
            self.keeper = before


class _Gate:
    """What `nn.Module.__call__` calls in a unit."""

    def __init__(self, gates: UnitGates, name: str, module: nn.Module, compiled: Callable[..., Any] | None) -> None:
        self.gates, self.name, self.module, self.compiled = gates, name, module, compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        native = self.compiled or call_itself(self.module)
        if self.gates.left is not None:
            native = partial(_leaving, native, self.gates.left)
        if self.name in self.gates.again and torch.is_grad_enabled():
            native = partial(checkpoint, native, use_reentrant=False)
        elif self.gates.moved is not None and self.name in self.gates.away and torch.is_grad_enabled():
            native = partial(self.gates.moved, native)
        if self.gates.watch is not None:
            native = self.gates.watch.around(self.name, native)
        keeper = self.gates.keeper
        if keeper is None:
            return native(*args, **kwargs)
        return keeper.unit_call(self.name, native, args, kwargs)


def compiled_call(module: nn.Module) -> Callable[..., Any] | None:
    """Returns what torch.compile has made of a module's call, also behind a gate; None where it was not compiled."""
    there: Any = module.__dict__.get(CALL)
    return there.compiled if isinstance(there, _Gate) else there


def _leaving(native: Callable[..., Any], left: Callable[[Any], Any], *args: Any, **kwargs: Any) -> Any:
    return left(native(*args, **kwargs))
