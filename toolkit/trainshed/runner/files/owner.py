"""Whom a run belongs to: never root, unless root itself asked for it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from trainshed.base.numerals import whole

from .run import Run
from .user_dirs import RUNS


def caller(environ: Mapping[str, str]) -> tuple[int, int]:
    """(uid, gid) of the person: the caller, or who became root with sudo."""
    user, group = whole(environ.get("SUDO_UID", "")), whole(environ.get("SUDO_GID", ""))
    if os.getuid() == 0 and user is not None and group is not None and max(user, group) < 1 << 32:
        return user, group
    return os.getuid(), os.getgid()


def hand_over(run: Run, environ: Mapping[str, str]) -> None:
    """Under sudo: gives the files that root made for the run to the user who called sudo. Otherwise does nothing."""
    uid, gid = caller(environ)
    if os.getuid() != 0 or uid == 0:
        return
    give_all(run.folder, environ)
    parent = os.path.dirname(run.folder)
    if os.path.basename(parent) == RUNS:
        _give(parent, uid, gid)
    try:
        if not os.listdir(run.checkpoints):  # made for this run; what is older has its owner
            _give(run.checkpoints, uid, gid)
    except OSError:
        pass


def give_all(folder: str, environ: Mapping[str, str]) -> None:
    """Under sudo: gives a folder, as far as it is root's, to the user who called sudo. Otherwise does nothing."""
    uid, gid = caller(environ)
    if os.getuid() != 0 or uid == 0:
        return
    for root, folders, names in os.walk(folder):
        for name in (".", *folders, *names):
            _give(os.path.join(root, name), uid, gid)


def _give(path: str, uid: int, gid: int) -> None:
    """Only what is root's, and of links the link itself."""
    try:
        if os.lstat(path).st_uid == 0:
            os.chown(path, uid, gid, follow_symlinks=False)
    except OSError:
        pass
