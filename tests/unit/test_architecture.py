"""The arrows of the house: which part may know which other, and what a start of `train` may load."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.import_graph import (
    PACKAGE,
    circles,
    file_arrows,
    files_known_to,
    folder_pairs,
    imported,
    module_files,
    names_known_to,
    part_named,
    part_of,
    reverse_closure,
)
from support.offenders import no_offenders
from support.paths import ROOT, TOOLKIT
from support.sources import tree_of
from support.wheels import CORE_TESTS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it along

# Each wing may be left out: the core loads what it has by name.
WINGS = ("studio", "parallel", "compiler", "compat")
_OF_WINGS = tuple(f"trainshed.{wing}" for wing in WINGS)
GROUND = {"base", "contract"}
RUNNER_PARTS = {*GROUND, "machine", "runner"}  # the places by the table of the runner alone
_STUDIO = {
    f"studio/{room}"
    for room in (
        *("ui", "pages", "catalogue", "lineage", "tracking", "models", "batches", "tune", "steps", "rules"),
        *("compare", "forecast", "run_report", "simulation", "watch", "python_api"),
    )
}
MAY_KNOW: dict[str, set[str]] = {
    "base": set(),
    "contract": {"base"},
    "machine": GROUND,
    "algorithms": GROUND,
    "container": {*GROUND, "machine", "metrics", "observe", "algorithms"},
    "runner": {*GROUND, "machine", "metrics", "observe", "algorithms"},  # the container by its command alone
    "places": {*RUNNER_PARTS, "metrics", "observe", "algorithms"},
    # Each command loads its own part.
    "cli": {*RUNNER_PARTS, "places", "container", "checkpoint", "metrics", "observe", "algorithms", "data"},
    "__main__": {"cli"},
    # Inside the user's process each part knows itself and the ground.
    **dict.fromkeys(("autopatch", "metrics", "data", "compiler"), GROUND),
    "checkpoint": {*GROUND, "machine"},  # how much memory there is
    "observe": {*GROUND, "metrics"},  # whose steps stand in where none were measured
    "parallel": {*GROUND, "checkpoint", "machine"},  # its checkpoints go through the same engine
    "parallel/commands": {*GROUND, "cli", "runner", "parallel"},
    "compat": {*GROUND, "parallel"},  # Amazon's names for what parallel does
    "studio": set(),
    "studio/rules": {*GROUND, "metrics", "observe"},
    "studio/pages": {*GROUND, "metrics", "observe", "parallel"},  # of parallel the order of a schedule's work alone
    "studio/models": {*RUNNER_PARTS, "algorithms"},
    "studio/lineage": RUNNER_PARTS,
    "studio/tracking": {*RUNNER_PARTS, "metrics"},
    "studio/ui": {
        *(*RUNNER_PARTS, "metrics", "observe", "studio/pages", "studio/catalogue", "studio/batches", "studio/tune"),
        *("studio/steps", "studio/models", "studio/lineage", "studio/compare"),
    },
    "studio/catalogue": {*RUNNER_PARTS, "metrics", "observe", "studio/pages"},
    "studio/compare": {*RUNNER_PARTS, "metrics", "observe", "studio/pages", "studio/catalogue"},
    "studio/python_api": {*RUNNER_PARTS, *(f"studio/{room}" for room in ("batches", "compare", "pages", "steps", "tune"))},
    "studio/forecast": {"base"},
    "studio/run_report": {*RUNNER_PARTS, "studio/pages"},
    "studio/simulation": {"base", "studio/forecast"},
    "studio/watch": {*RUNNER_PARTS, "metrics", "observe", "studio/pages"},
    "studio/batches": RUNNER_PARTS,
    "studio/tune": {*RUNNER_PARTS, "places", "metrics", "algorithms", "studio/pages", "studio/batches"},
    "studio/steps": {*RUNNER_PARTS, "studio/models", "studio/batches", "studio/tune"},
    "studio/commands": {*RUNNER_PARTS, *_STUDIO, "metrics", "algorithms", "cli"},
}
# The runner's rooms, each of which knows those before it.
RUNNER = ("job", "files", "notify", "state", "display", "acting", "control", "tools")
# The supervising side: light, and started once for every job on every node.
LIGHT = (
    *("base", "contract", "machine", "metrics", "observe", "container", "runner", "places", "cli", "algorithms"),
    *(
        f"studio/{room}"
        for room in ("pages", "batches", "tune", "steps", "lineage", "models", "catalogue", "tracking", "commands")
    ),
)
CORE_PACKAGES = {"psutil", "yaml"}  # what installing trainshed brings along
NEVER_AT_START = {
    *("torch", "numpy", "boto3", "botocore", "transformers", "accelerate", "yaml", "psutil"),
    *("dataclasses", "argparse", "logging", "subprocess", "asyncio", "socket"),
}


def shown(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def at_module_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements that run when the module is imported: not in functions, not for type checkers only."""
    pending: list[ast.stmt] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            pending += node.orelse
            continue
        blocks = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
        blocks += [inner.body for inner in (*getattr(node, "handlers", ()), *getattr(node, "cases", ()))]
        if any(blocks):
            for block in blocks:
                pending += block
        else:
            yield node


