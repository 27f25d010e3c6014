"""Dictionaries as environment variables and as command lines."""

from __future__ import annotations

import collections
import collections.abc
import json
from collections.abc import Iterator, Mapping
from typing import Any

SplitResultSpec = collections.namedtuple("SplitResultSpec", "included excluded")


def to_env_vars(mapping: Mapping[Any, Any]) -> dict[str, str]:
    """`SM_<KEY>` for each key; text as it is, None as "", bytes as Latin-1, all else as compact JSON with sorted keys."""
    return {f"SM_{str(key).upper()}" if key else "": _text(value) for key, value in mapping.items()}


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.decode("latin1")
    return str(value) if isinstance(value, str) else json.dumps(value, sort_keys=True, separators=(",", ":"))


def to_cmd_args(mapping: Mapping[Any, Any]) -> list[str]:
    """`--key value` for each key, sorted; `-k` for one letter, `k=v,k=v` for dictionaries."""
    arguments = []
    for key in sorted(mapping):
        name, value = _decode(key), mapping[key]
        pairs = ",".join(f"{k}={v}" for k, v in sorted(value.items())) if hasattr(value, "items") else _decode(value)
        arguments += [f"--{name}" if len(name) > 1 else f"-{name}" if name else "", pairs]
    return arguments


def _decode(value: Any) -> str:
    if value is None:
        return ""
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def split_by_criteria(dictionary: Mapping[Any, Any], keys: Any = None, prefix: str | None = None) -> SplitResultSpec:
    """Two dictionaries: the items whose key is in `keys` or begins with `prefix`, and the others."""
    wanted = set(keys or ())
    included = {k: v for k, v in dictionary.items() if k in wanted or (prefix and k.startswith(prefix))}
    return SplitResultSpec(included, {k: v for k, v in dictionary.items() if k not in included})


class MappingMixin(collections.abc.Mapping):  # type: ignore[type-arg]
    """An object whose properties can be read like a dictionary's items."""

    def properties(self) -> list[str]:
        """Names of all properties."""
        return [name for name in dir(type(self)) if self._is_property(name)]

    def _is_property(self, name: str) -> bool:
        return isinstance(getattr(type(self), name, None), property)

    def __getitem__(self, key: str) -> Any:
        if not self._is_property(key):
            raise KeyError(f"Trying to access non property {key}")
        return getattr(self, key)

    def __len__(self) -> int:
        return len(self.properties())

    def __iter__(self) -> Iterator[str]:
        return iter(self.properties())

    def __str__(self) -> str:
        return str(dict(self))
