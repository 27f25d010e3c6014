"""Virtual environments with the very packages that a run noted, kept by what is in them and shared by all that ask for it.

Made with `venv` and pip, through the user's own settings of pip (index, PIP_* variables). Only a whole one is used: the last
file that is written says so, and what is installed is compared with what was asked for.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

from trainshed.base.errors import TrainshedError, one_line, shorten, some
from trainshed.base.files import read_object, write_atomic
from trainshed.base.secrets import MASK, mask_text
from trainshed.machine.installed import ARCHIVE, EDITABLE, LOCAL, VCS, environment, installed
from trainshed.runner.files.user_dirs import state_folder

OURS = "trainshed"  # which is the one that is called, whatever the run had
COMPLETE = "complete.json"
MOST_NAMED = 5
_UNREACHABLE = (
    "NewConnectionError",
    "Temporary failure in name resolution",
    "ConnectTimeoutError",
    "Network is unreachable",
)
Say = Callable[[str], None]


class PackagesError(TrainshedError):
    """The packages cannot be had as they were."""


def python_with(
    wanted: Mapping[str, Any], leave_out: Collection[str], environ: Mapping[str, str], say: Say, name: str
) -> str:
    """An interpreter that has the very packages; this one where it has them.

    Args:
        wanted: `environment` of a run record (machine/installed.py).
        leave_out: names of packages that need not be there.
        environ: of the user: settings of pip.
        name: of the run, for messages.

    Raises:
        PackagesError: they cannot be had: other platform, no such Python, a package that came from a folder, no index.
    """
    packages = {one: version for one, version in (wanted.get("packages") or {}).items() if one not in {OURS, *leave_out}}
    if not wanted.get("packages"):
        raise PackagesError(f"{name} has not noted its packages", hint="rerun without --exact")
    here = environment()
    if wanted.get("platform") != here["platform"]:
        raise PackagesError(f"{name} trained on {wanted.get('platform')}, this machine is {here['platform']}")
    have = {one: version for one, version in here["packages"].items() if one not in {OURS, *leave_out}}
    if have == packages and here["python"] == wanted.get("python"):
        say("the packages are those of this Python")
        return sys.executable
    python = _interpreter(str(wanted.get("python") or ""), environ, say, name)
    lines = _requirements(packages, wanted.get("sources") or {}, name)
    text = json.dumps([platform.python_implementation(), wanted.get("python"), here["platform"], lines])
    folder = f"{state_folder(environ)}/environments/{sha256(text.encode()).hexdigest()[:16]}"
    with _held(folder):
        if not _is_whole(folder, packages):
            say(f"making an environment with {len(packages)} package{'s' if len(packages) != 1 else ''} in {folder}")
            _make(folder, python, lines, environ)
            _check(folder, packages)
            write_atomic(f"{folder}/{COMPLETE}", json.dumps({"packages": packages}, indent=1) + "\n")
    return f"{folder}/bin/python"


def _interpreter(version: str, environ: Mapping[str, str], say: Say, name: str) -> str:
    """A Python of the version, or of its minor version. Raises PackagesError."""
    mine = sys.version.split()[0]
    minor = ".".join(version.split(".")[:2])
    if not re.fullmatch(r"3\.[0-9]{1,2}", minor):
        raise PackagesError(f"{name} has not noted its Python", hint="rerun without --exact")
    if version == mine:
        return sys.executable
    for path in (shutil.which(f"python{minor}", path=environ.get("PATH", os.defpath)), sys.executable):
        if path and (found := _version_of(path)).startswith(f"{minor}."):
            if found != version:
                say(f"warning: {name} trained with Python {version}; {path} is {found}")
            return path
    raise PackagesError(
        f"{name} trained with Python {version}, which is not here",
        hint=f"install it as python{minor}, or rerun without --exact",
    )


def _version_of(python: str) -> str:
    try:
        done = subprocess.run(
            [python, "-I", "-c", "import sys; print(sys.version.split()[0])"], capture_output=True, text=True
        )
    except OSError:
        return ""
    return done.stdout.strip()


def _requirements(packages: Mapping[str, str], sources: Mapping[str, Mapping[str, str]], name: str) -> list[str]:
    """Lines for pip. Raises PackagesError where a package came from where it cannot be fetched from again."""
    lines, problems = [], []
    for one, version in packages.items():
        source = sources.get(one, {})
        kind, url = source.get("kind", ""), source.get("url", "")
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", one) or not re.fullmatch(r"[A-Za-z0-9.!+_]+", version):
            problems.append(f"{one} {version}: is not a valid name or version")
        elif kind in (EDITABLE, LOCAL):
            problems.append(f"{one} was installed from the folder {url.removeprefix('file://')}")
        elif MASK in url:
            problems.append(f"{one} was installed from {url}, whose login was not kept")
        elif kind == VCS:
            lines.append(f"{one} @ {url}@{source.get('commit', '')}")
        elif kind == ARCHIVE and url.startswith("file://") and not os.path.exists(url.removeprefix("file://")):
            problems.append(f"{one} was installed from {url.removeprefix('file://')}, which is gone")
        elif kind == ARCHIVE:
            lines.append(f"{one} @ {url}")
        else:
            lines.append(f"{one}=={version.replace('_', '-') if '+' not in version else version}")
    if problems:
        names = " ".join(f"--leave-out {problem.split()[0]}" for problem in problems[:MOST_NAMED])
        raise PackagesError(
            f"{name} had packages that no index has: {one_line(some(problems, MOST_NAMED, '; '))}",
            hint=f"leave them out where they do not matter ({names}), or rerun without --exact",
        )
    return sorted(lines)


@contextmanager
def _held(folder: str) -> Iterator[None]:
    """One process at a time makes an environment. Raises PackagesError."""
    try:
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        lock = os.open(f"{folder}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise PackagesError(f"{folder} cannot be made: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _is_whole(folder: str, packages: Mapping[str, str]) -> bool:
    if not os.path.exists(f"{folder}/bin/python") or not read_object(f"{folder}/{COMPLETE}", 1 << 22):
        return False
    return _packages_of(folder) == packages


def _packages_of(folder: str) -> dict[str, str]:
    lib = f"{folder}/lib"
    folders = [f"{lib}/{one}/site-packages" for one in (os.listdir(lib) if os.path.isdir(lib) else ())]
    return installed(folders)[0]


def _make(folder: str, python: str, lines: list[str], environ: Mapping[str, str]) -> None:
    """Raises PackagesError."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
        _run([python, "-I", "-m", "venv", "--without-pip", folder], environ)
        if lines:
            write_atomic(f"{folder}/requirements.txt", "\n".join(lines) + "\n")
            _run([*_installer(environ), f"{folder}/bin/python", "install", *_HOW, f"{folder}/requirements.txt"], environ)
    except OSError as error:
        raise PackagesError(f"{folder} cannot be made: {error.strerror}") from error