def parts_known_to(path: Path) -> set[str]:
    """Other parts of the house that a file imports from, in whatever place."""
    names = (tuple(name.split(".")[1:]) for name in names_known_to(path) if name.split(".")[0] == "trainshed")
    return {part_named(name) for name in names if name and name[0] != "__version__"} - {part_of(path)}


# --- arrows ----------------------------------------------------------------------------------------------------------


def test_the_scan_sees_every_way_to_import() -> None:
    path = PACKAGE / "container/cluster/hosts.py"
    text = (
        "import os, trainshed\nimport trainshed.runner.x as y\nfrom ...machine.hardware import probe\nfrom . import single\n"
        "from trainshed import checkpoint\nfrom ...base.errors import A\nif TYPE_CHECKING:\n    import torch\n"
        "try:\n    import numpy\nexcept ImportError:\n    import boto3\ndef f():\n    import yaml\n"
        "match 1:\n    case 1:\n        import json\n"
    )
    tree = ast.parse(text)

    assert set(imported(path, ast.walk(tree))) == {
        *(
            "os",
            "trainshed",
            "trainshed.runner.x",
            "trainshed.machine.hardware.probe",
            "trainshed.container.cluster.single",
        ),
        *("trainshed.checkpoint", "trainshed.base.errors.A", "torch", "numpy", "boto3", "yaml", "json"),
    }
    level = set(imported(path, at_module_level(tree)))
    assert {"numpy", "boto3", "os", "json"} <= level and not {"torch", "yaml"} & level


def test_every_part_of_the_house_has_its_place() -> None:
    parts = {part_of(path) for path in module_files()} - {"__init__"}

    assert parts <= MAY_KNOW.keys(), "a new part needs its arrows here and in the design"
    assert {"contract", "container"} <= parts


def test_arrows_point_down_only() -> None:
    found = {shown(path): parts_known_to(path) - MAY_KNOW.get(part_of(path), set()) for path in module_files()}

    no_offenders(found, "a part must not import these others")


def test_the_core_knows_no_wing() -> None:
    core = [path for path in module_files() if path.relative_to(PACKAGE).parts[0] not in WINGS]
    found = {shown(path): {part for part in parts_known_to(path) if part.split("/")[0] in WINGS} for path in core}

    no_offenders(found, "the core loads what other wings have by name (base/wings.py), and works without")


def test_unit_tests_of_the_core_know_no_wing() -> None:
    files = [path for part in CORE_TESTS for path in (ROOT / "tests/unit" / part).rglob("*.py")]
    found = {
        str(path.relative_to(ROOT)): {name for name in names_known_to(path) if name.startswith(_OF_WINGS)} for path in files
    }

    no_offenders(found, "they run where the core is alone: take it by pytest.importorskip, or test it below the wing")


