"""What of the collected tests runs: the quick set, what a change reaches, a share of the matrix; and what was left out."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.gate import areas
from support.paths import ROOT

PLAN = pytest.StashKey[dict[str, Any]]()
LEFT_OUT = pytest.StashKey[dict[str, int]]()
# A heavy test's limit; the others have that of pyproject.toml.
HEAVY_SECONDS = 600


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options that `make test`, `make test-matrix` and `.ci/run` give."""
    group = parser.getgroup("gate", "what of the tests runs")
    group.addoption("--quick", action="store_true", help="unit tests, and one real case of each capability (spine)")
    group.addoption(
        "--changed", metavar="COMMIT", default="", help="folders of whole jobs that the change since COMMIT reaches"
    )
    group.addoption("--slice", metavar="I/N", default="", help="share I of N of the matrix: 1/4, 2/4 ...")


def pytest_configure(config: pytest.Config) -> None:
    """Decides once what is wanted; workers are told."""
    given = getattr(config, "workerinput", {}).get("gate")
    config.stash[PLAN] = json.loads(given) if given else _plan(config)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Before a worker of xdist starts."""
    node.workerinput["gate"] = json.dumps(node.config.stash[PLAN])


def _plan(config: pytest.Config) -> dict[str, Any]:
    changed = areas.changed_files(commit) if (commit := config.getoption("changed")) else set()
    return {
        "quick": config.getoption("quick"),
        "slice": parse_slice(config.getoption("slice")),
        "reached": areas.reached(changed) if changed else [],
        "helped": areas.helped(changed),
        "changed": sorted(str(path.relative_to(ROOT)) for path in changed),
    }


def parse_slice(text: str) -> list[int]:
    """[share, of], counted from 1; empty for an empty text. Raises UsageError."""
    if not text:
        return []
    share, _, of = text.partition("/")
    if not (share.isdecimal() and of.isdecimal() and 1 <= int(share) <= int(of)):
        raise pytest.UsageError(f"--slice takes a share as 1/4, 2/4 ...; not {text!r}")
    return [int(share), int(of)]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what nobody asked for, and gives heavy tests more time."""
    for item in items:
        if item.get_closest_marker("heavy") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(HEAVY_SECONDS))
    plan = config.stash[PLAN]
    if not (plan["quick"] or plan["slice"]):
        return
    wanted = [item for item in items if is_wanted(item, plan)]
    kept = {id(item) for item in wanted}
    out = [item for item in items if id(item) not in kept]
    config.stash[LEFT_OUT] = Counter(folder(item) for item in out)
    config.hook.pytest_deselected(items=out)
    items[:] = wanted


def is_wanted(item: pytest.Item, plan: dict[str, Any]) -> bool:
    """Whether a test is in one of the sets that the plan has."""
    marks = {mark.name for mark in item.iter_markers()}
    if "spine" in marks and plan["quick"]:
        return True
    if "matrix" in marks:
        return bool(plan["slice"]) and _in_slice(item, marks, plan)
    if "heavy" in marks:
        return plan["quick"] and folder(item) in plan["reached"]
    file = item.nodeid.partition("::")[0]
    changed = file in plan["changed"] or folder(item) in (*plan["reached"], *plan["helped"])
    return plan["quick"] and (changed or folder(item) == "unit")


def _in_slice(item: pytest.Item, marks: set[str], plan: dict[str, Any]) -> bool:
    """Its share; planted defects, and what compares or guards within a room that changed, are in every slice."""
    share, of = plan["slice"]
    changed = _rooms_changed(item, plan)
    if "heavy" in marks and not changed:
        return False
    always = "planted" in marks or (changed and marks & {"exact", "safety"} and "heavy" not in marks)
    return bool(always) or zlib.crc32(shared(item).encode()) % of == share - 1


def _rooms_changed(item: pytest.Item, plan: dict[str, Any]) -> bool:
    mark = item.get_closest_marker("rooms")
    rooms = mark.args if mark else areas.AREAS.get(folder(item), ())
    return any(areas.within(ROOT / name, room) for name in plan["changed"] for room in rooms)


def shared(item: pytest.Item) -> str:
    """What a share is counted in: the case where its ranks run single cases, else the file, which shares what it set up."""
    return item.nodeid if item.get_closest_marker("rooms") else item.nodeid.partition("::")[0]


def folder(item: pytest.Item) -> str:
    """Its folder as in `areas.AREAS`, "unit" for unit tests."""
    parts = Path(item.nodeid.partition("::")[0]).parts[1:]
    return "/".join(parts[:2]) if parts[0] == "jobs" else parts[0]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker tells what it left out."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = dict(session.config.stash.get(LEFT_OUT, {}))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """All workers collect the same, so that the last one's word counts."""
    if left_out := getattr(node, "workeroutput", {}).get("left_out"):
        node.config.stash[LEFT_OUT] = left_out


def summary(config: pytest.Config) -> str:
    """One line: which sets ran, what was left out, and how to run that. Empty where all was asked for."""
    plan, out = config.stash[PLAN], config.stash.get(LEFT_OUT, {})
    sets = ["unit tests and the spine"] if plan["quick"] else []
    if folders := sorted({*plan["reached"], *plan["helped"]}):
        sets.append(f"{', '.join(folders)} (reached since {config.getoption('changed')})" * plan["quick"])
    if plan["slice"]:
        sets.append(f"slice {config.getoption('slice')} of the matrix")
    return f"ran {'; '.join(filter(None, sets))}. Left out {sum(out.values())} tests: make test-all" if sets else ""
