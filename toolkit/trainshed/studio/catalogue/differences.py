"""What differs between two runs, by section. What one of them does not say is never called the same."""

from __future__ import annotations

import json
from typing import Any

from trainshed.base.errors import some
from trainshed.base.record import Record
from trainshed.base.secrets import MASK
from trainshed.runner.state.stored import Stored

from .code_changes import changes_of
from .run_facts import told_of

GIVEN = ("program", "hyperparameters", "code", "packages", "data", "environment", "image", "machine", "settings", "parents")
RESULTS = ("outcome", "metrics")


class Differences(Record):
    """Two runs compared.

    names: of the two.
    sections: section -> name -> the two values, None for what one of them does not have; sections of equal values are empty.
    unknown: section -> why it, or a part of it, could not be compared.
    diff: the code's, as a unified diff.
    """

    names: tuple[str, str]
    sections: dict[str, dict[str, tuple[Any, Any]]]
    unknown: dict[str, str]
    diff: str = ""

    @property
    def summary(self) -> str:
        """One or two sentences: in what they differ, and what is not known."""
        given = [f"{name} ({_named(self.sections[name])})" for name in GIVEN if self.sections[name]]
        results = [f"{name} ({_named(self.sections[name])})" for name in RESULTS if self.sections[name]]
        if given:
            text = f"they differ in {', '.join(given)}"
            text += f"; and in what came of it: {', '.join(results)}" if results else "; what came of it is equal"
        elif results:
            text = f"nothing differs but what came of it: {', '.join(results)}"
        else:
            text = "nothing differs"
        if self.unknown:
            text += f". Not compared: {', '.join(self.unknown)}"
        return text

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "runs": list(self.names), "summary": self.summary,
            "differs": {
                name: {key: list(pair) for key, pair in held.items()} for name, held in self.sections.items() if held
            },
            "equal": [name for name, held in self.sections.items() if not held and name not in self.unknown],
            "unknown": self.unknown, "code_diff": self.diff,
        }  # fmt: skip


def differences(first: Stored, second: Stored) -> Differences:
    """Compares two runs by their folders."""
    one, two = told_of(first), told_of(second)
    code = changes_of(first, second)
    unknown: dict[str, str] = {}
    names = (first.name, second.name)
    if code.unknown:
        unknown["code"] = code.unknown
    sections: dict[str, dict[str, tuple[Any, Any]]] = {
        "program": _apart({"program": one["facts"]["program"]}, {"program": two["facts"]["program"]}),
        "hyperparameters": _given("hyperparameters", one, two, unknown),
        "code": {**{name: _short(sums) for name, sums in code.files.items()}, **_git(one, two)},
        "packages": _packages(one, two, names, unknown),
        "data": _data(one, two, names, unknown),
        "environment": _given("environment", one, two, unknown),
        "image": _image(one, two, unknown),
        "machine": _apart(_machine(one), _machine(two)),
        "settings": _apart(_flat(one["job"]), _flat(two["job"])),
        "parents": _apart(_parents(one), _parents(two)),
        "outcome": _apart(
            *({name: told["facts"][name] for name in ("state", "cause", "exit", "duration")} for told in (one, two))
        ),
        "metrics": _apart(_metrics(one), _metrics(two)),
    }
    return Differences(names, sections, unknown, code.diff)


