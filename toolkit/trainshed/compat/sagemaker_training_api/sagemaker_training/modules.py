"""Modules of the user's code; under `train`, which has brought the code and installed its requirements, or without it."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from types import ModuleType

from . import environment, errors, files

DEFAULT_MODULE_NAME = "default_user_module_name"


def exists(name: str) -> bool:
    """Returns whether a module can be imported."""
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def has_requirements(path: str) -> bool:
    """Returns whether a folder has a requirements.txt."""
    return os.path.exists(os.path.join(path, "requirements.txt"))


def install_requirements(path: str, capture_error: bool = False) -> None:
    """Installs a folder's requirements.txt. Raises errors.InstallRequirementsError."""
    _pip(["-r", "requirements.txt"], path, errors.InstallRequirementsError)


def install(path: str, capture_error: bool = False) -> None:
    """Installs a folder as a package, with its requirements. Raises errors.InstallModuleError."""
    _pip([".", *(["-r", "requirements.txt"] if has_requirements(path) else [])], path, errors.InstallModuleError)


def _pip(what: list[str], path: str, error: type[errors._CalledProcessError]) -> None:
    command = [sys.executable, "-m", "pip", "install", *what]
    done = subprocess.run(command, cwd=path, stderr=subprocess.PIPE)
    if done.returncode != 0:
        raise error(" ".join(command), done.returncode, done.stderr)


def import_module(uri: str, name: str = DEFAULT_MODULE_NAME) -> ModuleType:
    """A module of the user's code, which is brought and installed first where it is not there.

    Raises:
        errors.ImportModuleError: it cannot be imported.
        errors.ClientError: the code cannot be brought.
        errors.InstallModuleError, errors.InstallRequirementsError: it cannot be installed.
    """
    code = environment.code_dir
    there = os.path.isdir(code) and os.listdir(code)
    files.download_and_extract(uri, code)
    if not there and os.path.exists(f"{code}/setup.py"):
        install(code)
    elif not there and has_requirements(code):
        install_requirements(code)
    importlib.invalidate_caches()
    if environment.code_dir not in sys.path:
        sys.path.insert(0, environment.code_dir)
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise errors.ImportModuleError(error) from error
