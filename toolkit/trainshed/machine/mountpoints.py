"""Mounts of this machine, and how file systems in user space (FUSE) are taken away."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from trainshed.base.record import Record

UNMOUNT = ("fusermount3", "fusermount")
FUSE = "/dev/fuse"
_LIMIT = 10.0  # seconds for an unmount, which is lazy and waits for nobody
_OCTAL = re.compile(r"\\([0-7]{3})")


class MountPoint(Record):
    """One mount: where it is, the kind of file system, and what it calls its source."""

    point: str
    kind: str
    source: str


def mount_points(text: str | None = None) -> list[MountPoint]:
    """Lists the mounts that this process sees, in the order of mounting; [] where the kernel does not say.

    Args:
        text: of /proc/self/mountinfo (proc_pid_mountinfo(5)), read if None.
    """
    if text is None:
        try:
            with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
                text = file.read()
        except OSError:
            return []
    found = []
    for line in text.splitlines():
        fields, _, rest = line.partition(" - ")
        parts, more = fields.split(" "), rest.split(" ")
        if len(parts) > 4 and len(more) > 1:
            found.append(MountPoint(_plain(parts[4]), more[0], _plain(more[1])))
    return found


def is_mounted(point: str) -> bool:
    """Returns whether a file system is mounted exactly there. Asks the kernel's table: a dead one would not answer."""
    return any(one.point == point for one in mount_points())


def unmount_command() -> str:
    """The program that unmounts for whoever has mounted, "" where it is not installed."""
    return next((found for name in UNMOUNT if (found := shutil.which(name))), "")


def unmount(point: str) -> bool:
    """Takes a FUSE file system away, also a dead one and one in use: whoever has files of it open keeps them."""
    for command in ([unmount_command(), "-u", "-z"], ["umount", "-l"]):
        if not command[0]:
            continue
        try:
            subprocess.run(
                [*command, point],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_LIMIT,
            )
        except (OSError, subprocess.SubprocessError):
            continue
        if not is_mounted(point):
            return True
    return not is_mounted(point)


def obstacle(*, others: bool = False) -> str:
    """Why this process cannot mount a FUSE file system, "" if it can.

    Args:
        others: whether other users (a container engine, for example) must see it.
    """
    if not os.path.exists(FUSE):
        return f"there is no {FUSE}"
    if not os.access(FUSE, os.R_OK | os.W_OK):
        return f"{FUSE} cannot be opened by this user"
    if not unmount_command():
        return f"{UNMOUNT[0]} is not installed (Debian's package fuse3)"
    if others and os.geteuid() != 0 and not _others_allowed():
        return "/etc/fuse.conf does not have the line user_allow_other, and other users must see it"
    return ""


def _others_allowed() -> bool:
    try:
        with open("/etc/fuse.conf", encoding="utf-8", errors="replace") as file:
            return any(line.strip() == "user_allow_other" for line in file)
    except OSError:
        return False


def _plain(text: str) -> str:
    """Spaces, tabs, line ends and backslashes are written as octal numbers there."""
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), text)
