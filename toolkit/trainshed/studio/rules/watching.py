"""The process beside a job that calls its rules with what the job measures.

    python -m trainshed.studio.rules.watching

Standard input is one line of JSON: `rules` (name, parameters, action, command), the folders `output`, `profiler` and `code`,
`host`. The process ends when its input does. Each finding is a line of JSON on standard output, and in
OUTPUT/rules/HOST.json.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import select
import subprocess
import sys
import time

from trainshed.base.errors import one_line
from trainshed.base.helper_process import report, stand_back
from trainshed.base.secrets import mask_text
from trainshed.contract.wire.findings import Finding
from trainshed.contract.wire.rules import WantedRule, added_rule

from . import losses, machine, tensors
from .following import Following
from .rule import Rule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from trainshed.metrics.points import Point

EVERY = 0.5  # seconds between two looks
COMMAND_SECONDS = 60.0
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
        RuleError: a user's own rule, or that of a package, is not there, or fails.
    """
    if wanted.name in OURS:
        return OURS[wanted.name](**wanted.parameters)
    path, colon, name = wanted.name.rpartition(":")
    if not colon:
        return _added(wanted)
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


def _added(wanted: WantedRule) -> Rule:
    try:
        return added_rule(wanted.name)(**wanted.parameters)  # type: ignore[no-any-return]
    except (Exception, SystemExit) as error:  # the package's own
        raise RuleError(f"{type(error).__name__}: {error}") from error


class Rules:
    """The rules of a job, each until it has fired.

    Args:
        code: the folder of the user's own rules.
    """

    def __init__(self, wanted: list[WantedRule], code: str) -> None:
        self._live: list[tuple[WantedRule, Rule]] = []
        self.problems: list[str] = []  # for people; whoever says them empties it
        for rule in wanted:
            try:
                self._live.append((rule, make(rule, code)))
            except RuleError as error:
                self.problems.append(one_line(f"rule {rule.name} is not used: {error}"))

    def take(self, points: list[Point], now: float) -> list[tuple[WantedRule, Finding]]:
        """What they find in these points, and at this time."""
        found = []
        for wanted, rule in list(self._live):
            try:
                finding = self._ask(wanted, rule, points, now)
            except (Exception, SystemExit) as error:  # a user's own rule, or a point that nobody thought of
                self.problems.append(one_line(f"rule {wanted.name} is dropped: {type(error).__name__}: {error}"))
                self._live.remove((wanted, rule))
                continue
            if finding is not None:
                found.append((wanted, finding))
                self._live.remove((wanted, rule))
        return found

    def _ask(self, wanted: WantedRule, rule: Rule, points: list[Point], now: float) -> Finding | None:
        for point in points:
            if text := rule(point):
                return Finding(wanted.name, wanted.action, mask_text(text), point.time, point.step, point.rank)
        text = rule.tick(now)
        return Finding(wanted.name, wanted.action, text, now) if text else None


def watch() -> None:
    """Calls the rules until standard input ends."""
    asked = json.loads(sys.stdin.readline())
    rules = Rules([WantedRule(**rule) for rule in asked["rules"]], asked["code"])
    following = Following(asked["output"], asked["profiler"])
    path = f"{asked['output']}/rules/{asked['host']}.json"
    over = False
    while not over:
        over = bool(select.select([sys.stdin], [], [], EVERY)[0])
        for wanted, finding in rules.take(following.look(), time.time()):
            _keep(path, finding)
            report(json.dumps(finding.plain()))
            if wanted.command:
                _run(wanted, finding)
        while rules.problems:
            report(json.dumps({"problem": rules.problems.pop(0)}))


def _keep(path: str, finding: Finding) -> None:
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "a") as file:
            file.write(json.dumps(finding.plain()) + "\n")
    except OSError as error:
        report(json.dumps({"problem": f"findings of rules cannot be written to {path}: {error.strerror}"}))


def _run(wanted: WantedRule, finding: Finding) -> None:
    """Runs a rule's command: $1 is the rule, $2 what it has found."""
    try:
        done = subprocess.run(
            ["sh", "-c", wanted.command, "rule", finding.rule, finding.text],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=COMMAND_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        report(json.dumps({"problem": one_line(f"the command of rule {finding.rule} failed: {error}")}))
        return
    if done.returncode:
        last = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        report(json.dumps({"problem": one_line(f"the command of rule {finding.rule} ended with {done.returncode}: {last}")}))


if __name__ == "__main__":
    stand_back()
    watch()
