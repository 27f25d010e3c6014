"""The command `train` keeps the user's modules and variables out of its own interpreter; the script sees all of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from support.paths import TOOLKIT

# Named like modules that `train` loads, or may load: with PYTHONPATH=/opt/ml/code each would come before Python's own.
NAMES = (
    *("json", "re", "signal", "types", "enum", "select", "time", "io", "abc", "codecs", "functools", "collections"),
    *("traceback", "tempfile", "random", "socket", "struct", "hashlib", "platform", "shutil", "typing", "trainshed"),
    *("psutil", "yaml", "sitecustomize", "usercustomize"),
)
SHADOW = "import os\nos._exit(99)\n"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command in a virtual environment that sees this checkout, as an editable installation makes it."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    (site / "trainshed.pth").write_text(f"{TOOLKIT}\n")
    return command_in(folder / "bin", str(folder / "bin/python"))


def command_in(folder: Path, python: str) -> Path:
    """What an installer leaves in its folder of programs."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(TOOLKIT / "train", folder / "train")
    (folder / "trainshed").write_text(f"#!{python}\nimport sys\n")
    return folder / "train"


def run(command: list[str], job_tree: Any, **environ: str) -> subprocess.CompletedProcess[str]:
    """The command on a job folder; the environment holds no module path but what is given here."""
    variables = {name: value for name, value in job_tree.environ().items() if not name.startswith("PYTHON")}
    variables["PYTHONDONTWRITEBYTECODE"] = "1"
    return subprocess.run(command, env={**variables, **environ}, cwd="/", capture_output=True, text=True, timeout=120)


@pytest.mark.spine
def test_nothing_of_the_users_takes_the_place_of_what_train_loads(installed: Path, job_tree: Any) -> None:
    for name in NAMES:
        job_tree.code(f"{name}.py", SHADOW)
    job_tree.code("train.sh", "echo trained\n")
    job_tree.configure(hyperparameters={"sagemaker_program": "train.sh"})

    done = run([str(installed)], job_tree, PYTHONPATH=str(job_tree.base / "code"))

    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr


def test_a_failure_is_explained_although_the_users_modules_are_named_like_pythons(installed: Path, job_tree: Any) -> None:
    for name in NAMES:
        job_tree.code(f"{name}.py", SHADOW)
    job_tree.code("train.sh", "echo 'no data today' >&2\nexit 3\n")
    job_tree.configure(hyperparameters={"sagemaker_program": "train.sh"})

    done = run([str(installed)], job_tree, PYTHONPATH=str(job_tree.base / "code"))

    assert done.returncode == 3, done.stderr
    assert "no data today" in job_tree.failure


@pytest.mark.parametrize(
    "variables",
    [
        {"PYTHONHOME": "/nonexistent", "PYTHONHASHSEED": "x", "PYTHONPLATLIBDIR": "nowhere"},
        {"PYTHONSTARTUP": "/dev/zero", "PYTHONINSPECT": "1", "PYTHONWARNINGS": "error", "PYTHONIOENCODING": "no:such"},
    ],
    ids=["that end an interpreter", "that change one"],
)
def test_variables_of_pythons_do_not_reach_train(variables: dict[str, str], installed: Path, job_tree: Any) -> None:
    job_tree.code("train.sh", 'echo "$PYTHONHOME$PYTHONSTARTUP"\n')
    job_tree.configure(hyperparameters={"sagemaker_program": "train.sh"})

    done = run([str(installed)], job_tree, **variables)

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == variables.get("PYTHONHOME", "") + variables.get("PYTHONSTARTUP", "")


def test_a_script_whose_interpreter_a_variable_ends_is_reported(installed: Path, job_tree: Any) -> None:
    job_tree.code("train.py", "print('never')\n")
    job_tree.configure(hyperparameters={})

    done = run([str(installed)], job_tree, PYTHONHASHSEED="x")

    assert done.returncode == 1 and "PYTHONHASHSEED" in job_tree.failure, done.stderr