_HOW = ("--no-deps", "--no-input", "--disable-pip-version-check", "--progress-bar", "off", "-r")


def _installer(environ: Mapping[str, str]) -> list[str]:
    """pip, which installs into another interpreter's environment. Raises PackagesError."""
    for python in (sys.executable, shutil.which("python3", path=environ.get("PATH", os.defpath))):
        if python and subprocess.run([python, "-I", "-m", "pip", "--version"], capture_output=True).returncode == 0:
            return [python, "-I", "-m", "pip", "--python"]
    raise PackagesError(
        "there is no pip to install packages with", hint="install pip for this Python, or rerun without --exact"
    )


def _run(command: list[str], environ: Mapping[str, str]) -> None:
    """Raises OSError, and PackagesError with the reason in words where the command fails."""
    done = subprocess.run(
        command, env=dict(environ), capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL
    )
    if done.returncode == 0:
        return
    output = mask_text(f"{done.stdout}\n{done.stderr}")
    errors = [line.removeprefix("ERROR: ") for line in output.splitlines() if line.startswith("ERROR: ")]
    reason = shorten(one_line(errors[0] if errors else (output.strip().splitlines() or ["no reason is known"])[-1]), 300)
    hint = "pip uses your own settings (index, PIP_ variables); rerun without --exact takes the packages of today"
    if any(sign in output for sign in _UNREACHABLE):
        hint = "the package index cannot be reached: connect to it, or name another (PIP_INDEX_URL, PIP_FIND_LINKS)"
    elif re.search(r"==\S+\+\w+", reason):
        hint = "a version with `+` (like torch's `+cpu`) is on its maker's own index: name that to pip (PIP_EXTRA_INDEX_URL)"
    raise PackagesError(f"the packages cannot be installed: {reason}", hint=hint, details=output if not errors else "")


def _check(folder: str, packages: Mapping[str, str]) -> None:
    """Raises PackagesError where something else was installed than was asked for."""
    found = _packages_of(folder)
    wrong = [f"{name} {found.get(name, 'is missing')} instead of {version}" for name, version in packages.items()
             if found.get(name) != version]  # fmt: skip
    wrong += [f"{name} is there" for name in found if name not in packages]
    if wrong:
        raise PackagesError(f"the packages are not as they were: {some(wrong, MOST_NAMED, '; ')}")
