"""What a forked process would not have as one that was started plainly: why ranks must not be forked from this one.

Lives in an interpreter of the user's (`template`). A fork hands on memory, signal handlers, limits, CPUs and folders; it
does not hand on threads, timers and locks, and it shares what is open. fork(2) lists all of it.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

# By their attributes, what may have noted the number of the process: fsspec's classes and tempfile's names compare it with
# their process's at each use, and each rank renews what measures its steps (`observe/stepping`).
_RENEWED = tuple(map(frozenset, (("_pid", "_cache"), ("_rng_pid",), ("_pid", "_facts"), ("Pid", "World"))))

_HANDLE_FORKS = frozenset(("jemalloc_bg_thd",))  # jemalloc's, of pyarrow: processes that are forked do its work themselves
_LOOKS, _PAUSE = 20, 0.01  # for threads that are ending, and seconds between two


def tool_at_work() -> str:
    """Which profiler, tracer or the like looks at this interpreter; "" for none."""
    if sys.gettrace() is not None or sys.getprofile() is not None:
        return "a tracer or profiler is at work"
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is not None and any(monitoring.get_tool(number) for number in range(6)):
        return "a tool uses sys.monitoring"
    tracing = sys.modules.get("_tracemalloc")
    if os.environ.get("PYTHONTRACEMALLOC") or (tracing is not None and tracing.is_tracing()):
        return "tracemalloc is at work"
    if os.environ.get("PYTHONPROFILEIMPORTTIME") or "importtime" in sys._xoptions:
        return "imports are timed"
    if getattr(sys, "is_stack_trampoline_active", bool)():
        return "perf's support is on"
    if _preloaded():
        return "a library is preloaded"
    return ""


def _preloaded() -> bool:
    """Whether the loader was told to load something into every program, which may act at each start."""
    try:
        listed = os.path.getsize("/etc/ld.so.preload") > 0
    except OSError:
        listed = False
    return listed or bool(os.environ.get("LD_PRELOAD") or os.environ.get("LD_AUDIT"))


def not_inherited(opened: Iterable[str], is_users: Callable[[str], bool], gc: Any) -> str:
    """What imports have left that a fork does not hand on, or shares with others; "" for nothing.

    Args:
        opened: what descriptors may be open, as /proc/self/fd shows them.
        is_users: whether a module's file is code of the user's.
        gc: Python's module of this name, which the script may not have imported.
    """
    if thread := _thread():
        return f"importing left the thread {thread} running"
    if left := sorted(set(open_files()) - set(opened)):
        return f"importing left {left[0]} open"
    if mapped := _shared_memory():
        return f"importing mapped {mapped}, which ranks would share"
    if _timers():
        return "importing set a timer"
    if _programs():
        return "importing started a program"
    if holder := _with_a_pid(gc):
        return f"importing noted the number of the process in {holder}"
    users = [name for name, module in list(sys.modules.items()) if is_users(getattr(module, "__file__", None) or "")]
    return f"an installed package imports {users[0]}, which is not installed" if users else ""


def _thread() -> str:
    """The name of a thread besides this one. A first fork ends those of libraries that end them for it (OpenBLAS)."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    names = _other_threads()
    for _ in range(_LOOKS):  # one that has been joined may be seen a little longer
        if names:
            time.sleep(_PAUSE)
            names = _other_threads()
    return names[0] if names else ""


def _other_threads() -> list[str]:
    """The names of the threads that a fork would take away from somebody."""
    names = []
    for number in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{number}/comm") as file:
                name = file.read().strip()
        except OSError:  # it has ended
            continue
        if int(number) != os.getpid() and name not in _HANDLE_FORKS:
            names.append(name)
    return names


def open_files(inherited: bool = False) -> list[str]:
    """Returns what descriptors lead to: all, or those that a program inherits. Python's own files are not among these."""
    found = []
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            if not inherited or os.get_inheritable(number):
                found.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:  # the one that listed them
            pass
    return found


def _shared_memory() -> str:
    """A file, or a device, in whose memory this process may write."""
    with open("/proc/self/maps") as file:
        for line in file:
            fields = line.split(None, 5)
            if (fields[1][1], fields[1][3]) == ("w", "s") or "/dev/nvidia" in line:
                return fields[5].strip() if len(fields) > 5 else "shared memory"
    return ""


def _timers() -> bool:
    import _signal

    kinds = (_signal.ITIMER_REAL, _signal.ITIMER_VIRTUAL, _signal.ITIMER_PROF)
    if any(_signal.getitimer(kind)[0] for kind in kinds):
        return True
    try:
        with open("/proc/self/timers") as file:
            return bool(file.read())
    except OSError:  # a kernel without them, or without that file
        return False


def _programs() -> bool:
    """Whether a process that this one has started lives, or waits to be reaped."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _with_a_pid(gc: Any) -> str:
    """Something that holds the number of this process, under a name with `pid`; "" for nothing."""
    own = os.getpid()
    for holder in gc.get_objects():
        if any(type(value) is int and value == own for value in gc.get_referents(holder)):
            attributes = holder if type(holder) is dict else _attributes(holder)
            names = [name for name, value in attributes.items() if type(value) is int and value == own]
            found = [name for name in names if isinstance(name, str) and "pid" in name.lower()]
            if found and not any(known <= attributes.keys() for known in _RENEWED):
                place = attributes.get("__name__") or attributes.get("__module__") or type(holder).__name__
                return f"{place}.{found[0]}"
    return ""


def _attributes(holder: object) -> dict[str, object]:
    try:
        return dict(object.__getattribute__(holder, "__dict__"))
    except AttributeError:
        return {}


class ImportedFiles:
    """Where everything that was imported came from, to see whether that has changed since."""

    def __init__(self, more: Iterable[str], is_library: Callable[[str], bool]) -> None:
        """
        Args:
            more: further files.
            is_library: whether packages are installed in a folder.
        """
        files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
        folders = [folder for folder in sys.path if is_library(f"{folder}/")]
        self._seen = {path: _state(path) for path in (*more, *files, *folders) if isinstance(path, str)}

    def changed(self) -> str:
        """The first of them that is not what it was; "" for none."""
        return next((path for path, state in self._seen.items() if _state(path) != state), "")


def _state(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return (found.st_mtime_ns, found.st_size, found.st_ino)
