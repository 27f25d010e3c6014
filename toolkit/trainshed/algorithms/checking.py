"""Checks a job against what its program declares: all that is wrong at once, before anything is fetched or installed."""

from __future__ import annotations

from trainshed.base.errors import Problem, did_you_mean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Protocol

    from .declaration import Algorithm, ChannelDeclaration
    from .values import Hyperparameter

    class JobChannel(Protocol):
        """A channel of the job."""

        @property
        def input_mode(self) -> str:
            """File, FastFile or Pipe."""

        @property
        def content_type(self) -> str:
            """As the job says, "" where it does not."""


# Channels that are not for the program to read: the platform's for its code and what it fills itself.
_NOT_THE_PROGRAMS = ("code",)
_THEIRS = "sm_"


def check_hyperparameters(algorithm: Algorithm, given: Mapping[str, Any], file: str) -> list[Problem]:
    """Lists what is wrong with a job's hyperparameters.

    Args:
        given: name -> value; a null or empty value means the default. `-` in a name is `_`.
        file: where they are written, for messages.
    """
    problems = []
    known = algorithm.hyperparameters
    values: dict[str, Any] = {}
    for written, value in given.items():
        name = written if written in known else written.replace("-", "_")
        if name not in known:
            problems.append(
                Problem(file, f"is not a hyperparameter of {algorithm.name}", written, _shown(value), _near(name, known))
            )
        elif value is not None and value != "":
            try:
                values[name] = known[name].read(value)
            except ValueError as error:
                problems.append(Problem(file, str(error), written))
                continue
            if known[name].refused and (said := known[name].said_of(values[name])):
                problems.append(Problem(file, said.partition(" ")[2], written, _shown(value)))
    for one in known.values():
        if one.name not in values and (why := _why_required(one, values, known)):
            problems.append(Problem(file, f"is missing: {why}", one.name, suggestion=one.help and f"{one.help}"))
    return problems


def check_channels(
    algorithm: Algorithm, given: Mapping[str, JobChannel], hyperparameters: Mapping[str, Any], file: str
) -> list[Problem]:
    """Lists what is wrong with a job's channels."""
    if not algorithm.channels:
        return []
    problems = []
    of_name = {name: channel for channel in algorithm.channels.values() for name in (channel.name, *channel.aliases)}
    for name, channel in given.items():
        if name in of_name:
            problems += _wrong_with(of_name[name], name, channel, file)
        elif name not in _NOT_THE_PROGRAMS and not name.startswith(_THEIRS):
            reads = f"{algorithm.name} reads {', '.join(algorithm.channels)}"
            problems.append(
                Problem(file, f"no channel of this name is read; {reads}", name, suggestion=_near(name, of_name))
            )
    for one in algorithm.channels.values():
        there = any(name in given for name in (one.name, *one.aliases))
        if one.required and not there and not hyperparameters.get(one.unless):
            instead = f", or give the hyperparameter {one.unless}" if one.unless else ""
            problems.append(Problem(file, f"the channel is missing{instead}", one.name, suggestion=one.help))
    return problems


def _wrong_with(channel: ChannelDeclaration, name: str, given: JobChannel, file: str) -> list[Problem]:
    problems = []
    content = given.content_type.partition(";")[0].strip().lower()  # `text/csv;label_size=0`
    if content and channel.content_types and content not in channel.content_types:
        known = ", ".join(channel.content_types)
        problems.append(Problem(file, f"is not read; known: {known}", f"{name}.ContentType", given.content_type))
    if given.input_mode not in channel.input_modes:
        modes = ", ".join(channel.input_modes)
        problems.append(Problem(file, f"is not served; known: {modes}", f"{name}.TrainingInputMode", given.input_mode))
    return problems


def _why_required(one: Hyperparameter, values: Mapping[str, Any], known: Mapping[str, Hyperparameter]) -> str:
    if one.required:
        return f"a {one.kind()}"
    for other, when in one.required_with.items():
        value = values.get(other, known[other].default)
        if value is not None and str(value) in when:
            return f"{other} is {value}, which needs it"
    return ""


def _near(name: str, known: Mapping[str, object]) -> str:
    return did_you_mean(name, known)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else str(value)
