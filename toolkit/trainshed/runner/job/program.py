"""Which program a job means and which folder its code is: people name scripts, `train` wants both."""

from __future__ import annotations

import os
from collections.abc import Mapping

from trainshed.base.errors import did_you_mean
from trainshed.contract.paths import ARCHIVES
from trainshed.contract.wire.variables import ENTRYPOINTS

from .checker import Checker, resolve
from .job import S3


def locate_program(fields: Checker, image: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """(program for `train`, folder with the code, or an archive of it, or its `s3://` URI). Problems go to `fields`.

    Without `source_dir` the code is the script's own folder. A program that is not found here may be in the image, or
    among the ready-made ones (`TRAINSHED_ENTRYPOINTS`); then there is no code folder. A name without a path may be that of
    a program that declares itself (`trainshed algorithms`).
    """
    program = fields.text("program")
    if fields.text("source_dir").startswith(S3):
        return program, fields.text("source_dir")
    source_dir = fields.path("source_dir", "file or folder")
    if os.path.isfile(source_dir):
        if not source_dir.endswith(ARCHIVES):
            fields.problem("source_dir", f"is neither a folder nor an archive ({', '.join(ARCHIVES)})")
        return program, source_dir
    if not program:
        if not (source_dir or image or _named_elsewhere(fields)):
            fields.missing("program", "is missing", "name the script, like train.py")
        return "", source_dir
    folder = fields.values["program"].folder
    if program.startswith("-m "):
        return program, source_dir or folder
    here = resolve(program, folder)
    if not source_dir:
        found = next((path for path in (here, f"{here}.py") if os.path.isfile(path)), "")
        if found.endswith(".ipynb"):
            fields.problem("program", "is a notebook, not a script", f"jupyter nbconvert --to script {program} makes one")
        if found:
            return os.path.basename(found), os.path.dirname(found)
        source, places = "", [os.path.dirname(here)]
    else:
        inside = os.path.normpath(os.path.join(source_dir, program))
        for path in (inside, f"{inside}.py", here):
            if os.path.isfile(path) and path.startswith(source_dir.rstrip("/") + "/"):
                return os.path.relpath(path, source_dir), source_dir
        if _is_module_of_package(program, source_dir):
            return program, source_dir
        source, places = source_dir, [source_dir]
    ready = environ.get(ENTRYPOINTS, "")
    if image or (ready and any(os.path.isfile(f"{ready}/{name}") for name in (program, f"{program}.py"))):
        return program, source
    if not os.path.isdir(source_dir) and fields.node("source_dir"):
        return program, source  # the folder's own problem says enough
    declared = {} if source_dir or os.sep in program else _declared(environ)
    if program in declared:
        return os.path.basename(declared[program]), os.path.dirname(declared[program])
    scripts = [*(name for place in places for name in _scripts(place)), *declared]
    near = did_you_mean(os.path.basename(program), scripts)
    here_are = [name for name in scripts if name not in declared]
    held = f"contains {', '.join(here_are[:6])}" if here_are else "contains no scripts"
    fields.problem("program", f"there is no such file; {places[0]} {held}", near)
    return program, source


def _named_elsewhere(fields: Checker) -> bool:
    """Whether `train` is told of the program as the platform tells it: by a hyperparameter, or with the channel `code`."""
    held = [fields.node(name) for name in ("hyperparameters", "channels")]
    names = [node.value if node is not None and isinstance(node.value, dict) else {} for node in held]
    return "sagemaker_program" in names[0] or "code" in names[1]


def _is_module_of_package(name: str, folder: str) -> bool:
    """Whether `train` will install the folder and run the name with `-m`."""
    path = os.path.join(folder, *name.removesuffix(".py").split("."))
    package = any(os.path.isfile(f"{folder}/{file}") for file in ("setup.py", "pyproject.toml"))
    return package and (os.path.isfile(f"{path}.py") or os.path.isfile(f"{path}/__main__.py"))


def _declared(environ: Mapping[str, str]) -> dict[str, str]:
    """The programs that declare themselves: name -> path."""
    from trainshed.algorithms.shelf import every

    return {algorithm.name: algorithm.script for algorithm in every(environ)[0]}


def _scripts(folder: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if name.endswith((".py", ".sh")))
    except OSError:
        return []
