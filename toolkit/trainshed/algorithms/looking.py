"""Looks at data with the eyes of a ready program: it reads its channels, says what they hold, and ends before it trains."""

from __future__ import annotations

import os
import subprocess
import sys

from trainshed.base.errors import EXIT_JOB, TrainshedError
from trainshed.contract.ready_programs import ready_folders

from .checking import check_hyperparameters
from .shelf import missing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from .declaration import Algorithm

_FLAG = "--check_data"  # of every ready program
_OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_OF_A_JOB = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")


class LookError(TrainshedError):
    """What was asked for cannot be looked at."""

    exit_code = EXIT_JOB


def look(algorithm: Algorithm, place: str, given: Mapping[str, str], environ: Mapping[str, str]) -> int:
    """Prints what the program finds; its exit status: 0 where the data is plausible, 1 where it is refused.

    Args:
        place: data of the channel `train`, or a folder with a folder a channel.
        given: hyperparameters.

    Raises:
        LookError: there is no such data, hyperparameters are wrong, or what the program needs is not installed.
    """
    if not is_ready(algorithm, environ):
        raise LookError(f"{algorithm.name} is not a ready program: only those can look at data without training")
    if not os.path.exists(place):
        raise LookError(f"there is no file or folder {place}")
    if absent := missing(algorithm):
        raise LookError(f"{algorithm.name} needs {', '.join(absent)}, not installed here", hint=install(algorithm))
    if problems := check_hyperparameters(algorithm, given, "--hp"):
        raise LookError("\n".join(problem.line() for problem in problems))
    folders = [word for name, path in channels_in(algorithm, place).items() for word in (f"--{name}", path)]
    words = [word for name, value in given.items() for word in (f"--{name}", value)]
    command = [sys.executable, algorithm.script, _FLAG, *folders, *words]
    return subprocess.run(command, env=environment_for(environ), check=False).returncode


def is_ready(algorithm: Algorithm, environ: Mapping[str, str]) -> bool:
    """Whether it is one of the ready programs, and not somebody's own of that name."""
    folder = os.path.dirname(os.path.abspath(algorithm.path))
    return any(os.path.samefile(folder, one) for one in ready_folders(environ))


def environment_for(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of a program that is started beside any job."""
    left = {name: value for name, value in environ.items() if not name.startswith("SM_") and name not in _OF_A_JOB}
    left["PYTHONPATH"] = os.pathsep.join(filter(None, (_OURS, left.get("PYTHONPATH"))))  # no other trainshed than this one
    return left


def channels_in(algorithm: Algorithm, place: str) -> dict[str, str]:
    """Channel -> its data: a folder that has a channel's name, else all of it is what is learnt from."""
    found = {}
    for channel in algorithm.channels.values():
        paths = (os.path.join(place, name) for name in (channel.name, *channel.aliases))
        if (path := next(filter(os.path.isdir, paths), "")) != "":
            found[channel.name] = path
    return found or {next(iter(algorithm.channels)): place}


def install(algorithm: Algorithm) -> str:
    """The command that installs what it needs, "" where no extra has it."""
    return f"pip install 'trainshed[{algorithm.extra}]'" if algorithm.extra else ""
