"""Reads what a program declares of itself. Strict: all that is wrong with the file is said at once."""

from __future__ import annotations

import math
import os
import re

from trainshed.base.errors import EXIT_JOB, Problem, TrainshedError, did_you_mean
from trainshed.base.record import Record

from . import ENDING
from .values import SCALES, TYPES, Hyperparameter, Tunable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

MODES = ("File", "FastFile", "Pipe")
DIRECTIONS = ("minimize", "maximize")
_LARGEST = 1 << 20  # bytes of a declaration
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_:.-]{0,255}")


class DeclarationError(TrainshedError):
    """A declaration is wrong; `problems` lists all that is."""

    exit_code = EXIT_JOB

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        lines = [problem.line() for problem in problems]
        more = f"{len(problems)} problems in what the program declares: " if len(problems) > 1 else ""
        super().__init__(f"{more}{lines[0]}", details="\n".join(f"  {line}" for line in lines) if more else "")


class ChannelDeclaration(Record):
    """An input channel. unless: a hyperparameter that makes up for it. content_types: empty where any will do."""

    name: str
    help: str = ""
    required: bool = False
    unless: str = ""
    aliases: tuple[str, ...] = ()
    content_types: tuple[str, ...] = ()
    input_modes: tuple[str, ...] = MODES


class Metric(Record):
    """A number that the program prints. regex: with one group, the number. direction: of `DIRECTIONS`, "" for neither."""

    name: str
    regex: str
    direction: str = ""
    help: str = ""


class Algorithm(Record):
    """A declared program.

    path: the declaration's. program: file name of the script, beside it. needs: module -> what to install for it.
    extra: of trainshed's, that installs all it needs; "" where it has none. hosts: `one` or `many`.
    """

    name: str
    path: str
    program: str
    description: str = ""
    extra: str = ""
    needs: tuple[str, ...] = ()
    hyperparameters: dict[str, Hyperparameter] = {}  # noqa: RUF012 (records are frozen; defaults are never changed)
    channels: dict[str, ChannelDeclaration] = {}  # noqa: RUF012
    metrics: dict[str, Metric] = {}  # noqa: RUF012
    hosts: str = "many"
    distributions: tuple[str, ...] = ()

    @property
    def script(self) -> str:
        """Path of the program."""
        return os.path.join(os.path.dirname(self.path), self.program)


def beside(program: str) -> str:
    """The path of a program's declaration, whether there is one or not."""
    return os.path.splitext(program)[0] + ENDING


def read(path: str) -> Algorithm:
    """Reads a declaration.

    Raises:
        DeclarationError: the file cannot be read, or is not a declaration; with all that is wrong.
    """
    import yaml

    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise ValueError(f"is larger than {_LARGEST >> 20} MiB")
        content = yaml.safe_load(data)
    except OSError as error:
        raise DeclarationError([Problem(path, f"cannot be read: {error.strerror}")]) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DeclarationError([Problem(path, f"is not valid YAML: {' '.join(str(error).split())}")]) from error
    return _Reader(path).algorithm(content)


