"""Variables whose values are secret because the job says so, whatever they are called (`variables.SECRET_NAMES`)."""

from __future__ import annotations

from trainshed.base.secrets import secret_values, to_bytes

from .variables import SECRET_NAMES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


def secret_names(environ: Mapping[str, Any]) -> tuple[str, ...]:
    """The names that the environment lists as secret."""
    return tuple(name for name in str(environ.get(SECRET_NAMES) or "").split(",") if name)


def environment_secrets(environ: Mapping[str, Any]) -> tuple[str, ...]:
    """`secret_values` of an environment, the values of the listed variables among them; longest first.

    The list itself holds names, which are no secrets, although it is called as if it did.
    """
    values = {name: value for name, value in environ.items() if name != SECRET_NAMES}
    return secret_values(values, secret_names(environ))


def secret_bytes(secrets: tuple[str, ...]) -> tuple[bytes, ...]:
    """The same as bytes, for `mask_bytes`; longest first."""
    return tuple(sorted(map(to_bytes, secrets), key=len, reverse=True))
