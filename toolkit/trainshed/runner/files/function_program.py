"""A Python function as a job's program: a folder with its pickle, a script that calls it, and the package that reads it.

`cloudpickle` writes functions of notebooks by value. Its package goes with the program, so an image needs nothing; but an
image of another Python version cannot read the function, and says so.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from trainshed.base.errors import JobError, Problem, TrainshedError
from trainshed.base.files import write_atomic

from .user_dirs import state_folder

KEPT_SECONDS = 86400.0  # by then each runner has copied its program
_SCRIPT = '''\
"""Calls the function that was given to trainshed.run, with the hyperparameters as its arguments."""

import json
import os
import pickle
import sys

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "function.pickle"), "rb") as file:
    written, present = file.readline().decode().strip(), "{}.{}".format(*sys.version_info)
    if written != present:
        words = f"the function was written by Python {written}, which Python {present} cannot read"
        raise RuntimeError(f"{words}: use an image with {written}")
    function = pickle.load(file)
if __name__ == "__main__":
    function(**json.loads(os.environ["SM_HPS"]))
'''


def as_program(function: Callable[..., Any], hyperparameters: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """Path of a script that calls a function; it is there for a day.

    Raises:
        JobError: the function does not take the hyperparameters, or cannot be pickled.
        TrainshedError: cloudpickle is not installed.
    """
    try:
        import cloudpickle
    except ImportError as error:
        raise TrainshedError(
            "a function as a program needs cloudpickle", hint="pip install 'trainshed[notebook]'"
        ) from error
    _refuse_arguments(function, hyperparameters)
    pickled = "{}.{}\n".format(*sys.version_info).encode() + _pickled(function, cloudpickle)
    functions = f"{state_folder(environ)}/functions"
    folder = f"{functions}/{hashlib.sha256(pickled).hexdigest()[:24]}"
    _forget_old(functions)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    os.utime(folder)
    shutil.copytree(os.path.dirname(cloudpickle.__file__), f"{folder}/cloudpickle", dirs_exist_ok=True, ignore=_no_caches)
    write_atomic(f"{folder}/function.pickle", pickled)
    script = f"{folder}/{_name_of(function)}.py"
    write_atomic(script, _SCRIPT)
    return script


def _name_of(function: Callable[..., Any]) -> str:
    return re.sub(r"\W", "", getattr(function, "__name__", "")).replace("lambda", "") or "function"


def _refuse_arguments(function: Callable[..., Any], hyperparameters: Mapping[str, Any]) -> None:
    try:
        inspect.signature(function).bind(**hyperparameters)
    except TypeError as error:
        problem = Problem("hyperparameters", f"are the arguments of {_name_of(function)}: {error}")
        raise JobError([problem]) from error


def _pickled(function: Callable[..., Any], cloudpickle: Any) -> bytes:
    """A function by value, and with it what its own module defines, which the job would not find."""
    module = sys.modules.get(function.__module__)
    own = (
        module is not None
        and function.__module__ != "__main__"
        and module.__name__ not in cloudpickle.list_registry_pickle_by_value()
    )
    if own:
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(function))
    except Exception as error:  # of whatever the function holds
        problem = Problem(_name_of(function), f"cannot be pickled: {type(error).__name__}: {error}")
        raise JobError([problem]) from error
    finally:
        if own:
            cloudpickle.unregister_pickle_by_value(module)


def _no_caches(_: str, names: list[str]) -> list[str]:
    return [name for name in names if name == "__pycache__"]


def _forget_old(functions: str) -> None:
    try:
        old = [one.path for one in os.scandir(functions) if one.stat().st_mtime < time.time() - KEPT_SECONDS]
    except FileNotFoundError:
        return
    for folder in old:
        shutil.rmtree(folder, ignore_errors=True)
