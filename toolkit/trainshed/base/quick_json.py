"""JSON without regular expressions: `json` loads those, and with them a quarter of all that a start of `train` does.

Reads and writes by the same parts of the C library that `json` itself uses, and gives the same values, texts and errors.
Where a Python lacks these parts, or a text cannot be read, `json` takes over.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_SPACE = " \t\n\r"


class _Context:
    """What the scanner asks of `json.JSONDecoder`."""

    strict = True
    object_hook = object_pairs_hook = None

    def __init__(self, parse_float: Callable[[str], Any], parse_constant: Callable[[str], Any]) -> None:
        self.parse_float = parse_float
        self.parse_int = int
        self.parse_constant = parse_constant
        self.memo: dict[str, str] = {}


def spelled(text: str, *, parse_float: Callable[[str], Any] = float, parse_constant: Callable[[str], Any] = float) -> Any:
    """The value that a text spells. Raises ValueError without a word about where it is wrong, RecursionError."""
    try:
        from _json import make_scanner

        scan = make_scanner(_Context(parse_float, parse_constant))  # type: ignore[arg-type]
    except (ImportError, AttributeError):  # a later Python's scanner may ask for more
        import json

        return json.loads(text, parse_float=parse_float, parse_constant=parse_constant)
    start = len(text) - len(text.lstrip(_SPACE))
    try:
        value, end = scan(text, start)
    except (StopIteration, SystemError) as error:  # SystemError: `json` is not loaded to say more
        raise ValueError("is not JSON") from error
    if text[end:].strip(_SPACE):
        raise ValueError("is not JSON")
    return value


def loads(
    text: str | bytes, *, parse_float: Callable[[str], Any] = float, parse_constant: Callable[[str], Any] = float
) -> Any:
    """The value that a text spells, as `json.loads` reads it, with its errors. Raises ValueError, RecursionError."""
    try:
        return spelled(
            text if isinstance(text, str) else text.decode(), parse_float=parse_float, parse_constant=parse_constant
        )
    except ValueError:
        import json

        return json.loads(text, parse_float=parse_float, parse_constant=parse_constant)


def dumps(
    value: Any,
    *,
    default: Callable[[Any], Any] | None = None,
    sort_keys: bool = False,
    separators: tuple[str, str] = (", ", ": "),
) -> str:
    """A value as text, as `json.dumps` writes it. Raises TypeError, ValueError, RecursionError."""
    try:
        from _json import encode_basestring_ascii, make_encoder

        item, key = separators
        encode = make_encoder({}, default or _refuse, encode_basestring_ascii, None, key, item, sort_keys, False, True)  # type: ignore[arg-type]
        return "".join(encode(value, 0))
    except (ImportError, TypeError, ValueError):
        import json

        return json.dumps(value, default=default, sort_keys=sort_keys, separators=separators)


def _refuse(value: Any) -> Any:
    raise TypeError