def test_no_two_folders_know_each_other() -> None:
    own = {"compat/horovod_api/horovod/torch, compat/horovod_api/horovod/torch/elastic"}  # Horovod's names for its folders
    found = folder_pairs()
    assert own <= found.keys(), "the scan does not see it"
    found = {pair: words for pair, words in found.items() if pair not in own}

    assert not found, f"one of the two must be below: {found}"


def test_a_room_of_the_runner_knows_only_those_below_it() -> None:
    found = {}
    for number, room in enumerate(RUNNER):
        above = tuple(f"trainshed.runner.{other}." for other in RUNNER[number + 1 :])
        for path in (PACKAGE / "runner" / room).rglob("*.py"):
            found[shown(path)] = {name for name in names_known_to(path) if f"{name}.".startswith(above)}

    no_offenders(found, "a room of the runner must not import those above it")


def test_the_supervising_side_needs_nothing_heavy_at_import() -> None:
    found = {}
    for path in (path for path in module_files() if part_of(path) in LIGHT):
        names = {name.split(".")[0] for name in imported(path, at_module_level(tree_of(path)))}
        allowed = CORE_PACKAGES if part_of(path) in ("runner", "cli", "studio/commands") else set()
        found[shown(path)] = names - sys.stdlib_module_names - {"trainshed", "__future__"} - allowed

    no_offenders(found, "these must be imported where they are needed, or not at all")


# --- circles and names -----------------------------------------------------------------------------------------------


def test_a_circle_is_found() -> None:
    a, b, c, d = (Path(name) for name in "abcd")

    assert circles({a: {b}, b: {c}, c: {b, d}, d: set()}) == [{b, c}]


def test_all_that_imports_a_changed_file_is_found() -> None:
    a, b, c, d, gone = (Path(name) for name in ("a", "b", "c", "d", "gone"))
    arrows = {a: {b}, b: {c}, c: {b}, d: {a, gone}}

    assert reverse_closure(arrows, {c}) == {a, b, c, d}
    assert reverse_closure(arrows, {a, gone}) == {a, d, gone}
    assert reverse_closure(arrows, set()) == set()


def test_imports_lead_to_files() -> None:
    known = files_known_to(PACKAGE / "container/cluster/static.py")

    assert PACKAGE / "base/errors.py" in known and PACKAGE / "container/cluster/hosts.py" in known


def test_no_circle_of_files() -> None:
    """One file of a circle cannot be understood, tested or moved without the others."""
    found = [sorted(shown(path) for path in circle) for circle in circles(file_arrows())]

    assert not found, f"these files import each other, directly or not: {found}"


def test_no_name_of_a_file_three_times() -> None:
    """A traceback, an editor's tab and a search show the name alone."""
    special = {"__init__.py", "__main__.py", "sitecustomize.py", "errors.py"}  # errors.py: a part's exceptions
    paths = {path for path in module_files() if part_of(path) != "compat" and path.name not in special}
    same = {path.name: [shown(other) for other in paths if other.name == path.name] for path in paths}

    no_offenders({name: found if len(found) > 2 else [] for name, found in same.items()}, "a name is there twice at most")


def test_no_public_class_name_twice_in_a_wing() -> None:
    """An error, a search and a `repr` show the name alone."""
    places: dict[str, list[str]] = {}
    for path in module_files():
        part = part_of(path).split("/")[0]
        wing = {"compiler": "parallel"}.get(part, part) if part in WINGS else "core"
        body = tree_of(path).body
        nodes = [*body, *(inner for node in body if isinstance(node, ast.If) for inner in node.body)]
        for node in nodes if wing != "compat" else []:  # its names are given by other libraries
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(f"{wing}, {node.name}", []).append(shown(path))

    no_offenders({name: found if len(found) > 1 else [] for name, found in places.items()}, "rename all but one class")


def test_a_file_that_is_a_program_begins_at_its_end() -> None:
    """What is defined below the call of `main` is not there when the file is run, though it is when it is imported."""
    found = {}
    for path in module_files():
        body = tree_of(path).body
        calls = [
            number for number, node in enumerate(body) if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)
        ]
        found[shown(path)] = [f"line {body[number].lineno}" for number in calls if number != len(body) - 1]

    no_offenders(found, '`if __name__ == "__main__"` is the last statement')


