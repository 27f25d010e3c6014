"""`trainshed show`: everything about one run on one screen."""

from __future__ import annotations

import time
from typing import Any

from trainshed.base.errors import one_line, shorten, visible
from trainshed.base.units import duration, size
from trainshed.contract.wire.fingerprints import described
from trainshed.runner.display.runs import ago
from trainshed.runner.display.summary import shown
from trainshed.runner.state.status import iso

from .differences import Differences
from .metric_direction import better

WIDEST = 100  # characters of a value
MOST_ROWS = 40  # of hyperparameters or metrics; --json has all
SHOWN_PACKAGES = ("torch", "torch-xla", "transformers", "accelerate", "lightning", "numpy", "scikit-learn", "xgboost", "jax")


def page(told: dict[str, Any]) -> str:
    """What `telling.told_of` has told, for a terminal."""
    facts = told["facts"]
    rows: list[tuple[str, str]] = [(str(facts["state"]).lower(), str(facts["name"]))]
    rows += _rows_of_facts(facts)
    if told["phases"]:
        rows.append(("phases", ", ".join(f"{one['name']} {duration(one['seconds'])}" for one in told["phases"])))
    tags = ", ".join(f"{name}={text}" if text else name for name, text in told["tags"].items())
    rows.append(("tags", tags))
    rows += _named("notes", [f"{one['at'][:16].replace('T', ' ')}  {one['text']}" for one in told["notes"]])
    rows += _named("parents", [_parent(one) for one in told["parents"]])
    rows += _named("hyperparameters", _columns([[name, _value(value)] for name, value in told["hyperparameters"].items()]))
    rows += _named("metrics", _metrics(told["metrics"]))
    rows += _named("data", [f"{name}: {text}" for name, text in _data(told)])
    rows += [("code", _code(told)), ("git", _git(told["git"])), ("image", _image(told))]
    rows.append(("packages", _packages(told)))
    rows.append(("machine", _machine(told)))
    rows += _named(
        "settings", [f"{name} {_value(value)}" for name, value in told["job"].items() if _is_telling(name, value)]
    )
    rows += _named("variables", [f"{name}={_value(value)}" for name, value in told["environment"].items()])
    rows.append(("model", _model(told["model"])))
    rows.append(("folder", shown(str(facts["folder"]))))
    rows += _named("problem", told["problems"])
    lines = [
        f"  {name:<15} {one_line(text)}".rstrip() if number else f"{name:<17} {one_line(text)}"
        for number, (name, text) in enumerate((name, text) for name, text in rows if text)
    ]
    if told["reason"]:
        lines += ["", *(f"  {line}" for line in visible(told["reason"]).split("\n"))]
    return "\n".join(lines) + "\n"


def _rows_of_facts(facts: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    if facts["started"]:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(facts["started"]))
        took = (
            f"; {'took' if facts['ended'] else 'for'} {duration(facts['duration'])}" if facts["duration"] is not None else ""
        )
        rows.append(("started", f"{when}, {ago(iso(facts['started']))}{took}"))
    where = f"{facts['hosts']} host{'' if facts['hosts'] == 1 else 's'}" if facts["hosts"] else ""
    where = ", ".join(filter(None, (where, facts["machine"] and f"started on {facts['machine']}")))
    rows.append(("program", " on ".join(filter(None, (facts["program"], where)))))
    if facts["exit"] is not None:
        attempts = f" after {facts['attempts']} attempts" if (facts["attempts"] or 1) > 1 else ""
        rows.append(("exit", f"{facts['exit']}{attempts}"))
    rows += [("cause", facts["cause"] or ""), ("group", facts["group"] or "")]
    if facts["copy_of"]:
        rows.append(("copy of", str(facts["copy_of"])))
    return rows


def _named(name: str, lines: list[str]) -> list[tuple[str, str]]:
    """Several lines under one name."""
    rows = [("" if number else name, line) for number, line in enumerate(lines[:MOST_ROWS])]
    return rows + ([("", f"and {len(lines) - MOST_ROWS} more; --json has them")] if len(lines) > MOST_ROWS else [])


