"""Programs around the script that die of a stop signal before it: shells do, `conda run` does. The script's own end, perhaps
after it has saved, is the job's then.
"""

from __future__ import annotations

import os

from trainshed.machine.processes import blocks, catches, children

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# By what they are named in /proc; those that become the script (env, nice, exec in a shell) are never seen.
_NAMES = frozenset(
    (
        *("sh", "ash", "bash", "busybox", "dash", "fish", "ksh", "mksh", "zsh", "conda", "mamba", "micromamba", "pixi"),
        *("timeout", "time", "xvfb-run", "sudo", "su", "gosu", "runuser", "flock", "script", "setsid", "uv", "tini"),
    )
)


def wrapped(pid: int) -> dict[int, list[int]]:
    """Finds what each wrapper has started, from this process on: wrapper -> its children; {} where this is not one."""
    found: dict[int, list[int]] = {}
    queue = [pid]
    while queue:
        wrapper = queue.pop()
        if wrapper not in found and _is_wrapper(wrapper):
            found[wrapper] = children(wrapper)
            queue += found[wrapper]
    return found


def outlives(pid: int, number: int) -> bool:
    """Returns whether a process, or what it wraps, may act at a stop signal: only that can be a script that saves."""
    return _is_wrapper(pid) or catches(pid, number) or blocks(pid, number)


def group_of(pid: int) -> int:
    """A process's group, 0 where it has ended."""
    try:
        return os.getpgid(pid)
    except OSError:
        return 0


def scripts_end(started: Mapping[int, list[int]], ends: Mapping[int, int], pid: int, number: int) -> int | None:
    """The exit status of the script within a wrapper that died of the stop signal `number`; None where it is not known.

    Not where several processes ended by themselves, of which one may be a helper, nor where another signal killed one.

    Args:
        started: see `wrapped`. ends: how processes ended that the wrappers left, -n for signal n.
    """
    found: list[int] = []
    for child in started.get(pid, []):
        code = ends.get(child)
        if code in (-number, None):  # None: the wrapper around it saw its end, and died just after that
            code = scripts_end(started, ends, child, number)
        elif code is not None and code < 0:
            return None
        found += [code] if code is not None else []
    return found[0] if len(found) == 1 else None


def _is_wrapper(pid: int) -> bool:
    try:
        program = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
        with open(f"/proc/{pid}/comm") as file:  # of a Python program like conda
            return program in _NAMES or file.read().strip() in _NAMES
    except (OSError, ValueError):
        return False
