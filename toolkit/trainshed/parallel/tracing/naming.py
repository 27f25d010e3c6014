"""Names of modules: one that is registered in several places has the first of its names in records, plans and settings."""

from __future__ import annotations

from collections.abc import Collection

from torch import nn


def first_names(root: nn.Module) -> dict[int, str]:
    """Id of each module -> the name that `named_modules` gives it."""
    return {id(module): name for name, module in root.named_modules()}


def first_name(root: nn.Module, name: str) -> str:
    """The name of a module in records, for any of its names; a name of nothing stays as it is."""
    try:
        return first_names(root)[id(root.get_submodule(name))]
    except (AttributeError, KeyError):
        return name


def outside(root: nn.Module, units: Collection[str]) -> frozenset[str]:
    """Modules that are reached without going through a unit: their own code runs on every stage."""
    names, found = first_names(root), set()
    waiting = [root]
    while waiting:
        module = waiting.pop()
        name = names[id(module)]
        if name not in units and name not in found:
            found.add(name)
            waiting += module.children()
    return frozenset(found)


def never_called(root: nn.Module, planned: Collection[str]) -> frozenset[str]:
    """The largest modules with no planned unit in them or around them: no forward has called them when the plan was made."""
    names = first_names(root)
    around = outside(root, planned)
    found: set[str] = set()
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        module = waiting.pop()
        name = names[id(module)]
        if name not in around or id(module) in seen:
            continue
        seen.add(id(module))
        runs = type(module).forward is not nn.Module.forward
        if name and runs and not any(names[id(inner)] in planned for inner in module.modules()):
            found.add(name)
        else:
            waiting += module.children()
    return frozenset(found)
