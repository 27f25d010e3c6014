"""Finding the program that the job names, and how it is run."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from trainshed.base.errors import ProgramError
from trainshed.container.program.locate import Program, locate

SHOW = "import sys, os\nprint('ran', os.path.basename(__file__), sys.argv[1:], os.getcwd())\n"


def located(tree: Any, name: str = "", environ: dict[str, str] | None = None) -> Program:
    """The program that a job with this `sagemaker_program` runs, from the tree's code folder."""
    tree.configure(hyperparameters={"sagemaker_program": name} if name else {})
    folder = f"{tree.base}/code"
    return locate(tree.read(), folder if os.path.isdir(folder) else "", environ or {})


def error_of(tree: Any, name: str = "", environ: dict[str, str] | None = None) -> str:
    """Why there is no such program: message and hint."""
    with pytest.raises(ProgramError) as raised:
        located(tree, name, environ)
    assert "\n" not in raised.value.message
    return f"{raised.value.message} ({raised.value.hint})"


# --- Python files ----------------------------------------------------------------------------------------------------

NAMES = {
    "train.py": "train.py",
    "./train.py": "train.py",
    "sub/train.py": "sub/train.py",
    "sub/../train.py": "train.py",
    "my script.py": "my script.py",
    "train@v2.py": "train@v2.py",
    "a'b\"c$d;e.py": "a'b\"c$d;e.py",
    "größe.py": "größe.py",
    "列車.py": "列車.py",
    "-u.py": "./-u.py",
    "--help.py": "./--help.py",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_python_file_of_any_name_is_run_by_our_interpreter_in_its_folder(name: str, job_tree: Any) -> None:
    job_tree.code("sub/other.py")
    job_tree.code(os.path.normpath(name), SHOW)

    program = located(job_tree, name)

    assert program.kind == "python" and program.is_python and program.name == name
    assert program.command == (sys.executable, NAMES[name])
    assert program.folder == f"{job_tree.base}/code" and program.requirements == ""
    done = job_tree.train()
    assert done.status == 0 and done.stdout == f"ran {os.path.basename(name)} [] {job_tree.base}/code\n"


def test_the_ending_may_be_left_out(job_tree: Any) -> None:
    job_tree.code("train.py")

    assert located(job_tree, "train").command == (sys.executable, "train.py")


def test_an_absolute_path_needs_no_code_folder(job_tree: Any, tmp_path: Path) -> None:
    script = tmp_path / "elsewhere" / "train.py"
    script.parent.mkdir()
    script.write_text(SHOW)

    program = located(job_tree, str(script))

    assert program.command == (sys.executable, "train.py") and program.folder == str(script.parent)
    job_tree.code("other.py")
    program = located(job_tree, str(script))
    assert program.command == (sys.executable, str(script)) and program.folder == f"{job_tree.base}/code"


def test_programs_that_come_with_the_image_are_found_after_the_users_own(job_tree: Any, tmp_path: Path) -> None:
    image = tmp_path / "entrypoints"
    image.mkdir()
    for name in ("image_classification.py", "train.py"):
        (image / name).write_text(SHOW)
    environ = {"TRAINSHED_ENTRYPOINTS": str(image)}

    program = located(job_tree, "image_classification", environ)
    assert program.command == (sys.executable, "image_classification.py") and program.folder == str(image)
    job_tree.code("train.py", "print('own')")
    assert located(job_tree, "train.py", environ).command == (sys.executable, "train.py")
    assert located(job_tree, "train.py", environ).folder == f"{job_tree.base}/code"
    assert job_tree.train(TRAINSHED_ENTRYPOINTS=str(image)).stdout == "own\n", "the variable is no unknown setting"


@pytest.mark.parametrize(
    "names", [["train.py", "a.py"], ["train.sh", "b.sh"], ["train", "x.py", "y.py"], ["main.py", "lib.py"]]
)
def test_a_job_that_names_none_runs_the_usual_one(names: list[str], job_tree: Any) -> None:
    for name in names:
        job_tree.code(name, "#!/bin/sh\n", 0o755)

    assert located(job_tree).name == names[0]


def test_the_only_script_there_is_needs_no_name(job_tree: Any) -> None:
    job_tree.code("whatever.py")
    job_tree.code("setup.py")
    job_tree.code("notes.txt")

    assert located(job_tree).name == "whatever.py"


def test_of_several_scripts_one_must_be_named(job_tree: Any) -> None:
    job_tree.code("a.py")
    job_tree.code("b.py")

    message = error_of(job_tree)
    assert "the job names no program" in message and "holds a.py, b.py" in message
    assert '{"sagemaker_program": "train.py"}' in message


def test_a_folder_without_scripts_and_no_folder_at_all(job_tree: Any) -> None:
    assert "the code folder holds no script" in error_of(job_tree)
    job_tree.code("notes.txt")
    assert "code holds no script" in error_of(job_tree)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("trian.py", "did you mean 'train.py'?"),
        ("Train.py", "did you mean 'train.py'?"),
        ("src/train.py", "did you mean 'train.py'?"),
        ("evaluate.py", "did you mean 'tools/evaluate.py'?"),
        ("tools/evalute.py", "did you mean 'tools/evaluate.py'?"),
        ("q.py", "()"),
    ],
)
def test_a_program_that_is_not_there_is_told_with_the_nearest_one(name: str, hint: str, job_tree: Any) -> None:
    for path in ("train.py", "tools/evaluate.py", ".git/hooks/x.py", "__pycache__/y.py"):
        job_tree.code(path)

    message = error_of(job_tree, name)

    assert f"there is no program {name!r}" in message and "holds train.py, tools/evaluate.py" in message
    assert hint in message and ".git" not in message and "__pycache__" not in message


