"""Checks that a named network interface exists, and chooses another if it does not."""

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
    """The interface that leads to the other hosts; "" if there is none."""
    return interface_to("")


def is_valid(named: str, interfaces: list[str]) -> bool:
    """Returns whether an option's value can work: a network (10.0.0.0/8), an exclusion (^lo), or an interface that exists.

    NCCL takes a name as a prefix unless `=` precedes it.
    """
    names = [name for name in named.split(",") if name]
    return any(
        "/" in name or name[:1] in ("^", "=") or any(interface.startswith(name) for interface in interfaces)
        for name in names
    )


def note(wrong: str, right: str) -> str:
    """The message to the user."""
    return f"network interface {wrong!r} does not exist in this container; using {right}"