class _Reader:
    """Collects what is wrong while it reads."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.problems: list[Problem] = []

    def algorithm(self, content: Any) -> Algorithm:
        top = self._fields(
            content, "", ("name", "program", "description", "extra", "needs", "hyperparameters", "channels", "metrics",
                          "hosts", "distributions"),
        )  # fmt: skip
        stem = os.path.basename(self.path)[: -len(ENDING)]
        made = Algorithm(
            name=self._name(top, "name", stem),
            path=self.path,
            program=self._text(top, "program", "", f"{stem}.py"),
            description=self._text(top, "description", ""),
            extra=self._text(top, "extra", ""),
            needs=self._texts(top, "needs", ""),
            hyperparameters=self._each(top, "hyperparameters", self._hyperparameter),
            channels=self._each(top, "channels", self._channel),
            metrics=self._each(top, "metrics", self._metric),
            hosts=self._choice(top, "hosts", "", ("one", "many"), "many"),
            distributions=self._texts(top, "distributions", ""),
        )
        self._names_that_meet(made)
        if self.problems:
            raise DeclarationError(self.problems)
        return made

    # --- parts ---

    def _hyperparameter(self, name: str, content: Any) -> Hyperparameter:
        where = f"hyperparameters.{name}"
        names = ("type", "default", "required", "range", "choices", "or", "help", "tunable", "required_with",
                 "changes_nothing", "refused")  # fmt: skip
        fields = self._fields(content, where, names)
        told = {name: self._text(fields, name, where) for name in ("changes_nothing", "refused")}
        kind = self._choice(fields, "type", where, TYPES, "text" if any(told.values()) else "")
        if not kind and "type" not in fields:
            self._wrong(f"{where}.type", "", f"is missing: one of {', '.join(TYPES)}")
        choices = self._texts(fields, "choices", where)
        if kind == "categorical" and not choices:
            self._wrong(f"{where}.choices", "", "is missing: what may be chosen")
        if fields.get("range") is not None and kind not in ("integer", "number"):
            self._wrong(f"{where}.range", fields["range"], "is for integer and number alone")
        if fields.get("or") is not None and kind not in ("integer", "number"):
            self._wrong(f"{where}.or", fields["or"], "is for integer and number alone")
        made = Hyperparameter(
            name=name,
            type=kind or "text",
            help=self._text(fields, "help", where),
            required=self._flag(fields, "required", where),
            range=self._range(fields, where),
            choices=choices,
            words=self._texts(fields, "or", where),
            tunable=self._tunable(fields, where),
            required_with=self._conditions(fields, where),
            **told,
        )
        return self._with_default(made, fields, where)

    def _with_default(self, made: Hyperparameter, fields: dict[str, Any], where: str) -> Hyperparameter:
        default = fields.get("default")
        if default is None:
            return made
        if made.required:
            self._wrong(f"{where}.default", default, "has no effect: the hyperparameter is required")
        try:
            return made.replace(default=made.read(default))
        except ValueError as error:
            self._wrong(f"{where}.default", default, str(error))
            return made

    def _tunable(self, fields: dict[str, Any], where: str) -> Tunable | None:
        given = fields.get("tunable")
        if given is None or given is False:
            return None
        inside = self._fields({} if given is True else given, f"{where}.tunable", ("range", "scale"))
        scale = self._choice(inside, "scale", f"{where}.tunable", SCALES, "linear")
        if inside.get("range") is None:
            if not fields.get("choices") and fields.get("type") != "boolean":
                self._wrong(f"{where}.tunable.range", "", "is missing: the lowest and the highest value to try")
            return Tunable(scale=scale)
        span = self._range(inside, f"{where}.tunable")
        if not all(map(math.isfinite, span)):
            self._wrong(f"{where}.tunable.range", inside["range"], "has no bound on one side")
        if scale == "log" and span[0] <= 0:
            self._wrong(f"{where}.tunable.range", inside["range"], "must be above 0 for the scale log")
        return Tunable(range=span, scale=scale)

    def _channel(self, name: str, content: Any) -> ChannelDeclaration:
        where = f"channels.{name}"
        names = ("required", "unless", "aliases", "content_types", "input_modes", "help")
        fields = self._fields(content, where, names)
        modes = self._texts(fields, "input_modes", where) or MODES
        for mode in modes:
            if mode not in MODES:
                self._wrong(f"{where}.input_modes", mode, f"is not one of {', '.join(MODES)}", did_you_mean(mode, MODES))
        return ChannelDeclaration(
            name=name,
            help=self._text(fields, "help", where),
            required=self._flag(fields, "required", where),
            unless=self._text(fields, "unless", where),
            aliases=self._texts(fields, "aliases", where),
            content_types=self._texts(fields, "content_types", where),
            input_modes=modes,
        )

    def _metric(self, name: str, content: Any) -> Metric:
        where = f"metrics.{name}"
        fields = self._fields(content, where, ("regex", "direction", "help"))
        regex = self._text(fields, "regex", where, rf"metric {re.escape(name)}=(\S+)")
        try:
            if re.compile(regex).groups != 1:
                self._wrong(f"{where}.regex", regex, "must have one group, the number")
        except (re.error, RecursionError) as error:
            self._wrong(f"{where}.regex", regex, f"is not a regular expression: {error}")
        direction = self._choice(fields, "direction", where, DIRECTIONS, "")
        return Metric(name=name, regex=regex, direction=direction, help=self._text(fields, "help", where))

    def _names_that_meet(self, made: Algorithm) -> None:
        """Names that must be known, and names that two things have."""
        known = made.hyperparameters
        for channel in made.channels.values():
            if channel.unless and channel.unless not in known:
                self._wrong(f"channels.{channel.name}.unless", channel.unless, "is not a hyperparameter here",
                            did_you_mean(channel.unless, known))  # fmt: skip
            for alias in channel.aliases:
                owners = [one.name for one in made.channels.values() if alias in (one.name, *one.aliases)]
                if len(owners) > 1:
                    self._wrong(f"channels.{channel.name}.aliases", alias, f"is a name of {' and '.join(owners)}")
        for one in known.values():
            for other in one.required_with:
                if other not in known:
                    self._wrong(f"hyperparameters.{one.name}.required_with", other, "is not a hyperparameter here",
                                did_you_mean(other, known))  # fmt: skip

    # --- fields ---

    def _wrong(self, field: str, value: Any, message: str, suggestion: str = "") -> None:
        self.problems.append(Problem(self.path, message, field, str(value), suggestion))

    def _fields(self, content: Any, where: str, known: Iterable[str]) -> dict[str, Any]:
        if content is None:
            return {}
        if not isinstance(content, dict):
            self._wrong(where, content, "is not a mapping")
            return {}
        known = tuple(known)
        for name in content:
            if name not in known:
                self._wrong(f"{where}.{name}".lstrip("."), "", "is not known here", did_you_mean(name, known))
        return content

    def _each(self, fields: dict[str, Any], name: str, make: Any) -> dict[str, Any]:
        given = fields.get(name)
        if given is None:
            return {}
        if not isinstance(given, dict):
            self._wrong(name, given, "is not a mapping")
            return {}
        for one in given:
            if not (isinstance(one, str) and _NAME.fullmatch(one)):
                self._wrong(name, one, "is not a valid name")
        return {one: make(one, content) for one, content in given.items() if isinstance(one, str)}

    def _name(self, fields: dict[str, Any], name: str, default: str) -> str:
        text = self._text(fields, name, "", default)
        if not _NAME.fullmatch(text):
            self._wrong(name, text, "is not a valid name")
        return text

    def _text(self, fields: dict[str, Any], name: str, where: str, default: str = "") -> str:
        value = fields.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            self._wrong(f"{where}.{name}".lstrip("."), value, "is not text")
            return default
        return value

    def _texts(self, fields: dict[str, Any], name: str, where: str) -> tuple[str, ...]:
        value = fields.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(one, (str, int, float)) for one in value):
            self._wrong(f"{where}.{name}".lstrip("."), value, "is not a list of words")
            return ()
        if any(isinstance(one, bool) for one in value):
            self._wrong(f"{where}.{name}".lstrip("."), value, "has a word that YAML reads as true or false: quote it")
            return ()
        return tuple(map(str, value))

    def _flag(self, fields: dict[str, Any], name: str, where: str) -> bool:
        value = fields.get(name, False)
        if not isinstance(value, bool):
            self._wrong(f"{where}.{name}", value, "is neither true nor false")
            return False
        return value

    def _choice(self, fields: dict[str, Any], name: str, where: str, choices: tuple[str, ...], default: str) -> str:
        value = self._text(fields, name, where, default)
        if value and value not in choices:
            self._wrong(
                f"{where}.{name}".lstrip("."), value, f"is not one of {', '.join(choices)}", did_you_mean(value, choices)
            )
            return default
        return value

    def _range(self, fields: dict[str, Any], where: str) -> tuple[float, float]:
        value = fields.get("range")
        if value is None:
            return -math.inf, math.inf
        numbers = isinstance(value, list) and len(value) == 2 and all(
            one is None or (isinstance(one, (int, float)) and not isinstance(one, bool)) for one in value
        )  # fmt: skip
        if not numbers:
            self._wrong(f"{where}.range", value, "is not a list of the lowest and the highest value (null: no bound)")
            return -math.inf, math.inf
        least = -math.inf if value[0] is None else float(value[0])
        most = math.inf if value[1] is None else float(value[1])
        if not least <= most:
            self._wrong(f"{where}.range", value, "has its highest value first, or nan")
        return least, most

    def _conditions(self, fields: dict[str, Any], where: str) -> dict[str, tuple[str, ...]]:
        value = fields.get("required_with")
        if value is None:
            return {}
        if not isinstance(value, dict):
            self._wrong(f"{where}.required_with", value, "is not a mapping of a hyperparameter to a list of its values")
            return {}
        return {str(name): self._texts(value, name, f"{where}.required_with") for name in value}
