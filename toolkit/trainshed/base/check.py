"""The result of a check, and how results are shown."""

from __future__ import annotations

import json

from .errors import one_line
from .record import Record
from .secrets import mask_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

LEAST_PYTHON = (3, 10)  # that trainshed runs with


class Check(Record):
    """One result.

    name: what was checked. level: `ok`, `warn` or `fail`. message: the finding. fix: what to do, "" for `ok`.
    """

    name: str
    level: str
    message: str
    fix: str = ""


def ok(name: str, message: str) -> Check:
    """A check that passed."""
    return Check(name=name, level="ok", message=message)


def warn(name: str, message: str, fix: str = "") -> Check:
    """A check whose finding may harm a job."""
    return Check(name=name, level="warn", message=message, fix=fix)


def fail(name: str, message: str, fix: str = "") -> Check:
    """A check whose finding makes a job fail."""
    return Check(name=name, level="fail", message=message, fix=fix)


def as_lines(checks: Iterable[Check]) -> str:
    """Returns one line for each check, and a last line with their numbers."""
    checks = list(checks)
    width = max((len(check.name) for check in checks), default=0)
    lines = [
        one_line(
            f"{check.level:<5} {check.name:<{width}}  {_one_line(check.message)}"
            + (f"; fix: {check.fix}" if check.fix else "")
        )
        for check in checks
    ]
    counts = {level: sum(check.level == level for check in checks) for level in ("fail", "warn", "ok")}
    lines.append(f"{counts['ok']} ok, {counts['warn']} warning(s), {counts['fail']} failed")
    return mask_text("\n".join(lines))


def as_json(checks: Iterable[Check]) -> str:
    """`{"ok": no check failed, "checks": [{"name", "level", "message", "fix"}]}`."""
    checks = list(checks)
    value = {"ok": all(check.level != "fail" for check in checks), "checks": [check.plain() for check in checks]}
    return mask_text(json.dumps(value, indent=2))


def _one_line(text: str) -> str:
    return " ".join(text.split())
