"""Finds the program that the job names and how it is run."""

from __future__ import annotations

import os
import stat
import sys

from trainshed.base.errors import ProgramError, did_you_mean, shorten
from trainshed.base.record import Record
from trainshed.contract.ready_programs import ready_folders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainshed.contract.job import TrainingJob

USUAL_NAMES = ("train.py", "train.sh", "train", "main.py")
# A launcher of the image's own. An exception that carries an error number ends it with that number, as at the peer,
# whose own tests ask for it.
_CALL = """\
try:
    from {0} import {1} as main
    main()
except Exception as error:
    number = getattr(error, "errno", None)
    if not isinstance(number, int) or not 0 < number < 126:
        raise
    import sys, traceback
    traceback.print_exc()
    sys.exit(number)
"""


_TEXT = bytes([9, 10, 13, *range(32, 127), *range(128, 256)])


class Program(Record):
    """The user's program, ready to be given arguments.

    name: as the job names it.
    kind: `python` (a file), `module` (`-m`), `package` (installed, then `-m`), `shell`, `executable`, `launcher` (a function
        of the image's own that starts the script itself).
    command: what to run before the arguments, e.g. (python, train.py).
    folder: the user's code, working directory of the program.
    requirements: path of requirements.txt, "" for none.
    packages: what PYTHONPATH needs because the environment itself could not be written, "" for nothing.
    scripts: the folder that PATH needs for the same reason.
    installs: whether the folder is a package, which is installed before the program runs.
    """

    name: str
    kind: str
    command: tuple[str, ...]
    folder: str
    requirements: str = ""
    packages: str = ""
    scripts: str = ""
    installs: bool = False

    @property
    def is_python(self) -> bool:
        """Tells whether our interpreter runs it (so that there can be one process a rank)."""
        return self.kind in ("python", "module", "package")


def locate(job: TrainingJob, folder: str, environ: Mapping[str, str]) -> Program:
    """Finds the program that the job names in `folder` (the user's code, "" for none).

    Raises:
        ProgramError: there is no such program; names similar ones.
    """
    requirements = f"{folder}/requirements.txt" if folder and os.path.isfile(f"{folder}/requirements.txt") else ""
    if job.training_module:
        return Program(
            name=job.program,
            kind="launcher",
            command=(sys.executable, "-c", _CALL.format(*job.training_module.split(":"))),
            folder=folder or os.getcwd(),
            requirements=requirements,
            installs=bool(folder) and _is_package(folder),
        )
    name = job.program or _usual(folder, job)
    package = bool(folder) and _is_package(folder)
    if name.startswith("-m ") or name.startswith("-m\t"):
        module = name[2:].strip()
        if not _is_module(module):
            raise ProgramError(f"{shorten(name)!r} is not a valid module name", hint="write it like `-m package.module`")
        return Program(
            name=name,
            kind="package" if package else "module",
            command=(sys.executable, "-m", module),
            folder=folder or os.getcwd(),
            requirements=requirements,
            installs=package,
        )
    path = _find(name, folder, environ)
    module = _module(name, path, folder) if package else ""
    if module:
        run = (sys.executable, "-m", module)
        return Program(name=name, kind="package", command=run, folder=folder, requirements=requirements, installs=True)
    if path is None:
        raise _not_found(name, folder, job)
    folder = folder or os.path.dirname(path)
    kind, command = _command(name, path, folder)
    if kind == "python":
        package = _is_package(folder)
        kind = "package" if package else kind
    else:  # as at the peer, which goes by setup.py alone and leaves out shell scripts
        package = not path.endswith(".sh") and os.path.isfile(f"{folder}/setup.py")
    return Program(name=name, kind=kind, command=command, folder=folder, requirements=requirements, installs=package)


def _module(name: str, path: str | None, folder: str) -> str:
    """The module that the program is in a package, as the peer runs it; "" where it is a file to be run as it is."""
    if path is not None and os.path.dirname(path) == folder and path.endswith(".py"):
        own = os.path.basename(path)[:-3]
        return own if _is_name(own) else ""
    module = name.removesuffix(".py").removeprefix("./")
    if name.endswith(".sh") or not _is_module(module):
        return ""
    return module if path is None or _holds_module(folder, module) else ""


def _holds_module(folder: str, module: str) -> bool:
    """Whether it lies in the folder itself or in one that holds the sources, like `src`."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return False
    roots = [folder, *(f"{folder}/{name}" for name in names if not os.path.isfile(f"{folder}/{name}/__init__.py"))]
    place = module.replace(".", "/")
    return any(os.path.isfile(f"{root}/{place}{end}") for root in roots for end in (".py", "/__main__.py", "/__init__.py"))


def _usual(folder: str, job: TrainingJob) -> str:
    """The program of a job that does not name one: one with a usual name, or the only script.

    Raises:
        ProgramError: there is no script, or there are several.
    """
    try:
        names = sorted(os.listdir(folder)) if folder else []
    except OSError as error:
        raise ProgramError(
            f"{folder} cannot be read: {error.strerror}", hint="make it readable for the user of `train`"
        ) from error
    usual = [name for name in USUAL_NAMES if name in names and os.path.isfile(f"{folder}/{name}")]
    scripts = [name for name in names if name.endswith((".py", ".sh")) and name != "setup.py"]
    if usual:
        return usual[0]
    if len(scripts) == 1:
        return scripts[0]
    what = f"{folder} holds {', '.join(scripts[:6])}" if scripts else f"{folder or 'the code folder'} holds no script"
    raise ProgramError(
        f"the job names no program, and {what}",
        hint=_hidden_code(folder, job)
        or 'name it: hyperparameter {"sagemaker_program": "train.py"} or variable SAGEMAKER_PROGRAM',
    )


def _hidden_code(folder: str, job: TrainingJob) -> str:
    """A hint for an image whose own /opt/ml/code may lie under the job's mount; "" where that cannot be."""
    base, code = job.paths.base, job.paths.code
    if folder not in ("", code) or (folder and os.listdir(folder)) or not os.path.ismount(base):
        return ""
    return (
        f"{base} is a mount, which hides what the image has in {code}: put the code into the mounted folder (code/), or "
        "elsewhere in the image, with the variable SAGEMAKER_SUBMIT_DIRECTORY set to its folder"
    )