# --- what a start loads ----------------------------------------------------------------------------------------------

LOADED = """
import json, os, sys
before = set(sys.modules)
{statement}
print("LOADED" + json.dumps(sorted(set(sys.modules) - before)))
"""


def loaded_by(statement: str, environ: dict[str, str]) -> set[str]:
    """Top-level names of the modules that a statement loads in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED.format(statement=statement)], env=environ, capture_output=True, text=True
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("LOADED")] or [f"no answer: {done.stderr}"]
    return {name.split(".")[0] for name in json.loads(line.removeprefix("LOADED"))}


def test_importing_trainshed_loads_nothing_else(job_tree: Any) -> None:
    assert loaded_by("import trainshed", job_tree.environ()) == {"trainshed"}


@pytest.mark.parametrize("distribution", ["script", "torchrun"])
def test_a_job_on_one_host_loads_nothing_that_is_slow(distribution: str, job_tree: Any) -> None:
    job_tree.code("train.sh", "exit 0\n")
    job_tree.configure(
        hyperparameters={
            "sagemaker_program": "train.sh",
            "trainshed_distribution": distribution,
            "trainshed_processes_per_host": "1",
            "epochs": "3",
        },
        resources=job_tree.hosts(1),
        channels={},
    )
    environ = job_tree.environ(MASTER_PORT="7777")  # else torchrun's launcher looks for a free port, with a socket
    loaded = loaded_by("from trainshed.container.main import train; assert train(os.environ) == 0", environ)

    assert loaded & NEVER_AT_START == set()
    assert job_tree.success == ""


def test_a_failing_job_loads_no_framework_either(job_tree: Any) -> None:
    job_tree.code("train.py", "raise ValueError('no')")
    job_tree.configure(hyperparameters={})
    loaded = loaded_by("from trainshed.container.main import train; assert train(os.environ) == 1", job_tree.environ())

    assert loaded & {"torch", "numpy", "boto3", "botocore", "transformers", "yaml", "psutil", "asyncio"} == set()


# --- words and metadata ----------------------------------------------------------------------------------------------


def silent_names(tree: ast.Module) -> list[str]:
    """The public names of a file that have no docstring, with their lines."""
    silent = [] if ast.get_docstring(tree) else ["the module"]
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            silent += [] if ast.get_docstring(node) else [f"{node.name} in line {node.lineno}"]
    return silent


def test_every_public_name_says_what_it_is() -> None:
    no_offenders({shown(path): silent_names(tree_of(path)) for path in module_files()}, "these need a docstring")


def metadata() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_installing_trainshed_brings_psutil_and_pyyaml_and_nothing_else() -> None:
    names = {"".join(letter for letter in text if letter.isalpha()) for text in metadata()["project"]["dependencies"]}

    assert names == {"psutil", "pyyaml"}


def test_the_console_scripts_lead_somewhere() -> None:
    for target in metadata()["project"]["scripts"].values():
        module, _, function = target.partition(":")
        path = TOOLKIT / f"{module.replace('.', '/')}.py"
        path = path if path.is_file() else path.with_suffix("") / "__init__.py"
        assert path.is_file(), target
        assert any(isinstance(node, ast.FunctionDef) and node.name == function for node in tree_of(path).body), target


def test_train_is_installed_as_a_program_that_starts_python_isolated() -> None:
    (script,) = metadata()["tool"]["setuptools"]["script-files"]
    text = (ROOT / script).read_text()

    assert Path(script).name == "train" and text.startswith("#!/bin/sh\n")
    assert "train" not in metadata()["project"]["scripts"], "an entry point's Python would heed PYTHONPATH"
    ast.parse(text)


def test_the_version_is_in_one_place() -> None:
    project = metadata()

    assert "version" in project["project"]["dynamic"] and "version" not in project["project"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "trainshed.__version__"}
