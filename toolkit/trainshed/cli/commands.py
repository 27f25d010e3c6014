"""Which commands there are: those of the core, of the wings that are installed, and of packages that add some.

A wing has a table like `CORE` in its package `commands`, with a module of each command beside it. Another package
names its commands as entry points of the group `trainshed.commands`: `name = "package.module"`.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from trainshed.base.record import Record
from trainshed.base.wings import has_wing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

GROUP = "trainshed.commands"
WITH_COMMANDS = ("studio", "parallel")
# Command -> (arguments, what it does), in the order of `trainshed help --all`.
CORE = {
    "init": ("[SCRIPT]", "write a job file and a Dockerfile for a script"),
    "run": ("JOB.yaml|SCRIPT", "run a training job here or on a cluster"),
    "ps": ("", "list what runs here now"),
    "status": ("[RUN]", "show the state of a run"),
    "logs": ("[RUN]", "print what a run has printed"),
    "attach": ("[RUN]", "watch a run until it ends"),
    "stop": ("[RUN]", "stop a run"),
    "release": ("POOL ...", "remove warm pools"),
    "resume": ("[RUN]", "continue a run from its checkpoints"),
    "predict": ("RUN|MODEL DATA", "what a model makes of data"),
    "clone": ("[RUN]", "print a job file that repeats a run"),
    "rm": ("RUN ...", "remove runs"),
    "schema": ("", "print the job file's JSON schema"),
    "algorithms": ("", "list ready programs, which need no code"),
    "describe": ("NAME", "show what a ready program takes and prints"),
    "chaos": ("JOB.yaml|SCRIPT", "run a job here and play failures on it"),
    "demo": ("", "train a small network in ten seconds, offline"),
    "train": ("", "in a container: run the job that /opt/ml describes"),
    "doctor": ("[FOLDER]", "check this machine or container, and its job"),
    "check-image": ("IMAGE", "check a container image from outside"),
    "export": ("PLACE JOB.yaml", "a job for kubernetes, sagemaker; runs for mlflow"),
    "metrics": ("show|test", "show a run's metrics, or those in a log"),
    "profile": ("[RUN]", "record steps of a running job: operators, trace"),
    "data": ("show|bench PLACE", "what is in a channel, and how fast it is read"),
    "cache": ("ls|rm|prune", "what was fetched for channels, kept for other runs"),
    "checkpoints": ("COMMAND FOLDER", "list, verify, prune and convert checkpoints"),
    "runs": ("ls|show|diff ...", "search, compare, tag, repeat and remove runs"),
    "completion": ("bash|zsh|fish", "print completion for a shell"),
}


class Command(Record):
    """A command. words: its arguments for people; module: has `add_arguments(parser)` and `run(options)`."""

    words: str
    summary: str
    module: str


def find(name: str) -> Command | None:
    """The command of that name, None where there is none. Other packages are asked last, and only then."""
    if name in _core():
        return _core()[name]
    for wing in WITH_COMMANDS:
        if name in _wing(wing):
            return _wing(wing)[name]
    return _added().get(name)


def all_commands() -> dict[str, Command]:
    """All commands by name; one of ours is never replaced by another package's."""
    found = {**_added(), **_core()}
    for wing in WITH_COMMANDS:
        found |= _wing(wing)
    return found


@cache
def _core() -> dict[str, Command]:
    return _commands(__package__, CORE)


@cache
def _wing(name: str) -> dict[str, Command]:
    package = f"trainshed.{name}.commands"
    return _commands(package, import_module(package).COMMANDS) if has_wing(name) else {}


@cache
def _added() -> dict[str, Command]:
    from trainshed.base.entry_points import points

    return {one.name: Command("", f"from {one.dist.name if one.dist else one.module}", one.module) for one in points(GROUP)}


def _commands(package: str, table: Mapping[str, tuple[str, str]]) -> dict[str, Command]:
    return {name: Command(words, summary, f"{package}.{name.replace('-', '_')}") for name, (words, summary) in table.items()}
