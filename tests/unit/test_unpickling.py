"""No file makes our processes run code: every load that could is one of those named here, with its reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.offenders import no_offenders
from support.paths import ENTRYPOINTS, ROOT
from support.sources import source_files, tree_of

pytestmark = pytest.mark.safety

# What makes objects of bytes or code of text. `torch.load` and `numpy.load` are looked at by their arguments.
LOADERS = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "jsonpickle", "pandas"}
CALLS = {"load", "loads", "Unpickler", "open", "read_pickle", "decode"}
YAML = {"load", "load_all", "unsafe_load", "unsafe_load_all", "full_load", "full_load_all"}
CODE = {"eval", "exec", "compile", "execfile", "run_path", "exec_module", "load_module", "SourceFileLoader"}

PIPE = "from the process that started this one, through a pipe of theirs"
RANK = "what a rank of this job has sent over its process group, or this process has packed itself"
OURS = "a file of ours, found from the place of this one"
SCRIPT = "the job's own code, which the job is there to run"
# `file: call` below toolkit/trainshed, with how often it is there at most, and why that is no way in.
ALLOWED = {
    "container/hangs/hook/sitecustomize.py: SourceFileLoader": (1, "a module of ours beside it, which has no package there"),
    "container/hangs/hook/sitecustomize.py: exec": (1, "the same"),
    "container/warm_start/hook/sitecustomize.py: .SourceFileLoader": (1, OURS),
    "container/warm_start/hook/sitecustomize.py: exec": (1, OURS),
    "container/warm_start/imports.py: compile": (2, SCRIPT),
    "container/warm_start/imports.py: exec": (1, SCRIPT),
    "entrypoints/_rewards.py: spec.loader.exec_module": (1, "the user's own functions, which the job names"),
    "places/ray/driver.py: pickle.load": (1, PIPE),
    "runner/control/detached.py: pickle.load": (1, PIPE),
    "studio/steps/tuning_step.py: pickle.load": (1, PIPE),
    "studio/python_api.py: pickle.load": (1, PIPE),
    "parallel/engine/outputs.py: pickle.loads": (1, RANK),
    "parallel/engine/object_collectives.py: pickle.loads": (1, RANK),
    "parallel/engine/verify/attributes.py: pickle.loads": (1, RANK),
    "parallel/tracing/notes.py: pickle.loads": (1, "a generator's state that this process has pickled"),
    "parallel/tracing/host_rng.py: pickle.loads": (1, RANK),
    "compat/horovod_api/horovod/torch/functions.py: torch.load": (1, RANK),
    "compat/smdistributed/modelparallel/torch/checkpoint.py: torch.load": (
        3,
        "a script's own objects: files that no other user could have written, or the script's own word (weights_only)",
    ),
    "container/hangs/contribution.py: pickle.Unpickler": (1, "its find_class refuses every name"),
    "container/launchers/error_hook/sitecustomize.py: exec": (1, OURS),
    "container/hangs/hook/sitecustomize.py: runpy.run_path": (1, OURS),
    "machine/isolation.py: spec.loader.exec_module": (1, OURS),
    "compiler/mp_fn.py: runpy.run_path": (1, SCRIPT),
    "algorithms/own_script.py: spec.loader.exec_module": (1, SCRIPT),
    "parallel/plan/command.py: runpy.run_path": (1, SCRIPT),
    "parallel/verify/rank.py: runpy.run_path": (1, SCRIPT),
    "studio/rules/watching.py: spec.loader.exec_module": (1, SCRIPT),
    "autopatch/__init__.py: self._loader.exec_module": (1, "the import that Python does anyway"),
    "autopatch/startup/sitecustomize.py: spec.loader.exec_module": (1, "the import that Python does anyway"),
}


def dotted(node: ast.expr) -> str:
    """`a.b.c` of an expression of names; `.c` of anything else."""
    if isinstance(node, ast.Attribute):
        front = dotted(node.value)
        return f"{front}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def constant(call: ast.Call, name: str) -> object:
    return next(
        (word.value.value for word in call.keywords if word.arg == name and isinstance(word.value, ast.Constant)), None
    )


def is_loose(call: ast.Call, name: str) -> bool:
    """Whether a call can run code that its input names."""
    front, _, last = name.rpartition(".")
    module = front.rpartition(".")[2]
    if name in CODE or (last in CODE - {"eval", "compile"} and "." in name):
        return True
    if module == "torch" and last == "load":
        return constant(call, "weights_only") is not True
    if (module in ("np", "numpy") and last == "load") or last == "read_array":
        return constant(call, "allow_pickle") is True
    if module == "yaml":
        return last in YAML
    return module in LOADERS and last in CALLS


def loose_calls(tree: ast.AST) -> Iterator[str]:
    """Calls that can run code that their input names, and bases and imports that stand for such calls."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and is_loose(node, name := dotted(node.func)):
            yield name
        elif isinstance(node, ast.ClassDef):
            yield from (name for base in node.bases if (name := dotted(base)).endswith(".Unpickler"))
        elif isinstance(node, ast.ImportFrom) and node.module in LOADERS - {"pandas"}:
            yield from (f"from {node.module} import {one.name}" for one in node.names if one.name in CALLS)
        elif isinstance(node, ast.ImportFrom) and node.module == "torch":
            yield from (f"from torch import {one.name}" for one in node.names if one.name == "load")


def shipped() -> dict[str, Path]:
    """Every Python file that runs where we run, by its name."""
    package = ROOT / "toolkit/trainshed"
    files = {str(path.relative_to(package)): path for path in source_files() if path.is_relative_to(package)}
    for folder in (ENTRYPOINTS, ROOT / "examples"):
        files |= {str(path.relative_to(ROOT)): path for path in sorted(folder.rglob("*.py"))}
    return files


def test_every_load_that_could_run_code_is_a_named_one() -> None:
    found: dict[str, list[str]] = {}
    counted: dict[str, int] = {}
    for name, path in shipped().items():
        calls = [f"{name}: {call}" for call in loose_calls(tree_of(path))]
        for call in calls:
            counted[call] = counted.get(call, 0) + 1
        found[name] = [call for call in calls if counted[call] > ALLOWED.get(call, (0, ""))[0]]

    no_offenders(found, "a file must not make us run code: torch.load(weights_only=True), json, or a reason in ALLOWED")
    assert sorted(ALLOWED) == sorted(set(ALLOWED) & set(counted)), "a reason whose call is gone"


@pytest.mark.parametrize(
    "source",
    [
        "torch.load(f)", "torch.load(f, weights_only=False)", "torch.load(f, weights_only=x)", "from torch import load",
        "pickle.loads(b)", "self.pickle.load(f)", "from pickle import loads as x", "class R(pickle.Unpickler): pass",
        "numpy.load(f, allow_pickle=True)", "yaml.load(f, Loader=L)", "yaml.unsafe_load(f)", "marshal.loads(b)",
        "joblib.load(p)", "shelve.open(p)", "pandas.read_pickle(p)", "cloudpickle.load(f)", "eval(t)", "exec(t)",
        "runpy.run_path(p)", "spec.loader.exec_module(m)",
    ],
)  # fmt: skip
def test_the_rule_sees(source: str) -> None:
    assert list(loose_calls(ast.parse(source)))


@pytest.mark.parametrize(
    "source",
    [
        "torch.load(f, weights_only=True)",
        "numpy.load(f)",
        "model.eval()",
        "re.compile(x)",
        "json.load(f)",
        "yaml.compose(t)",
    ],
)
def test_the_rule_lets_pass(source: str) -> None:
    assert not list(loose_calls(ast.parse(source)))
