"""Variables whose values are secret because the job says so, whatever they are called (`variables.SECRET_NAMES`)."""

from __future__ import annotations

from trainshed.base.secrets import SHORTEST_SECRET, secret_values

from .variables import SECRET_NAMES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


def secret_names(environ: Mapping[str, Any]) -> tuple[str, ...]:
    """The names that the environment lists as secret."""
    return tuple(name for name in str(environ.get(SECRET_NAMES) or "").split(",") if name)


def environment_secrets(environ: Mapping[str, Any]) -> tuple[str, ...]:
    """`secret_values` of an environment, the values of the listed variables among them; longest first."""
    return secret_values(environ, secret_names(environ))


def hidden_bytes(environ: Mapping[str, str]) -> tuple[bytes, ...]:
    """The values of the listed variables alone, longest first: they are masked in every line that is passed on."""
    values = {environ.get(name, "") for name in secret_names(environ)}
    return tuple(
        value.encode("utf-8", "surrogateescape")
        for value in sorted(values, key=len, reverse=True)
        if len(value) >= SHORTEST_SECRET
    )
