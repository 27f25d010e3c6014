"""Which module calls which, and how long it takes: chooses the units."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from ..ground.torch_private import CALL, call_instead, call_itself
from ..ground.tree import tensors
from ..tracing.naming import first_names


@dataclass
class Call:
    """One call of a module; `seconds` includes the calls inside."""

    name: str
    seconds: float = 0.0
    inside: list[Call] = field(default_factory=list)

    def names(self) -> set[str]:
        """All modules that were called inside."""
        return set().union(*({call.name} | call.names() for call in self.inside))


class CallTree:
    """Times all module calls of a forward.

    Args:
        counts: whether a call takes as long as its module has parameters, instead.
    """

    def __init__(self, root: nn.Module, *, counts: bool = False) -> None:
        self._counts = counts
        self._names = first_names(root)
        self._root = root
        self._stack = [Call("")]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within the block the calls of all modules are seen."""
        handles: list[Any] = []
        scripted = [module for module in self._root.modules() if isinstance(module, torch.jit.ScriptModule)]
        inside = {id(part) for module in scripted for part in module.modules() if part is not module}
        try:
            for module in self._root.modules():
                if id(module) in inside:  # not called from Python
                    continue
                if isinstance(module, torch.jit.ScriptModule):  # takes no hooks
                    module.__dict__[CALL] = partial(self._scripted, module)
                    continue
                handles.append(module.register_forward_pre_hook(self._enter, prepend=True))
                handles.append(module.register_forward_hook(self._leave, always_call=True))
            yield
        finally:
            for handle in handles:
                handle.remove()
            for module in scripted:
                module.__dict__.pop(CALL, None)

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """The tree of calls under the step function; within `watching`."""
        self._stack = [Call("")]
        function(*args, **kwargs)
        return self._stack[0]

    def _scripted(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        self._enter(module, args)
        result = None
        try:
            result = call_itself(module)(*args, **kwargs)
        finally:
            self._leave(module, args, result)
        return result

    def _enter(self, module: nn.Module, _args: Any) -> None:
        call = Call(self._names[id(module)], time.perf_counter())
        self._stack[-1].inside.append(call)
        self._stack.append(call)

    def _leave(self, module: nn.Module, args: Any, result: Any) -> None:
        if len(self._stack) > 1:
            call = self._stack.pop()
            call.seconds = time.perf_counter() - call.seconds
            if self._counts or any(tensor.device.type == "meta" for tensor in tensors(result)):
                call.seconds = float(sum(parameter.numel() for parameter in module.parameters()) + 1)


def choose_units(
    tree: Call, root: nn.Module, largest: float, closed: dict[str, str], pins: Mapping[str, int] | None = None
) -> set[str]:
    """Names of the units: containers are opened from the top as long as they cost too much, or parts of them shall be on
    other stages.

    Args:
        tree: what `CallTree.run` gave.
        largest: a container that takes more than this share of the forward is opened (0 to 1).
        closed: containers that must not be opened, with the reason.
        pins: module -> stage.
    """
    apart = divided(pins or {})
    modules = dict(root.named_modules())
    total = sum(call.seconds for call in tree.inside) or 1.0
    cost: dict[str, float] = {}
    inside: dict[str, set[str]] = {}

    def collect(call: Call) -> None:
        cost[call.name] = max(cost.get(call.name, 0.0), call.seconds / total)
        inside.setdefault(call.name, set()).update(child.name for child in call.inside)
        for child in call.inside:
            collect(child)

    for call in tree.inside:
        if call.name:  # the step function calls a part of the model itself
            inside.setdefault("", set()).add(call.name)
        collect(call)
    units: set[str] = set()

    def visit(name: str) -> None:
        children = inside.get(name, set()) - {name}
        openable = bool(children) and name not in closed and _plain(modules[name])
        if name == "" or (openable and (cost[name] > largest or name in apart)):
            for child in sorted(children):
                visit(child)
            return
        units.add(name)

    visit("")
    # A unit inside another unit (a module that is called from two places) is part of the outer one there.
    return units


def divided(pins: Mapping[str, int]) -> set[str]:
    """Modules of which a part is put on another stage than the module itself, which may be on none."""
    found: set[str] = set()
    for name, stage in pins.items():
        parts = name.split(".")
        for length in range(1, len(parts)):
            around = ".".join(parts[:length])
            if covering_pin(around, pins) != stage:
                found.add(around)
    return found


def covering_pin(name: str, pins: Mapping[str, int]) -> int | None:
    """The stage that a module is put on, by its own pin or that of the nearest module around it; not by the model's own."""
    while name:
        if name in pins:
            return pins[name]
        name = name.rpartition(".")[0]
    return None


def _plain(module: nn.Module) -> bool:
    """Compiled and scripted modules run as they are, whole."""
    compiled = call_instead(module) is not None
    return not (compiled or isinstance(module, torch.jit.ScriptModule) or type(module).__name__ == "OptimizedModule")
