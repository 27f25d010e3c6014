"""Variables that the container client itself reads: their values cannot be handed over through its environment."""

from __future__ import annotations

_PREFIXES = ("DOCKER_", "BUILDX_", "CONTAINER_", "PODMAN_", "XDG_", "LD_", "PYTHON", "SSH_", "GO", "CGO_")
_NAMES = frozenset({"PATH", "HOME", "USER", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "TMPDIR", "TERM"})


def is_read_by_client(name: str) -> bool:
    """Returns whether a variable of this name would change what the client does."""
    return name in _NAMES or name.upper() in _NAMES or name.startswith(_PREFIXES)