@pytest.mark.spine
def test_the_script_sees_its_own_modules_as_without_train(installed: Path, job_tree: Any, tmp_path: Path) -> None:
    framework = tmp_path / "framework"
    framework.mkdir()
    (framework / "ourlib.py").write_text("WHERE = 'framework'\n")
    (framework / "sitecustomize.py").write_text("import builtins\nbuiltins.customized = True\n")
    job_tree.code("json.py", "OURS = True\n")
    job_tree.code("train.py", "import json, ourlib, os, sys\nprint(json.OURS, ourlib.WHERE, customized)\n")
    job_tree.configure(hyperparameters={})
    path = f"{job_tree.base / 'code'}:{framework}"

    done = run([str(installed)], job_tree, PYTHONPATH=path)

    assert (done.returncode, done.stdout) == (0, "True framework True\n"), done.stderr


@pytest.mark.parametrize("where", ["target", "target on PYTHONPATH", "user", "a link to the command"])
def test_the_command_finds_trainshed_wherever_pip_has_put_it(
    where: str, installed: Path, job_tree: Any, tmp_path: Path
) -> None:
    job_tree.code("train.sh", "echo trained\n")
    job_tree.code("json.py", SHADOW)
    job_tree.configure(hyperparameters={"sagemaker_program": "train.sh"})
    bare = tmp_path / "bare"
    venv.create(bare, symlinks=True)  # a Python that has no trainshed
    variables = {"PYTHONPATH": str(job_tree.base / "code")}
    if where == "a link to the command":
        command = tmp_path / "train"
        command.symlink_to(installed)
    elif where == "user":
        home = tmp_path / "home"
        site = home / f".local/lib/python3.{sys.version_info.minor}/site-packages"
        site.mkdir(parents=True)
        (site / "trainshed").symlink_to(TOOLKIT / "trainshed")
        command = command_in(home / ".local/bin", os.path.realpath(sys.executable))
        variables["HOME"] = str(home)
    else:
        (tmp_path / "packages").mkdir()
        (tmp_path / "packages/trainshed").symlink_to(TOOLKIT / "trainshed")
        if where == "target":
            command = command_in(tmp_path / "packages/bin", str(bare / "bin/python"))
        else:
            command = command_in(tmp_path / "elsewhere", str(bare / "bin/python"))
            variables["PYTHONPATH"] += f":{tmp_path / 'packages'}"

    done = run([str(command)], job_tree, **variables)

    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr


def test_as_a_module_train_prefers_pythons_modules_too(job_tree: Any) -> None:
    """`python -m` cannot keep out a `sitecustomize`, nor what Python loads for `-m` itself; but all that comes after."""
    code = job_tree.base / "code"
    for name in set(NAMES) - {"sitecustomize", "usercustomize", "trainshed", "types", "functools", "collections"}:
        job_tree.code(f"{name}.py", SHADOW)
    job_tree.code("train.sh", "exit 5\n")
    job_tree.configure(hyperparameters={"sagemaker_program": "train.sh"})

    command = [sys.executable, "-m", "trainshed.container.main"]
    done = run(command, job_tree, PYTHONPATH=f"{TOOLKIT}:{code}")

    assert done.returncode == 5, done.stderr


def test_a_library_that_only_pythonpath_has_is_found_and_comes_last(tmp_path: Path) -> None:
    (tmp_path / "only_here.py").write_text("")
    (tmp_path / "json.py").write_text("")
    program = (
        "import sys; from trainshed.machine.isolation import isolate; isolate()\n"
        "import json, only_here; print(json.__file__, only_here.__file__, sep='\\n')\n"
    )
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{TOOLKIT}"}

    done = subprocess.run([sys.executable, "-c", program], env=environ, cwd=tmp_path, capture_output=True, text=True)

    json_file, only_here = done.stdout.splitlines()
    assert json_file == json.__file__ and only_here == str(tmp_path / "only_here.py"), done.stderr


def test_one_of_our_modules_starts_isolated_from_its_own_folder(tmp_path: Path) -> None:
    from trainshed.machine.isolation import isolated

    (tmp_path / "json.py").write_text(SHADOW)
    (tmp_path / "sitecustomize.py").write_text(SHADOW)
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = isolated("trainshed.container.main", "--version")

    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True)

    assert done.returncode == 0 and done.stdout.startswith("trainshed "), done.stderr
