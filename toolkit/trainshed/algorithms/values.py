"""One declared hyperparameter, and how its value is read from what a job or a command line gives."""

from __future__ import annotations

import json
import math

from trainshed.base.errors import did_you_mean, some
from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TYPES = ("integer", "number", "boolean", "categorical", "text", "list", "folder")
SCALES = ("linear", "log", "reverse_log")
TRUE = ("true", "1", "yes", "on")
FALSE = ("false", "0", "no", "off")
_MOST_CHOICES = 12  # that a message lists


class Tunable(Record):
    """The values that a tuner may try. range: lowest and highest, or None for the choices. scale: of `SCALES`."""

    range: tuple[float, float] | None = None
    scale: str = "linear"


class Hyperparameter(Record):
    """One hyperparameter.

    type: of `TYPES`. range: lowest and highest value, infinite where there is no bound; of integer and number.
    words: that may stand for a number, such as `auto`.
    default: what the program takes if it is not given; None where that depends, which `help` then says.
    required_with: other hyperparameters and values of theirs with which this one must be given.
    changes_nothing: why a value other than the default is taken in vain; "" where it counts.
    refused: why values are not served: those that are not among `choices`, or all but the default where it has none.
    """

    name: str
    type: str
    help: str = ""
    default: Any = None
    required: bool = False
    range: tuple[float, float] = (-math.inf, math.inf)
    choices: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    tunable: Tunable | None = None
    required_with: dict[str, tuple[str, ...]] = {}  # noqa: RUF012 (records are frozen; defaults are never changed)
    changes_nothing: str = ""
    refused: str = ""

    def read(self, value: Any) -> Any:
        """The value as the program wants it.

        Args:
            value: text, as on a command line, or a JSON value, as in a job.

        Returns:
            int, float, bool, str, or a tuple of strings for a list; of `words` the word.

        Raises:
            ValueError: it is none; the message says what it must be, beginning with the value.
        """
        text = _text(value)
        if text in self.words:
            return text
        if self.type in ("integer", "number"):
            number = self._number(text)
            self._chosen(f"{number:g}" if self.choices else text)
            return number
        if self.type == "boolean":
            return _boolean(text)
        if self.type == "list":
            parts = value if isinstance(value, (list, tuple)) else text.split(",")
            return tuple(part.strip() for part in map(_text, parts) if part.strip())
        if text.lower() in self.choices and text in ("True", "False"):  # as a command line has a value of JSON
            text = text.lower()
        self._chosen(text)
        return text

    def _chosen(self, text: str) -> None:
        if self.choices and text not in self.choices:
            more = self.refused or did_you_mean(text, self.choices)
            listed = some(self.choices, _MOST_CHOICES)
            raise ValueError(f"{text!r} is not one of {listed}" + (f"; {more}" if more else ""))

    def _number(self, text: str) -> float:
        least, most = self.range
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        whole = self.type == "integer"
        # `1000.0` is a whole number, for that is how 1e3 comes out of a JSON file.
        if not (math.isfinite(value) and least <= value <= most and (value.is_integer() or not whole)):
            raise ValueError(f"{text!r} is not {'a ' * (not self.choices)}{self.kind()}")
        return int(value) if whole else value

    def said_of(self, value: Any) -> str:
        """What is to be said of a value that was read and changes nothing, or is refused; "" for any other."""
        why = self.changes_nothing if self.choices else self.refused or self.changes_nothing
        if not why or value is None or value == self.default:
            return ""
        return f"{self.name} {'is not served' if why == self.refused else 'changes nothing'}: {why}"

    def kind(self) -> str:
        """The kind of a value, in words: `whole number from 1 to 8`."""
        if self.type not in ("integer", "number") or self.choices:
            if self.choices:
                return "one of " + ", ".join(self.choices)
            return {"list": "list, separated by commas", "boolean": "true or false"}.get(self.type, self.type)
        least, most = self.range
        words = "whole number" if self.type == "integer" else "number"
        if math.isfinite(least):
            closed = math.isfinite(most) or self.type == "integer"
            words += f" from {_short(least)}" if closed else f" of {_short(least)} or more"
        if math.isfinite(most):
            words += f" to {_short(most)}"
        return " or ".join([words, *self.words])


def _short(number: float) -> str:
    return f"{number:.0f}" if number.is_integer() else f"{number:g}"


def _text(value: Any) -> str:
    """A JSON value as a command line has it."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, float) else json.dumps(value)


def _boolean(text: str) -> bool:
    """As JSON, Python and people write it (argparse's `type=bool` takes "False" for true)."""
    if text.lower() in TRUE:
        return True
    if text.lower() in FALSE:
        return False
    raise ValueError(f"{text!r} is neither true nor false")
