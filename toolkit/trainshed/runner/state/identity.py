"""Which process and which folder a run's file speaks of: files can be copied, sent and forged.

PID, start time and boot tell a runner from later processes. Device and inode tell a run's folder from copies of it.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections.abc import Mapping
from typing import Any

from trainshed.base.process_age import boot_id


def mine() -> dict[str, Any]:
    """The identity of this process."""
    return of(os.getpid())


def of(pid: int) -> dict[str, Any]:
    """The identity of a process of this machine."""
    return {"Pid": pid, "Started": _start_time(pid), "Boot": boot_id(), "Machine": socket.gethostname()}


def of_folder(path: str) -> dict[str, str]:
    """The identity of a folder, to be kept in files in it: a copy is elsewhere, and has another inode."""
    return {"Folder": path, "FolderId": _inode(path)}


def is_folder(identity: Mapping[str, Any], path: str) -> bool:
    """Returns whether an identity is that of the folder at `path`.

    A folder that was moved keeps its inode. Where inodes do not last (some network file systems, another machine), it is
    known by its path.
    """
    kept, known = identity.get("FolderId"), identity.get("Folder")
    if isinstance(kept, str) and kept and kept == _inode(path):
        return True
    return isinstance(known, str) and os.path.isabs(known) and "\0" not in known and _same_path(known, path)


def is_inode(identity: Mapping[str, Any], path: str) -> bool:
    """As `is_folder`, and nobody can have guessed it: the path alone does not do."""
    return bool(identity.get("FolderId")) and identity["FolderId"] == _inode(path)


def send(identity: dict[str, Any], number: int) -> None:
    """Sends a signal to the process, and never to a later one with its PID.

    Raises:
        ProcessLookupError: it is gone.
        PermissionError: it is another user's.
    """
    pid = identity["Pid"]
    try:
        fd = os.pidfd_open(pid)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM, errno.EINVAL):
            raise
        if is_alive(identity):
            os.kill(pid, number)
        return
    try:
        if is_alive(identity):  # looked at once more: now that the descriptor holds it, the PID is not given away
            signal.pidfd_send_signal(fd, number)
    finally:
        os.close(fd)


def owner_of(identity: dict[str, Any]) -> int:
    """The user that the process runs as; -1 where it is gone."""
    try:
        return os.stat(f"/proc/{identity['Pid']}").st_uid
    except OSError:
        return -1


def is_alive(identity: Any) -> bool | None:
    """Returns whether that process runs; None where only another machine knows."""
    if not isinstance(identity, dict) or type(identity.get("Pid")) is not int or identity["Pid"] <= 1:
        return False
    if identity.get("Boot") != boot_id():
        return None if identity.get("Machine") != socket.gethostname() else False
    started = _start_time(identity["Pid"])
    return started != 0 and started == identity.get("Started")


def _inode(path: str) -> str:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return ""
    return f"{found.st_dev}:{found.st_ino}"


def _same_path(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _start_time(pid: int) -> int:
    """Clock ticks from boot to the process's start, proc(5); 0 where there is none, or only its remains.

    Not psutil's `create_time`: that is a time of day, which moves when the machine's clock is set, while this value
    is compared with one that another process wrote earlier.
    """
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return 0 if fields[0] in ("Z", "X") else int(fields[19])
    except (OSError, ValueError, IndexError):
        return 0
