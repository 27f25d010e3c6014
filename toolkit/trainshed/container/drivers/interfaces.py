"""Whether a network interface that somebody names is there, and which one to use instead."""

from __future__ import annotations

import os

from trainshed.machine.network import interface_to

DRIVER_VARIABLE = "SM_DISTRIBUTED_DRIVER_DIR"  # SDK v3's environment.py sets it, and nobody else


def list_interfaces() -> list[str]:
    """The interfaces of this container."""
    try:
        return os.listdir("/sys/class/net")
    except OSError:
        return []


def default() -> str:
    """The interface that leads to the other hosts, "" where none does."""
    return interface_to("")


def there(named: str, interfaces: list[str]) -> bool:
    """Whether what an option names can be: a network (10.0.0.0/8), a choice (^lo), or an interface that exists.

    NCCL takes a name as the beginning of one unless `=` stands before it.
    """
    names = [name for name in named.split(",") if name]
    return any("/" in name or name[:1] in ("^", "=") or any(one.startswith(name) for one in interfaces) for name in names)


def note(wrong: str, right: str) -> str:
    """What to tell the user."""
    return f"there is no network interface {wrong!r} in this container; using {right}"