def _find(name: str, folder: str, environ: Mapping[str, str]) -> str | None:
    """The file: absolute, in the user's code, or among the programs that come with the image."""
    places = [folder, *ready_folders(environ)]
    candidates = [name] if os.path.isabs(name) else [os.path.join(place, name) for place in places if place]
    if not name.endswith((".py", ".sh")):
        candidates += [f"{candidate}.py" for candidate in candidates]
    return next((os.path.normpath(path) for path in candidates if os.path.isfile(path)), None)


def _command(name: str, path: str, folder: str) -> tuple[str, tuple[str, ...]]:
    inside = path.startswith(folder + "/")
    shown = os.path.relpath(path, folder) if inside else path
    if path.endswith(".py"):
        return "python", (sys.executable, f"./{shown}" if shown.startswith("-") else shown)
    called = f"./{shown}" if inside else path  # the program's own name, its `$0`, as at the peer
    try:
        with open(path, "rb") as file:
            first = file.readline(256)
    except OSError as error:
        raise ProgramError(f"{path} cannot be read: {error.strerror}") from error
    is_shell = path.endswith(".sh") or first.startswith(b"#!") or _is_plain_text(path, first)
    kind = "shell" if is_shell else "executable"
    if first.startswith(b"#!") and first.rstrip(b"\n").endswith(b"\r"):
        raise ProgramError(
            f"{name} has Windows line endings: its first line names {first[2:].strip().decode(errors='replace')!r} plus a "
            "carriage return",
            hint=f"convert it: sed -i 's/\\r$//' {shown}",
        )
    if os.stat(path).st_mode & stat.S_IXUSR and os.access(path, os.X_OK) and (first[:2] == b"#!" or kind != "shell"):
        return kind, (called,)
    if first.startswith(b"#!"):  # no execute bit, and the folder is the user's: start its interpreter ourselves
        return kind, (*first[2:].decode(errors="replace").strip().split(None, 1), called)
    if kind == "shell":
        return kind, ("/bin/sh", called)
    hint = f"chmod +x {shown}" if first.startswith(b"\x7fELF") else "a script ends in .py or .sh, or begins with #!"
    if path.endswith(".ipynb"):
        hint = f"a notebook is not a script: jupyter nbconvert --to script {shown} makes one"
    raise ProgramError(f"{name} cannot be run: it does not end in .py or .sh and is not executable", hint=hint)


def _is_plain_text(path: str, first: bytes) -> bool:
    """Whether it is commands without a first line that names a shell: /bin/sh runs them, as at the peer and in shells."""
    named = "." in os.path.basename(path)
    is_text = bool(first.strip()) and not first.translate(None, _TEXT)
    return is_text and (not named or os.access(path, os.X_OK))


def _is_name(text: str) -> bool:
    return text.isidentifier() and text[0].isascii()


def _is_module(text: str) -> bool:
    return all(map(_is_name, text.split(".")))


def _is_package(folder: str) -> bool:
    """Whether it has setup.py, or a pyproject.toml with a build system (many only configure linters)."""
    if os.path.isfile(f"{folder}/setup.py"):
        return True
    if not os.path.isfile(f"{folder}/pyproject.toml"):  # a FIFO of this name would be waited for
        return False
    try:
        with open(f"{folder}/pyproject.toml", encoding="utf-8", errors="replace") as file:
            return any(line.lstrip(" \t").startswith("[build-system]") for line in file)
    except OSError:
        return False


def _not_found(name: str, folder: str, job: TrainingJob) -> ProgramError:
    files = []
    for root, folders, names in os.walk(folder) if folder else ():
        folders[:] = [item for item in sorted(folders) if not item.startswith((".", "__"))]
        if root.count("/") - folder.count("/") >= 3:
            folders.clear()
        files += [os.path.relpath(f"{root}/{item}", folder) for item in sorted(names)]
    same = [file for file in files if os.path.basename(file) == os.path.basename(name)]
    near = f"did you mean {same[0]!r}?" if same else did_you_mean(name, files)
    scripts = [file for file in files if file.endswith((".py", ".sh"))]
    code = folder or "the code folder"
    listing = f"{code} holds {', '.join(scripts[:8])}" if scripts else f"{code} holds no script"
    return ProgramError(f"there is no program {shorten(name)!r}: {listing}", hint=near or _hidden_code(folder, job))
