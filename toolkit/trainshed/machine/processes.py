"""The process tree below this process, and what signals a process handles.

By hand, without psutil: every start of `train` needs this, and psutil alone takes half as long to load as all of `train`.
"""

from __future__ import annotations

import os

from .signals import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>
_MOST_PIDS = 1 << 22  # PID_MAX_LIMIT of <linux/threads.h>


def _make_prctl() -> Callable[[int, int, int, int, int], object]:
    """The C library's prctl(2). `ctypes` alone would be a thirtieth of a start of `train`; its core does as well."""
    try:
        import _ctypes

        address = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
        return lambda *arguments: _ctypes.call_function(address, arguments)
    except (ImportError, AttributeError):
        import ctypes

        return ctypes.CDLL(None).prctl  # type: ignore[no-any-return]


_prctl = _make_prctl()


def become_subreaper(on: bool = True) -> None:
    """Makes orphans among our descendants our children, instead of PID 1's, so that we can end and reap them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0)


def die_with_parent(signum: int) -> None:
    """Has the kernel send `signum` to the calling process when its parent dies, however it dies."""
    _prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0)


def close_all_but(*kept: int) -> None:
    """In a forked process: closes what it shares with its parent, and has its standard streams lead nowhere."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    try:
        opened = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        opened = list(range(3, 256))
    for fd in opened:
        if fd > 2 and fd not in kept:
            try:
                os.close(fd)
            except OSError:
                pass


def rename(name: str) -> None:
    """Of this process, for `ps` and `top`, which else show a forked one as a second `train`."""
    try:
        with open("/proc/self/comm", "w") as file:
            file.write(name)
    except OSError:
        pass


def descendants(root: int | None = None) -> list[int]:
    """PIDs of all processes below `root` (this one) that are not zombies, parents before children."""
    if not _sees_us():
        return _children_by_asking() if root is None else []
    top = os.getpid() if root is None else root
    found: list[int] = []
    direct: list[int] = []
    while True:
        known, direct = set(direct), children(top)
        queue = [pid for pid in direct if not _is_zombie(pid)]
        while queue:
            found.append(queue.pop(0))
            queue += [pid for pid in children(found[-1]) if not _is_zombie(pid)]
        # A child that ended between two rounds has left its children to the subreaper, so another round finds them.
        if found or set(direct) <= known:
            return found


def kill(pids: Iterable[int]) -> None:
    """Sends SIGKILL to these processes and to their process groups.

    A group is killed in one step that no fork can outrun; a fork bomb would outrun signals to one process after another.
    Our own group is spared, since others share it with us.
    """
    ours = os.getpgid(0)
    groups = set()
    for pid in pids:
        try:
            group = os.getpgid(pid)
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
        groups.add(group)
    for group in groups - {ours}:
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


def _sees_us() -> bool:
    """Whether /proc shows our processes: it may not be mounted, or show those of another PID namespace."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def _children_by_asking() -> list[int]:
    """Our own living children, without /proc: the kernel tells of every number whether it is one.

    Those of a subreaper are all that count: what they leave behind when they are killed become its children, too.
    """
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []
    newest = _newest_pid()
    ours = os.getpid()
    # Numbers are given in turn, so children come after us. Unless they have begun again from the start since.
    candidates = range(ours + 1, newest) if newest > ours else range(2, _MOST_PIDS)
    return [pid for pid in candidates if _is_living_child(pid)]


def _newest_pid() -> int:
    """The number of a process that starts now; 0 if none can be started."""
    try:
        pid = os.fork()
    except OSError:
        return 0
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return pid


def _is_living_child(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False


def children(pid: int) -> list[int]:
    """PIDs of what a process has started and not reaped, zombies included; [] where it has ended."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                found += map(int, file.read().split())
    except OSError:
        if not os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children"):  # a kernel without that file
            return _children_by_scan(pid)
    return found


def _children_by_scan(parent: int) -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and _stat_field(int(name), 1) == str(parent)]


def _is_zombie(pid: int) -> bool:
    return _stat_field(pid, 0) in ("Z", "X", "")


def _stat_field(pid: int, index: int) -> str:
    """Field `index` after the command name in /proc/PID/stat (0 is the state, 1 the parent); "" if it has ended."""
    fields = stat_fields(pid)
    return fields[index] if index < len(fields) else ""


def stat_fields(pid: int) -> list[str]:
    """Returns the fields after the command name in /proc/PID/stat (proc(5)): state, parent, group ...; [] at its end."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode().split()
    except OSError:
        return []


def catches(pid: int, signum: int) -> bool:
    """Returns whether a process has a handler for a signal."""
    return _is_in_set(pid, "SigCgt:", signum)


def blocks(pid: int, signum: int) -> bool:
    """Returns whether the main thread of a process has a signal blocked now."""
    return _is_in_set(pid, "SigBlk:", signum)


def _is_in_set(pid: int, name: str, signum: int) -> bool:
    """Whether one of the process's sets of signals (proc(5), status) has a signal."""
    if not _sees_us():
        return False
    try:
        with open(f"/proc/{pid}/status") as file:
            members = next(line for line in file if line.startswith(name))
        return bool(int(members.split()[1], 16) >> (signum - 1) & 1)
    except (OSError, StopIteration):
        return False
