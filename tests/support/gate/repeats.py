"""What failed runs once more at the end, alone, in a fresh process: what passes then is a FLAKE, which is told, not hidden.

Green with at most two flakes, and never with one of a test marked `exact` or `safety`: a race there is a defect. Both
outputs are in build/flakes.json.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.gate import hangs, quarantine, selection

FAILED = pytest.StashKey[dict[str, list[Any]]]()
LAST_WORDS = pytest.StashKey[list[str]]()
RECORD = "build/flakes.json"  # below the root of the tests
# Tests whose failure is told as it is: one that passes when repeated shows a race in what guards data, processes, numbers.
NEVER = {"exact", "safety"}
# A change that fails more than these has no flakes to look for.
MOST_REPEATED = 12
SECONDS = 900


def pytest_addoption(parser: pytest.Parser) -> None:
    """How many flakes a green run may have."""
    group = parser.getgroup("gate")
    group.addoption(
        "--repeat", action="store_true", help="run what failed once more at the end, each test in a process of its own"
    )
    group.addoption("--flakes", type=int, default=2, metavar="N", help="flakes that a green run may have (2)")


def pytest_configure(config: pytest.Config) -> None:
    """Nothing has failed."""
    config.stash[FAILED] = {}
    config.stash[LAST_WORDS] = []
    config.pluginmanager.register(_Collector(config), "gate-failures")


class _Collector:
    """Keeps the reports of what failed, of all workers."""

    def __init__(self, config: pytest.Config) -> None:
        self._failed = config.stash[FAILED]

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self._failed.setdefault(report.nodeid, []).append(report)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Repeats what failed, and decides. The terminal's summary comes after it."""
    config = session.config
    if hasattr(config, "workerinput"):
        return
    failed = dict(config.stash[FAILED])
    held = {entry["test"] for entry in quarantine.entries(config.rootpath / quarantine.FILE)}
    for name in [name for name in failed if name in held and not marks(failed[name]) & NEVER]:
        _count_as(config, "quarantined", failed.pop(name))
    if session.exitstatus != pytest.ExitCode.TESTS_FAILED:
        return
    flakes = _repeat(config, failed) if config.getoption("repeat") and len(failed) <= MOST_REPEATED else []
    excused = [one for one in flakes if not set(one["marks"]) & NEVER]
    red = set(failed) - {one["test"] for one in excused}
    config.stash[LAST_WORDS] += [_flake_line(one) for one in flakes]
    if len(excused) > (most := config.getoption("flakes")):
        config.stash[LAST_WORDS].append(f"red: {len(excused)} flakes, of which a green run may have {most}")
        return
    for one in excused:
        _count_as(config, "flaky", failed[one["test"]])
    if not red:
        session.exitstatus = pytest.ExitCode.OK


def _repeat(config: pytest.Config, failed: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Those that pass when they are repeated; build/flakes.json has all."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    repeated = []
    for name, reports in failed.items():
        terminal.write_line(f"\nonce more, alone: {name}")
        passes, output = run_alone(config.rootpath, name)
        first = "\n".join(f"{report.longreprtext}\n{report.capstdout}{report.capstderr}" for report in reports)
        repeated.append({"test": name, "marks": sorted(marks(reports)), "passes": passes, "first": first, "again": output})
    record = config.rootpath / RECORD
    record.parent.mkdir(exist_ok=True)
    record.write_text(json.dumps(repeated, indent=1))
    return [one for one in repeated if one["passes"]]


def run_alone(root: Path, name: str) -> tuple[bool, str]:
    """Whether a test passes in a process of its own, and what that printed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", name]
    environ = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_XDIST")}
    try:
        done = subprocess.run(command, cwd=root, env=environ, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired as error:
        return False, f"did not end within {SECONDS} s\n{(error.stdout or b'').decode(errors='replace')}"
    return done.returncode == 0, done.stdout + done.stderr


def marks(reports: list[Any]) -> set[str]:
    """The marks of a test, by its reports. A process that died reports none: that is no flake."""
    return {mark for report in reports for mark in (report.keywords or {"safety": 1})}


def _count_as(config: pytest.Config, word: str, reports: list[Any]) -> None:
    """Shows reports under this word, no longer as failures."""
    stats = config.pluginmanager.get_plugin("terminalreporter").stats
    for report in reports:
        for kind in ("failed", "error"):
            if report in stats.get(kind, []):
                stats[kind].remove(report)
        stats.setdefault(word, []).append(report)
    if word == "quarantined":
        config.stash[LAST_WORDS].append(f"QUARANTINED, and failed: {reports[0].nodeid}")


def _flake_line(one: dict[str, Any]) -> str:
    never = sorted(set(one["marks"]) & NEVER)
    why = f" (red: it is marked {', '.join(never)}, and a race there is a defect)" if never else ""
    return f"FLAKE, failed and then passed alone: {one['test']}{why}; both outputs: {RECORD}"


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """The last lines: flakes, how to play again what failed, what ran and what was left out."""
    if hasattr(config, "workerinput") or LAST_WORDS not in config.stash:
        return
    lines = config.stash[LAST_WORDS] + hangs.left(config)
    stats = config.pluginmanager.get_plugin("terminalreporter").stats
    if red := stats.get("failed", []) + stats.get("error", []):
        names = sorted({report.nodeid for report in red})[:MOST_REPEATED]
        lines += [f"again: {sys.executable} -m pytest '{name}'" for name in names]
        if share := config.getoption("slice"):
            lines.append(f"again, the whole slice: make test-matrix SLICE={share}")
    lines += [summary] if (summary := selection.summary(config)) else []
    print("\n".join(lines), flush=True)
