"""The rules that a job asks for, ready to be called."""

from __future__ import annotations

import importlib.util
import inspect

from trainshed.base.errors import one_line

from . import losses, machine, tensors
from .rule import Rule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from trainshed.contract.wire.rules import WantedRule
    from trainshed.metrics.points import Point

OURS: dict[str, type[Rule]] = {
    name: kind
    for module in (losses, machine, tensors)
    for name, kind in vars(module).items()
    if inspect.isclass(kind) and issubclass(kind, Rule) and not name.startswith("_") and kind is not Rule
}


class RuleError(Exception):
    """A user's own rule cannot be loaded."""


class _Own(Rule):
    """A user's function, called with each point and its parameters; its answer is what it finds, or nothing."""

    def __init__(self, function: Callable[..., object], parameters: Mapping[str, Any]) -> None:
        self._function, self._parameters = function, dict(parameters)

    def __call__(self, point: Point) -> str:
        found = self._function(point, **self._parameters)
        return one_line(str(found)) if found else ""


def make(wanted: WantedRule, code: str) -> Rule:
    """The rule.

    Args:
        code: the folder in which a user's own rules are.

    Raises:
        RuleError: a user's own rule is not there, or its file fails.
    """
    if wanted.name in OURS:
        return OURS[wanted.name](**wanted.parameters)
    path, _, name = wanted.name.rpartition(":")
    spec = importlib.util.spec_from_file_location("trainshed_own_rules", f"{code}/{path}")
    assert spec is not None and spec.loader is not None  # the name ends with .py
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        function = getattr(module, name)
    except (Exception, SystemExit) as error:  # a script with `sys.exit(main())` at its end, too
        raise RuleError(f"{type(error).__name__}: {error}") from error
    if not callable(function):
        raise RuleError(f"{name} is not a function")
    return _Own(function, wanted.parameters)
