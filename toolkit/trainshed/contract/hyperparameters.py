"""Hyperparameters: how they are written, what they mean, and how they reach the script.

The platform hands over a flat JSON object of strings. Each string is JSON where it parses as JSON, else itself
(SDK v2 encodes values, raw API callers do not). Numbers keep their spelling: `1.10` stays `1.10` on the
command line, `1e5` stays `1e5`.
"""

from __future__ import annotations

from trainshed.base import quick_json
from trainshed.base.errors import Problem, shorten
from trainshed.base.reader import ascii_safe, nested_too_deeply, printable
from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

RESERVED_PREFIXES = ("sagemaker_", "trainshed_")
RESERVED_NAMES = frozenset({"_tuning_objective_metric", "default_user_module_name"})
ARGV_STYLES = ("sagemaker", "json", "flags")


class SpelledFloat(float):
    """A float that remembers its text: `SpelledFloat("1.10")` prints as `1.10`, computes as 1.1."""

    text: str

    def __new__(cls, text: str) -> SpelledFloat:
        value = super().__new__(cls, text)
        value.text = text
        return value

    def __repr__(self) -> str:
        return self.text

    __str__ = __repr__


class Hyperparameters(Record):
    """Decoded hyperparameters, split into the script's and the reserved ones, in the file's order.

    user: what the script gets, by name. Values are JSON values; floats are `SpelledFloat`.
    reserved: `sagemaker_*`, `trainshed_*` and the tuner's own, which never reach the script.
    """

    user: dict[str, Any] = {}  # noqa: RUF012 (records are frozen; defaults are never changed)
    reserved: dict[str, Any] = {}  # noqa: RUF012

    def get(self, name: str, default: Any = None) -> Any:
        """A reserved or user hyperparameter by name."""
        return self.reserved.get(name, self.user.get(name, default))


def is_reserved(name: str) -> bool:
    """Returns whether a hyperparameter is for the platform or for trainshed, and not for the script."""
    return name.startswith(RESERVED_PREFIXES) or name in RESERVED_NAMES


def decode(raw: Mapping[str, Any]) -> Hyperparameters:
    """Decodes `raw` (name -> string, or any JSON value in hand-written files) and splits it."""
    user: dict[str, Any] = {}
    reserved: dict[str, Any] = {}
    for name, value in raw.items():
        (reserved if is_reserved(name) else user)[name] = decode_value(value)
    return Hyperparameters(user=user, reserved=reserved)


def decode_value(value: Any) -> Any:
    """Returns the JSON value that a string spells, else the string; any other value unchanged.

    Integers of over 4,300 digits and lists of over 100 levels stay strings.
    """
    if not isinstance(value, str):
        return value
    try:
        decoded = quick_json.spelled(value, parse_float=SpelledFloat, parse_constant=SpelledFloat)
    except (ValueError, RecursionError):  # ValueError: no JSON, or an integer of over 4,300 digits
        return value
    return value if nested_too_deeply(value, decoded) else decoded


def truthy(value: Any) -> bool:
    """Returns whether a flag is on: true, "true", "True", 1, "1", "yes", "on"."""
    return value is True or str(value).strip().lower() in ("true", "1", "yes", "on")


def check(raw: Mapping[str, Any], file: str) -> list[Problem]:
    """Returns the problems of names and values that a process cannot be given: NUL characters, unpaired surrogates."""
    problems = []
    for name, value in raw.items():
        decoded = decode_value(value)
        items = decoded if isinstance(decoded, list) else ()
        passed = "\n".join((name, _python_text(decoded), to_environment_text(decoded), *map(to_json_text, items)))
        place = ascii_safe(shorten(name, 40))
        if "\0" in passed:
            message = "contains a NUL character, which cannot be passed on a command line"
            problems.append(Problem(file, message, place))
        elif not printable(passed):
            message = "contains an unpaired surrogate and cannot be encoded as UTF-8"
            problems.append(Problem(file, message, place))
    return problems


def to_argv(user: Mapping[str, Any], style: str = "sagemaker") -> list[str]:
    """The script's arguments.

    sagemaker: as `sagemaker-training` 5.1.4 builds them: names sorted, `-k` for one letter, exactly one value each,
        `True`/`False`, "" for None, Python spelling of lists, `k=v,k=v` for objects; numbers keep their spelling.
    json: as SDK v3's drivers: in the file's order, always `--name`, values as JSON (`true`, `null`, `[1,2]`), strings bare.
    flags: as people write command lines: sorted, `--name` for true, nothing for false and null, one value each
        for the items of a list, JSON for objects.
    """
    if style == "json":
        return [token for name, value in user.items() for token in (f"--{name}", to_json_text(value))]
    arguments: list[str] = []
    for name in sorted(user):
        value = user[name]
        option = f"--{name}" if len(name) > 1 else f"-{name}" if name else ""
        if style == "flags":
            if value is True:
                arguments.append(option)
            elif value is False or value is None:
                continue
            elif isinstance(value, list):
                arguments += [option, *(to_json_text(item) for item in value)]
            else:
                arguments += [option, to_json_text(value)]
        else:
            arguments += [option, _python_text(value)]
    return arguments


def _python_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        return ",".join(f"{key}={item}" for key, item in sorted(value.items()))
    return str(value)


def to_json_text(value: Any) -> str:
    """Returns strings unchanged, numbers in their spelling, everything else as JSON; None is `null`."""
    if isinstance(value, (str, SpelledFloat)):
        return str(value)
    return quick_json.dumps(value)


def to_environment_text(value: Any) -> str:
    """Returns a value as text for an environment variable.

    "" for None, strings and numbers as written, else compact JSON with sorted keys.
    """
    if value is None:
        return ""
    if isinstance(value, (str, SpelledFloat)):
        return str(value)
    return quick_json.dumps(value, sort_keys=True, separators=(",", ":"))


def variable_names(prefix: str, name: str) -> tuple[str, ...]:
    """`SM_HP_` + `learning-rate` gives both `SM_HP_LEARNING-RATE` (as the peers name it) and `SM_HP_LEARNING_RATE`.

    Shells drop variables whose names they cannot parse, hence the second form. A name with `=` has only the second.
    """
    exact = prefix + name.upper()
    letters = (letter if letter == "_" or (letter.isalnum() and letter.isascii()) else "_" for letter in name)
    readable = prefix + "".join(letters).upper()
    if exact == readable or "=" in exact or "\0" in exact:
        return (readable,)
    return (exact, readable)
