"""A small process that ends everything `train` has started when `train` itself is killed with SIGKILL.

The kernel ends the ranks then (`spawn`), but not what they have started. The guardian is forked before anything large is
loaded, and waits on a pipe that only `train` holds open. What it ends it knows by a variable that all processes of this
`train` inherit, by the sessions of those processes, and by what is below them in the tree. So a process escapes only if
it has left its session, lost its parents and erased its environment, all at once. Where `train` is process 1 of a container
there is no guardian: the kernel itself ends the container's processes.
"""

from __future__ import annotations

import os
import select
import time

from trainshed.contract.wire.variables import TRAIN_ID
from trainshed.machine.processes import become_subreaper, close_all_but, kill, rename, stat_fields
from trainshed.machine.signals import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_DONE = b"."  # what `train` writes when it ends in good order
_LIMIT = 30.0  # seconds for a sweep
_PAUSE = 0.02  # seconds between two looks: a process that was about to fork has done so
_LOOKS = 3  # looks without a find until the sweep is over


class Guardian:
    """The guardian, as `train` sees it; use in a `with` block.

    environ: the environment for all that `train` does and starts, with this `train`'s id in it.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        outer = environ.get(TRAIN_ID, "")  # of a `train` whose script has started this one: both ids stay
        own = f"{os.getpid()}-{time.time_ns():x}"
        self.environ = {**environ, TRAIN_ID: f"{outer};{own}" if outer else own}
        self._write = self._ended = -1

    def __enter__(self) -> Guardian:
        if os.getpid() == 1:
            return self
        try:
            read, self._write = os.pipe()
        except OSError:  # no descriptors: the job itself will say so
            return self
        try:
            self._ended, ends = os.pipe()  # readable when the guardian is gone
        except OSError:
            os.close(read)
            os.close(self._write)
            self._write = -1
            return self
        become_subreaper(False)  # else the guardian would be a child of ours, like what a script leaves behind
        try:
            between = os.fork()
        except OSError:
            os.close(self._write)
            self._write = -1
        else:
            if between == 0:
                _fork_again(read, ends, self.environ)
            os.waitpid(between, 0)
        os.close(read)
        os.close(ends)
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the guardian, and waits for that."""
        if self._write >= 0:
            os.write(self._write, _DONE)
            os.close(self._write)
            select.select([self._ended], [], [], 1.0)
        if self._ended >= 0:
            os.close(self._ended)


def _fork_again(read: int, ends: int, environ: dict[str, str]) -> None:
    """In the first child: leaves the guardian to whoever adopts orphans. Never returns."""
    try:
        if os.fork() == 0:
            _guard(read, ends, environ)
    finally:
        os._exit(0)


def _guard(read: int, ends: int, environ: dict[str, str]) -> None:
    """In the guardian: waits for the end of `train`."""
    ours = os.getsid(0)
    os.setsid()  # what is sent to the whole group of `train` is not for the guardian
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    close_all_but(read, ends)
    rename("train-guardian")
    if os.read(read, 1) != _DONE:
        own = environ[TRAIN_ID].rpartition(";")[2]
        sweep(own, spared_session=ours)
        from trainshed.machine.scratch import remove_folders

        remove_folders(own, environ)


def sweep(train_id: str, spared_session: int = -1) -> None:
    """Kills all processes of a `train` until none is left.

    Args:
        train_id: what is in the `TRAIN_ID` of all of them.
        spared_session: a session that is not of its making.
    """
    end = time.monotonic() + _LIMIT
    quiet = 0
    while quiet < _LOOKS and time.monotonic() < end:
        found = _belonging(train_id, spared_session)
        kill(found)
        quiet = 0 if found else quiet + 1
        time.sleep(_PAUSE)


def _belonging(train_id: str, spared_session: int) -> set[int]:
    """PIDs of living processes that carry the id, share a session with one that does, or are below any of these."""
    tree: dict[int, tuple[int, int]] = {}  # parent and session of each
    for name in os.listdir("/proc"):
        if name.isdigit() and (place := _place(int(name))):
            tree[int(name)] = place
    marked = {pid for pid, (_, session) in tree.items() if session != spared_session and _carries(pid, train_id)}
    sessions = {tree[pid][1] for pid in marked}
    found = {pid for pid, (_, session) in tree.items() if pid in marked or session in sessions}
    while below := {pid for pid, (parent, _) in tree.items() if parent in found} - found:
        found |= below
    return found - {os.getpid()}


def _place(pid: int) -> tuple[int, int] | None:
    """Parent and session of a process, None for one that has ended."""
    fields = stat_fields(pid)
    return None if fields[:1] in ([], ["Z"], ["X"]) else (int(fields[1]), int(fields[3]))


def _carries(pid: int, train_id: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:  # it has ended, or is another user's
        return False
    name = f"{TRAIN_ID}=".encode()
    return any(variable.startswith(name) and train_id.encode() in variable for variable in variables)