def test_a_folder_is_no_program(job_tree: Any) -> None:
    job_tree.code("src/train.py")

    assert "there is no program 'src'" in error_of(job_tree, "src")


def test_a_code_folder_that_may_not_be_read_is_named(job_tree: Any) -> None:
    job_tree.configure(hyperparameters={}).code("train.py")
    (job_tree.base / "code").chmod(0)
    done = job_tree.train(powerless=True)
    (job_tree.base / "code").chmod(0o755)

    assert done.status == 1 and "/code cannot be read: Permission denied" in job_tree.failure


# --- modules and packages --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["-m json.tool", "-m  json.tool ", "-m\tjson.tool"])
def test_a_module_is_run_with_dash_m(name: str, job_tree: Any) -> None:
    program = located(job_tree, name)

    assert program.kind == "module" and program.is_python
    assert program.command == (sys.executable, "-m", "json.tool")


def test_a_module_of_the_users_code_is_found(job_tree: Any) -> None:
    job_tree.code("pkg/__init__.py")
    job_tree.code("pkg/train.py", "print('module', __name__, __package__)")
    job_tree.configure(hyperparameters={"sagemaker_program": "-m pkg.train"})

    assert job_tree.train().stdout == "module __main__ pkg\n"


@pytest.mark.parametrize("name", ["-m a b", "-m 1a", "-m a/b", "-m a..b", "-m .a"])
def test_what_is_no_modules_name_is_refused(name: str, job_tree: Any) -> None:
    assert "is not a valid module name" in error_of(job_tree, name)


@pytest.mark.parametrize("name", ["setup.py", "pyproject.toml"])
def test_code_that_can_be_built_is_a_package(name: str, job_tree: Any) -> None:
    job_tree.code(name, "[project]\nname = 'x'\n\n [build-system]\nrequires = []\n")
    job_tree.code("train.py")
    job_tree.code("requirements.txt")
    job_tree.code("sub/train.py")

    program = located(job_tree, "train.py")
    assert program.kind == "package" and program.command == (sys.executable, "-m", "train") and program.is_python
    assert program.requirements == f"{job_tree.base}/code/requirements.txt"
    assert located(job_tree, "./train.py").command == (sys.executable, "-m", "train")
    assert located(job_tree, "sub/train.py").command == (sys.executable, "sub/train.py")
    assert located(job_tree, "inner.module").command == (sys.executable, "-m", "inner.module")
    assert located(job_tree, "inner").kind == "package"
    assert located(job_tree, "-m inner.train").kind == "package"
    assert "there is no program 'no/such.py'" in error_of(job_tree, "no/such.py")


