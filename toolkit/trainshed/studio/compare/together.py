"""Any number of runs beside one another, for `many.js`: on the web page, and in the file that `trainshed compare` writes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainshed.base.secrets import MASK
from trainshed.runner.state.provenance import code_files
from trainshed.runner.state.stored import Stored
from trainshed.studio.catalogue.run_facts import told_of
from trainshed.studio.pages.engine import plain
from trainshed.studio.pages.importance import LEAST, importance

UNKNOWN = "not known"  # many.js calls it so, too
MOST_ROWS = 400  # of a section of what differs
Sections = Sequence[Mapping[str, Any] | None]  # of one kind, by run
_NO_IMPORTANCE = f"needs {LEAST} runs that have it, and hyperparameters that differ"


def together(runs: Sequence[tuple[str, str, Stored]]) -> dict[str, Any]:
    """What runs are and have measured; lists hold a value for each run, None where it has none.

    Args:
        runs: (key, name) by which each is known, and the run.

    Returns:
        runs: `key`, `name`, `state` and `measured` of each. columns: values by `hp.NAME` and `tag.NAME`, metrics: the last
        ones. differs: [section, name, values]. unknown: what could not be compared. importance: [name, share] of the
        hyperparameters by metric. why: what it needs.
    """
    facts = [told_of(run) for _, _, run in runs]
    metrics = _columns([{name: one["last"] for name, one in told["metrics"].items()} for told in facts])
    hyperparameters = _columns([told["hyperparameters"] for told in facts])
    tags = _columns([told["tags"] for told in facts])
    columns = {f"hp.{name}": held for name, held in hyperparameters.items()}
    unknown: list[str] = []
    differs = [
        [section, name, held]
        for section, by_run in _sections([run for _, _, run in runs], facts, unknown).items()
        for name, held in list(_told_apart(by_run).items())[:MOST_ROWS]
    ]
    told = {
        "runs": [_run(key, name, one) for (key, name, _), one in zip(runs, facts, strict=True)],
        "columns": {**columns, **{f"tag.{name}": held for name, held in tags.items()}},
        "metrics": metrics,
        "differs": differs,
        "unknown": unknown,
        "importance": {name: found for name, held in metrics.items() if (found := _importance(hyperparameters, held))},
        "why": _NO_IMPORTANCE,
    }
    return dict(plain(told))


def _run(key: str, name: str, told: Mapping[str, Any]) -> dict[str, Any]:
    return {"key": key, "name": name, "state": told["facts"]["state"], "measured": bool(told["metrics"])}


def _columns(by_run: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The values of each name, by run."""
    names = dict.fromkeys(name for held in by_run for name in held)
    return {name: [held.get(name) for held in by_run] for name in names}


def _apart(columns: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Those in which two runs differ."""
    return {name: held for name, held in columns.items() if any(one != held[0] for one in held)}


def _told_apart(by_run: Sequence[Mapping[str, Any] | None]) -> dict[str, list[Any]]:
    """In what those runs differ that say anything; of the others nothing is known."""
    told = iter(_columns([one for one in by_run if one is not None]).items())
    there = [one is not None for one in by_run]
    found = {}
    for name, held in told:
        if any(one != held[0] for one in held):
            values = iter(held)
            found[name] = [next(values) if known else UNKNOWN for known in there]
    return found


def _importance(hyperparameters: Mapping[str, list[Any]], held: Sequence[Any]) -> list[tuple[str, float]]:
    """Of the hyperparameters that differ for a metric, among the runs that have it."""
    have = [at for at, value in enumerate(held) if isinstance(value, (int, float)) and math.isfinite(value)]
    values = {name: [values[at] for at in have] for name, values in _apart(hyperparameters).items()}
    return importance(values, [float(held[at]) for at in have]) if values else []


def _sections(runs: Sequence[Stored], facts: Sequence[Any], unknown: list[str]) -> dict[str, Sections]:
    """By section what each run was given, None where it does not say: that is noted, and is not called different."""
    parts: dict[str, tuple[str, Callable[[Stored, Any], dict[str, Any]]]] = {
        "code": ("has kept none", _code),
        "packages": ("has noted none", lambda _, told: _packages(told)),
        "data": ("has no fingerprint of all its data", lambda _, told: _data(told)),
    }
    given = ("program", "image", "place", "hosts", "instance")
    sections: dict[str, Sections] = {
        "run": [{name: told["facts"].get(name) or None for name in given} for told in facts],
        "hyperparameters": _without_secrets([told["hyperparameters"] for told in facts], unknown),
    }
    for section, (why, of) in parts.items():
        held = [of(run, told) for run, told in zip(runs, facts, strict=True)]
        silent = [run.name for run, one in zip(runs, held, strict=True) if not one]
        sections[section] = [one or None for one in held]
        if silent and len(silent) < len(runs):
            more = f" and {len(silent) - 1} more" if silent[1:] else ""
            unknown.append(f"{section} of {silent[0]}{more}, which {why}")
    return {**sections, "environment": _without_secrets([told["environment"] for told in facts], unknown)}


def _without_secrets(by_run: Sequence[Mapping[str, Any]], unknown: list[str]) -> list[dict[str, Any]]:
    """Values of which none is masked in two runs or more: masks say nothing of what is behind them."""
    secret = {name for held in by_run for name, value in held.items() if MASK in str(value)}
    unknown += [f"{name}, a secret, which is not kept" for name in sorted(secret)]
    return [{name: value for name, value in held.items() if name not in secret} for held in by_run]


def _code(run: Stored, told: Any) -> dict[str, Any]:
    commit = {"git commit": told["git"]["commit"][:12]} if told["git"].get("commit") else {}
    return {**commit, **{name: str(one["sha256"])[:12] for name, one in code_files(run).items()}}


def _packages(told: Any) -> dict[str, Any]:
    return {"Python": told["python"], **told["packages"]} if told["packages"] else {}


def _data(told: Any) -> dict[str, Any]:
    """The digests of each channel, {} where one of them is not that of all its data."""
    digests = {name: sorted({str(one["digest"]) for one in hosts.values()}) for name, hosts in told["data"].items()}
    sure = all(text and not text.startswith("incomplete:") for held in digests.values() for text in held)
    return {name: ", ".join(held) for name, held in digests.items()} if sure else {}