def _apart(one: dict[str, Any], two: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Names whose values differ, those of the first before those that only the second has."""
    names = dict.fromkeys((*one, *two))
    return {name: (one.get(name), two.get(name)) for name in names if one.get(name) != two.get(name)}


def _given(section: str, one: dict[str, Any], two: dict[str, Any], unknown: dict[str, str]) -> dict[str, tuple[Any, Any]]:
    """Values of which some may be masked: two masks say nothing of what is behind them."""
    both = [name for name in one[section] if name in two[section]]
    secret = [name for name in both if MASK in str(one[section][name]) and MASK in str(two[section][name])]
    if secret:
        what = "is a secret, which is not kept" if len(secret) == 1 else "are secrets, which are not kept"
        unknown[section] = f"{', '.join(secret)} {what}"
    return _apart(one[section], two[section])


def _packages(
    one: dict[str, Any], two: dict[str, Any], names: tuple[str, str], unknown: dict[str, str]
) -> dict[str, tuple[Any, Any]]:
    python = {} if not (one["python"] and two["python"]) else _apart({"Python": one["python"]}, {"Python": two["python"]})
    for name, told in zip(names, (one, two), strict=True):
        if not told["packages"]:
            unknown["packages"] = f"{name} has noted none"
            return python
    return {**python, **_apart(one["packages"], two["packages"])}


def _data(
    one: dict[str, Any], two: dict[str, Any], names: tuple[str, str], unknown: dict[str, str]
) -> dict[str, tuple[Any, Any]]:
    """Channels whose fingerprints differ. Those of one method alone can be compared (machine/fingerprint.py)."""
    found: dict[str, tuple[Any, Any]] = {}
    reasons = []
    for channel in dict.fromkeys((*one["channels"], *two["channels"], *one["data"], *two["data"])):
        sides = [_digests(told, channel) for told in (one, two)]
        there = [channel in told["channels"] or channel in told["data"] for told in (one, two)]
        if not all(there):
            found[channel] = tuple(  # type: ignore[assignment]
                ", ".join(side) or told["channels"].get(channel) if has else None
                for side, has, told in zip(sides, there, (one, two), strict=True)
            )
            continue
        unsure = [
            name for name, side in zip(names, sides, strict=True) if not side or any(_is_unsure(text) for text in side)
        ]
        if unsure:
            reasons.append(f"{channel} has no fingerprint of all its data in {' and '.join(unsure)}")
        elif len({text.partition(":")[0] for side in sides for text in side}) > 1:
            reasons.append(f"{channel} has fingerprints of different methods")
        elif sides[0] != sides[1]:
            found[channel] = (", ".join(sides[0]), ", ".join(sides[1]))
    if reasons:
        unknown["data"] = "; ".join(reasons)
    return found


def _digests(told: dict[str, Any], channel: str) -> list[str]:
    return sorted({str(one["digest"]) for one in told["data"].get(channel, {}).values()})


def _is_unsure(digest: str) -> bool:
    return not digest or digest.startswith("incomplete:")


def _image(one: dict[str, Any], two: dict[str, Any], unknown: dict[str, str]) -> dict[str, tuple[Any, Any]]:
    names = _apart({"name": one["facts"]["image"]}, {"name": two["facts"]["image"]})
    ids = [told["image"].get("id") or told["image"].get("digest") for told in (one, two)]
    if not (one["facts"]["image"] or two["facts"]["image"]):
        return {}
    if not all(ids):
        if not names:
            unknown["image"] = "what was behind its name then was not noted"
        return names
    return {**names, **_apart({"id": ids[0]}, {"id": ids[1]})}


def _git(one: dict[str, Any], two: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    sides = [{"git commit": told["git"]["commit"]} if told["git"].get("commit") else {} for told in (one, two)]
    return _apart(*sides)


def _machine(told: dict[str, Any]) -> dict[str, Any]:
    facts = told["facts"]
    held = {
        "started on": facts["machine"],
        "hosts": facts["hosts"],
        "instance": facts["instance"],
        "platform": told["platform"],
    }
    return {**held, **told["machine"]}


def _parents(told: dict[str, Any]) -> dict[str, str]:
    return {one["kind"]: one["run"] for one in told["parents"]}


def _outcome(told: dict[str, Any]) -> dict[str, Any]:
    return {name: told["facts"][name] for name in ("state", "cause", "exit", "duration")}


def _metrics(told: dict[str, Any]) -> dict[str, Any]:
    return {f"{name} {part}": one[part] for name, one in told["metrics"].items() for part in ("last", "min", "max", "count")}


def _flat(values: dict[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict) and value:
            found |= _flat(value, f"{before}{name}.")
        else:
            found[f"{before}{name}"] = json.dumps(value) if isinstance(value, (list, dict)) else value
    return found


def _short(sums: tuple[str | None, str | None]) -> tuple[str | None, str | None]:
    """The beginnings of two hashes, as many digits as git shows."""
    return sums[0] and sums[0][:12], sums[1] and sums[1][:12]


def _named(held: dict[str, tuple[Any, Any]]) -> str:
    return some(list(held), 3)