PACKAGED = {  # name: files beside setup.py, the command after Python (or the whole one), whether the package is installed
    "train": (["train.py"], "-m train", True),
    "./train": (["train.py"], "-m train", True),
    "t": (["t.py"], "-m t", True),
    "train.v2": (["train.v2.py"], "train.v2.py", True),
    "train.v2.py": (["train.v2.py"], "train.v2.py", True),
    "my-train": (["my-train.py"], "my-train.py", True),
    "sub/train": (["sub/train.py"], "sub/train.py", True),
    "sub/../train.py": (["train.py", "sub/x.py"], "-m train", True),
    "ready": ([], "{image}/ready.py", True),
    "ready.py": ([], "{image}/ready.py", True),
    "own": (["src/own/__main__.py"], "-m own", True),
    "ready2": (["src/ready2.py"], "-m ready2", True),
    "both": (["both!", "both.py"], "-m both", True),
    "shell": (["shell!"], "./shell", True),
    "tools/shell": (["tools/shell!"], "./tools/shell", True),
    "run.sh": (["run.sh!"], "./run.sh", False),
}


def test_programs_of_packages_are_run_as_modules_where_they_are_and_as_files_where_not(
    job_tree: Any, tmp_path: Path
) -> None:
    image = tmp_path / "entrypoints"
    image.mkdir()
    for name in ("ready", "ready2", "run"):
        (image / f"{name}.py").write_text(SHOW)
    wrong = []
    for name, (files, command, installs) in PACKAGED.items():
        shutil.rmtree(job_tree.base / "code", ignore_errors=True)
        for path in ("setup.py", *files):
            job_tree.code(path.removesuffix("!"), "#!/bin/sh\n", 0o755 if path.endswith("!") else 0o644)
        program = located(job_tree, name, {"TRAINSHED_ENTRYPOINTS": str(image)})
        shown = " ".join(part for part in program.command if part != sys.executable)
        if (shown, program.installs) != (command.format(image=image), installs):
            wrong.append((name, shown, program.installs))
    assert not wrong


@pytest.mark.parametrize(
    "text", ["[tool.ruff]\nline-length = 100\n", "# [build-system]\n", "[tool.x]\ny = '[build-system]'\n", ""]
)
def test_a_pyproject_with_a_linters_settings_makes_no_package(text: str, job_tree: Any) -> None:
    job_tree.code("pyproject.toml", text)
    job_tree.code("train.py")

    assert located(job_tree, "train.py").kind == "python"


# --- shells and executables ------------------------------------------------------------------------------------------

SH = 'echo ran "$@" in "$PWD"\n'


@pytest.mark.parametrize(
    ("name", "text", "mode", "kind", "command"),
    [
        ("run.sh", SH, 0o644, "shell", ("/bin/sh", "{path}")),
        ("run.sh", SH, 0o755, "shell", ("/bin/sh", "{path}")),
        ("run.sh", "#!/bin/sh\n" + SH, 0o755, "shell", ("{path}",)),
        ("run.sh", "#!/bin/sh\n" + SH, 0o644, "shell", ("/bin/sh", "{path}")),
        ("run.sh", "#! /bin/sh -e\n" + SH, 0o644, "shell", ("/bin/sh", "-e", "{path}")),
        ("run.sh", "#!/usr/bin/env sh\n" + SH, 0o644, "shell", ("/usr/bin/env", "sh", "{path}")),
        ("my run.sh", "#!/bin/sh\n" + SH, 0o755, "shell", ("{path}",)),
        ("tools/run", "#!/bin/sh\n" + SH, 0o755, "shell", ("{path}",)),
        ("-run.sh", SH, 0o644, "shell", ("/bin/sh", "{path}")),
        ("run", SH, 0o644, "shell", ("/bin/sh", "{path}")),
        ("run", SH, 0o755, "shell", ("/bin/sh", "{path}")),
        ("run.bash", SH, 0o755, "shell", ("/bin/sh", "{path}")),
    ],
)
def test_shell_programs_run_with_or_without_an_execute_bit(
    name: str, text: str, mode: int, kind: str, command: tuple[str, ...], job_tree: Any
) -> None:
    job_tree.code(name, text, mode)

    program = located(job_tree, name)

    assert (program.kind, program.is_python) == (kind, False)
    assert program.command == tuple(part.replace("{path}", f"./{name}") for part in command)
    job_tree.configure(hyperparameters={"sagemaker_program": name, "a b": "c d"})
    done = job_tree.train()
    assert (done.status, done.stdout) == (0, f"ran --a b c d in {job_tree.base}/code\n")


