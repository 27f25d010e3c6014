"""Frozen records: what `dataclass(frozen=True)` gives, without its start-up cost.

`train` starts once for every job on every node, and its whole start has a budget of a few hundredths of a CPU second.
Importing `dataclasses` and generating thirty classes with it would cost as much as all the rest together
(`benchmarks/launcher.py` measures the sum), so the two wings that run in `train` use this instead.
Type checkers see a frozen dataclass.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, TypeVar

    from typing_extensions import dataclass_transform

    Self = TypeVar("Self", bound="Record")
else:

    def dataclass_transform(**_: object):
        return lambda cls: cls


@dataclass_transform(frozen_default=True)
class Record:
    """Base of immutable values whose fields are the class's annotations, in order of definition.

    A class attribute is the field's default. Records are equal when class and fields are equal.
    """

    _fields: tuple[str, ...] = ()
    _required: frozenset[str] = frozenset()

    def __init_subclass__(cls) -> None:
        own = tuple(name for name in cls.__annotations__ if not name.startswith("_"))
        cls._fields = tuple(dict.fromkeys(cls._fields + own))
        cls._required = frozenset(name for name in cls._fields if not hasattr(cls, name))

    def __init__(self, *args: Any, **fields: Any) -> None:
        if len(args) == len(self._fields) and not fields:  # nothing to look up: what makes many of them gives all
            self.__dict__.update(zip(self._fields, args, strict=True))
            return
        if args:
            if len(args) > len(self._fields):
                raise TypeError(f"{type(self).__name__} takes {len(self._fields)} fields, got {len(args)}")
            positional = dict(zip(self._fields, args, strict=False))
            if twice := positional.keys() & fields.keys():
                raise TypeError(f"{type(self).__name__}: {sorted(twice)} given twice")
            fields = {**positional, **fields}
        missing = self._required - fields.keys()
        unknown = fields.keys() - set(self._fields)
        if missing or unknown:
            raise TypeError(f"{type(self).__name__}: missing {sorted(missing)}, unknown {sorted(unknown)}")
        self.__dict__.update(fields)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: cannot set {name!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: cannot delete {name!r}")

    def __iter_fields(self) -> Iterator[tuple[str, Any]]:
        return ((name, getattr(self, name)) for name in self._fields)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.as_dict() == other.as_dict()

    def __hash__(self) -> int:
        return hash((type(self), *(_hash(value) for value in self.as_dict().values())))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.__iter_fields())})"

    def as_dict(self) -> dict[str, Any]:
        """The fields, by name, in order; values as they are."""
        return dict(self.__iter_fields())

    def plain(self) -> dict[str, Any]:
        """The fields as JSON-ready values: records become objects, tuples become lists."""
        return {name: _plain(value) for name, value in self.__iter_fields()}

    def replace(self: Self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return type(self)(**{**self.as_dict(), **changes})


def _hash(value: Any) -> int:
    """Equal values have equal hashes; dicts and what holds them all have the same one."""
    try:
        return hash(value)
    except TypeError:
        return 0


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.plain()
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return str(value)