def _columns(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _metrics(metrics: dict[str, dict[str, Any]]) -> list[str]:
    if not metrics:
        return []
    parts = ("count", "first", "last", "min", "max")
    lines = [["", *parts, "best"]]
    for name, one in metrics.items():
        best = one.get(better(name))
        lines.append([one_line(name), *("-" if value is None else _value(value) for value in (*map(one.get, parts), best))])
    return _columns(lines)


def _value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else shorten(one_line(str(value)), WIDEST)


def _data(told: dict[str, Any]) -> list[tuple[str, str]]:
    found = []
    for channel, path in told["channels"].items():
        texts = dict.fromkeys(described(one) for one in told["data"].get(channel, {}).values())
        found.append((channel, ", ".join([path, *texts])))
    found += [
        (channel, ", ".join(dict.fromkeys(map(described, hosts.values()))))
        for channel, hosts in told["data"].items()
        if channel not in told["channels"]
    ]
    return found


def _code(told: dict[str, Any]) -> str:
    code = told["code"]
    if not code.get("digest"):
        return str(code.get("note") or "")
    files = "1 file" if code.get("files") == 1 else f"{code.get('files', '?')} files"
    note = f"; {code['note']}" if code.get("note") else ""
    return f"{code['digest']} ({files}, {size(code.get('bytes', 0))}) from {code.get('source', '?')}{note}"


def _git(git: dict[str, Any]) -> str:
    if not git.get("commit"):
        return str(git.get("note") or "")
    branch = f" on {git['branch']}" if git.get("branch") else ""
    dirty = f", and {git.get('changes', 'some')} changed files" if git.get("dirty") else ""
    remote = f", {git['remote']}" if git.get("remote") else ""
    return f"{str(git['commit'])[:12]}{branch}{dirty}{remote}"


def _image(told: dict[str, Any]) -> str:
    image = told["image"]
    return " ".join(filter(None, (told["facts"]["image"], str(image.get("digest") or image.get("id") or ""))))


def _packages(told: dict[str, Any]) -> str:
    packages = told["packages"]
    named = [f"{name} {packages[name]}" for name in SHOWN_PACKAGES if name in packages]
    rest = len(packages) - len(named)
    parts = [f"Python {told['python']}" if told["python"] else "", *named, f"{rest} more" if rest else ""]
    return ", ".join(filter(None, parts))


def _machine(told: dict[str, Any]) -> str:
    machine = told["machine"]
    parts = [told["platform"]]
    parts += [
        f"{machine[name]} {name if machine[name] != 1 else name[:-1]}"
        for name in ("cpus", "gpus", "neurons")
        if name in machine
    ]
    parts += [f"{size(machine['memory_bytes'])} of memory"] if isinstance(machine.get("memory_bytes"), int) else []
    return ", ".join(filter(None, [*parts, str(machine.get("description", ""))]))


def _model(model: dict[str, Any]) -> str:
    files = model.get("files") or {}
    count = f"{len(files)} file{'' if len(files) == 1 else 's'}" if files else ""
    return ", ".join(filter(None, (model.get("archive") and shown(model["archive"]), count, model.get("digest"))))


def _parent(one: dict[str, str]) -> str:
    how = {"model": "goes on from the model of", "rerun": "makes again", "tuning": "is a trial of"}
    return f"{how.get(one['kind'], one['kind'])} {one['run']}"


def _is_telling(name: str, value: Any) -> bool:
    """Whether a setting of the job is one that people set: the rest is in --json."""
    return name in (
        "max_runtime_seconds",
        "spot",
        "retries",
        "compiler",
        "argv",
        "rules",
        "entrypoint",
        "arguments",
    ) and bool(value)


def page_of_differences(found: Differences) -> str:
    """What `differences.differences` has found, for a terminal: a sentence, then the sections that differ."""
    first, second = (one_line(name) for name in found.names)
    lines = [f"{first} -> {second}: {one_line(found.summary)}"]
    for section, held in found.sections.items():
        unknown = found.unknown.get(section)
        if not held and not unknown:
            continue
        lines += ["", section]
        rows = [[one_line(name), _side(one), "->", _side(two)] for name, (one, two) in held.items()]
        lines += [f"  {line}" for line in _columns(rows[:MOST_ROWS])] if rows else []
        lines += [f"  and {len(rows) - MOST_ROWS} more; --json has them"] if len(rows) > MOST_ROWS else []
        lines += [f"  not compared: {one_line(unknown)}"] if unknown else []
        if section == "code" and found.diff:
            lines += ["", *(f"  {line}" for line in visible(found.diff).rstrip("\n").split("\n"))]
    return "\n".join(lines) + "\n"


def _side(value: Any) -> str:
    return "-" if value is None else _value(value)