def test_a_script_in_another_language_is_run_by_its_first_line(job_tree: Any) -> None:
    job_tree.code("train", f"#!{sys.executable} -B\nimport sys; print(sys.flags.dont_write_bytecode)\n")

    program = located(job_tree, "train")
    assert program.kind == "shell" and program.command == (sys.executable, "-B", "./train")
    assert job_tree.train().stdout == "1\n"


def test_a_compiled_program_is_run_as_it_is(job_tree: Any) -> None:
    job_tree.code("tool", Path("/bin/echo").read_bytes(), 0o755)

    program = located(job_tree, "tool")
    assert program.kind == "executable" and program.command == ("./tool",) and not program.is_python
    job_tree.configure(hyperparameters={"sagemaker_program": "tool", "epochs": "3"})
    assert job_tree.train().stdout == "--epochs 3\n"


def test_a_launcher_finds_a_package_installed_as_at_the_peer(job_tree: Any) -> None:
    job_tree.configure(hyperparameters={"sagemaker_program": "train.py"}).code("train.py", SHOW)
    job = job_tree.read(SAGEMAKER_TRAINING_MODULE="framework:main")
    folder = f"{job_tree.base}/code"
    assert not locate(job, folder, {}).installs
    job_tree.code("setup.py", "")

    found = locate(job, folder, {})
    assert (found.kind, found.installs) == ("launcher", True)


def test_a_program_that_is_none_is_told_how_to_become_one(job_tree: Any) -> None:
    job_tree.code("tool", Path("/bin/true").read_bytes(), 0o644)

    message = error_of(job_tree, "tool")
    assert "tool cannot be run: it does not end in .py or .sh and is not executable" in message
    assert "chmod +x tool" in message
    for name, content, cure in (
        ("nb.ipynb", b'{"cells": []}', "jupyter nbconvert --to script nb.ipynb"),
        ("notes.txt", b"# my model\n", "a script ends in .py or .sh, or begins with #!"),
    ):
        job_tree.code(name, content, 0o644)
        message = error_of(job_tree, name)
        assert cure in message and "chmod" not in message, message


@pytest.mark.parametrize("mode", [0o644, 0o755])
def test_windows_line_ends_are_told_and_not_run_into(mode: int, job_tree: Any) -> None:
    job_tree.code("run.sh", b"#!/bin/bash\r\necho hi\r\n", mode)

    message = error_of(job_tree, "run.sh")
    assert "Windows line endings" in message and "'/bin/bash' plus a carriage return" in message and "sed -i" in message


def test_a_name_that_is_no_utf8_does_not_stop_the_report(job_tree: Any) -> None:
    name = os.fsdecode(b"tr\xffain")
    job_tree.configure(hyperparameters={}).code(name, b"\x7fELF")

    done = job_tree.train(SAGEMAKER_PROGRAM=name)

    assert done.status == 1 and "cannot be run" in job_tree.failure and "Traceback" not in done.output


def test_a_fifo_in_the_place_of_pyproject_is_not_waited_for(job_tree: Any) -> None:
    job_tree.code("train.py")
    os.mkfifo(job_tree.base / "code/pyproject.toml")

    assert located(job_tree, "train.py").kind == "python"


@pytest.mark.parametrize("name", ["", "train.py"])
def test_code_of_the_image_that_a_mount_may_hide_is_mentioned(
    name: str, job_tree: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "is a mount" not in error_of(job_tree, name)

    monkeypatch.setattr(os.path, "ismount", lambda path: path == str(job_tree.base))
    assert f"{job_tree.base} is a mount, which hides what the image has in {job_tree.base}/code" in error_of(job_tree, name)
    job_tree.code("a.py")
    job_tree.code("b.py")
    assert "is a mount" not in error_of(job_tree, name), "there is code"
