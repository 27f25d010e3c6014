"""Brings home what the hosts made: `output/model.tar.gz` and `output/output.tar.gz`, after failures, too."""

from __future__ import annotations

import filecmp
import io
import os
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO

from .ending import Verdict
from .run import Run

_LEVEL = 1  # of gzip: model weights hardly shrink, and higher levels take ten times as long
_OUTCOME = ("success", "failure")  # at the archive's root these speak for the job, not for a host


@dataclass(frozen=True)
class Archive:
    """One archive: its path ("" if it could not be written), what went in, and what did not."""

    path: str
    files: int = 0
    size: int = 0  # bytes before compression
    problem: str = ""


def collect(run: Run, verdict: Verdict) -> tuple[Archive, Archive]:
    """(model, output). Never raises for what a host left: what cannot be read is named in the archive's `problem`."""
    model = pack(f"{run.artifacts}/model.tar.gz", [(path, name) for name, path in _files(run.model)])
    output = pack(f"{run.artifacts}/output.tar.gz", merge(run, verdict))
    return model, output


def merge(run: Run, verdict: Verdict) -> list[tuple[str, str]]:
    """(file, name in the archive) of all hosts' output.

    One name on several hosts with the same content is one file; with different contents each goes below its host's
    name. `success` and `failure` at the root are the job's; each host's own failure is kept below its name.
    """
    found: dict[str, list[tuple[str, str]]] = {}
    for host in run.hosts:
        for name, path in _files(host.output):
            found.setdefault(name, []).append((host.name, path))
    members: list[tuple[str, str]] = []
    several = len(run.hosts) > 1
    for name in sorted(found):
        copies = found[name]
        if name in _OUTCOME:
            members += _outcome(name, copies, verdict, several)
        elif len(copies) == 1 or _all_equal([path for _, path in copies]):
            members.append((copies[0][1], name))
        else:
            members += [(path, f"{host}/{name}") for host, path in copies]
    return members


def _outcome(name: str, copies: list[tuple[str, str]], verdict: Verdict, several: bool) -> Iterator[tuple[str, str]]:
    if name == "success":
        if verdict.status == "Completed":
            yield copies[0][1], name
        return
    for host, path in copies:
        if verdict.status == "Failed" and host == verdict.failed_host:
            yield path, name
        if several:
            yield path, f"{host}/{name}"


def _all_equal(paths: list[str]) -> bool:
    try:
        return all(filecmp.cmp(paths[0], path, shallow=False) for path in paths[1:])
    except OSError:
        return False


def _files(folder: str) -> Iterator[tuple[str, str]]:
    """(name below the folder, path) of every file and link, sorted."""
    for root, folders, names in os.walk(folder):
        folders.sort()
        links = [name for name in folders if os.path.islink(f"{root}/{name}")]
        for name in sorted([*names, *links]):
            path = f"{root}/{name}"
            yield os.path.relpath(path, folder), path


def pack(archive: str, members: Iterable[tuple[str, str]]) -> Archive:
    """Writes (file, name) pairs to a .tar.gz, which appears only when it is whole."""
    aside = f"{archive}.part"
    files = size = 0
    left_out: list[str] = []
    try:
        with open(aside, "wb") as file:
            with tarfile.open(fileobj=file, mode="w:gz", compresslevel=_LEVEL) as tar:
                for path, name in members:
                    try:
                        info, content = _opened(tar, path, name)
                    except OSError as error:
                        left_out.append(f"{name}: {error.strerror}")
                        continue
                    if info is not None:
                        with content:
                            tar.addfile(info, content)
                        files, size = files + 1, size + info.size
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, archive)
    except OSError as error:
        _remove(aside)
        return Archive("", files, size, f"{archive} cannot be written: {error.strerror}")
    except BaseException:
        _remove(aside)
        raise
    more = f" and {len(left_out) - 3} more" if len(left_out) > 3 else ""
    return Archive(archive, files, size, f"left out of it: {'; '.join(left_out[:3])}{more}" if left_out else "")


def _opened(tar: tarfile.TarFile, path: str, name: str) -> tuple[tarfile.TarInfo | None, IO[bytes]]:
    """A member's header, without this machine's users, and its content; None for sockets, pipes and devices."""
    info = tar.gettarinfo(path, name)
    empty = io.BytesIO()
    if info is None or not (info.isreg() or info.issym() or info.islnk()):
        return None, empty
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info, open(path, "rb") if info.isreg() else empty


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
