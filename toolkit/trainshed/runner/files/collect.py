"""Brings home what the hosts made: `output/model.tar.gz` and `output/output.tar.gz`, after failures, too.

An archive is there only when it has been read back and compared (`machine/packing.py`). What could not be packed stays in
the run's folder, unpacked, and a job whose results are not all in its archives has not completed (`settled`).
"""

from __future__ import annotations

import filecmp
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from trainshed.base.errors import EXIT_USER, some
from trainshed.base.units import size
from trainshed.machine.packing import PackedEntry, changes, listed, pack

from .ending import RunEnd
from .provenance import note_model
from .run import Run

_OUTCOME = ("success", "failure")  # at the archive's root these speak for the job, not for a host
_MOST_NAMED = 3
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Archive:
    """One archive: its path ("" if it could not be written), what went in, and what did not.

    files: those that the hosts left. size: their bytes before compression.
    problem: why results are missing from it; then the job has not completed.
    sha256: of the archive, hexadecimal, "" without one.
    notes: what else the user should know: things that are no results, files that hosts disagree about.
    kept: the folder where the files are, unpacked.
    """

    path: str
    files: int = 0
    size: int = 0
    problem: str = ""
    sha256: str = ""
    notes: tuple[str, ...] = ()
    kept: str = ""


def collect(run: Run, verdict: RunEnd, progress: Progress = lambda _: None) -> tuple[Archive, Archive]:
    """(model, output). Never raises for what a host left: what cannot be packed is named in the archive's `problem`.

    Args:
        progress: is told now and then how far it has come.
    """
    model = _packed(f"{run.artifacts}/model.tar.gz", run.model, lambda: _models(run), progress)
    verdict = settled(verdict, (model,))
    outputs = run.hosts[0].output if len(run.hosts) == 1 else run.folder
    output = _packed(f"{run.artifacts}/output.tar.gz", outputs, lambda: merge(run, verdict), progress)
    progress("hashing the model")
    note_model(run, model.path, model.sha256)
    return model, output


def upload(prefix: str, run_name: str, archives: Iterable[Archive], environ: Mapping[str, str]) -> list[str]:
    """Uploads archives to `<prefix>/<run>/output/`, as the platform does, each verified; returns their URIs.

    Raises:
        TrainshedError, OSError: as `Bucket.upload`.
    """
    from .fetching.s3 import Bucket

    bucket = Bucket(f"{prefix}/{run_name}/output", environ)
    return [bucket.upload(one.path, os.path.basename(one.path), one.sha256) for one in archives]


def settled(verdict: RunEnd, archives: Iterable[Archive]) -> RunEnd:
    """The same verdict; Failed instead of Completed where results are missing from an archive."""
    broken = [archive for archive in archives if archive.problem]
    if verdict.status != "Completed" or not broken:
        return verdict
    reason = "the script succeeded, but its results are not all there: " + "; ".join(one.problem for one in broken)
    return RunEnd("Failed", "Failed", EXIT_USER, reason=f"{reason}\nhint: {_what_to_do(broken[0])}")


def _what_to_do(archive: Archive) -> str:
    if archive.path:
        return f"the files are in {archive.kept}; what could be packed is in {archive.path}"
    return (
        f"nothing is lost: the files are in {archive.kept}; make room, or pack them elsewhere: "
        f"tar czf FOLDER/results.tar.gz -C {archive.kept} ."
    )


@dataclass(frozen=True)
class _Found:
    """What is to be packed. lost: `name: why` of results that cannot be; notes: of other things."""

    entries: tuple[PackedEntry, ...]
    lost: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def _packed(archive: str, kept: str, find: Callable[[], _Found], progress: Progress) -> Archive:
    found = find()
    results = [entry for entry in found.entries if not entry.special]
    total = sum(entry.size for entry in results)
    special = [f"{entry.name}, {entry.special}" for entry in found.entries if entry.special]
    notes = [*found.notes, *([f"left out of {os.path.basename(archive)}: {_named(special)}"] if special else [])]

    def tell(files: int, done: int) -> None:
        progress(f"packing {os.path.basename(archive)}: {files} of {len(results)} files, {size(done)} of {size(total)}")

    made = Archive("", len(results), total, notes=tuple(notes), kept=kept)
    try:
        packed = pack(archive, results, tell)
    except OSError as error:
        free = _free(os.path.dirname(archive))
        why = f"{archive} cannot be written: {error.strerror} ({size(total)} of files{free})"
        return Archive(made.path, made.files, made.size, why, notes=made.notes, kept=kept)
    lost = list(dict.fromkeys([*found.lost, *packed.lost, *changes(found.entries, find().entries)]))
    problem = f"left out of it: {_named(lost)}" if lost else ""
    return Archive(archive, packed.files, packed.size, problem, packed.sha256, made.notes, kept)


def _named(things: Sequence[str]) -> str:
    return some(things, _MOST_NAMED, "; ")


def _free(folder: str) -> str:
    try:
        status = os.statvfs(folder)
    except OSError:
        return ""
    return f", {size(status.f_bavail * status.f_frsize)} free"


# --- the model --------------------------------------------------------------------------------------------------------


def _models(run: Run) -> _Found:
    """What all hosts left in SM_MODEL_DIR: the folder that they share, and one of its own where a script has made one."""
    lost: list[str] = []
    notes: list[str] = []
    parts: list[tuple[str, list[PackedEntry]]] = []
    for host, folder in [("", run.model), *_own_models(run, lost)]:
        entries, problems = listed(folder)
        lost += [f"{host}/{problem}" if host else problem for problem in problems]
        parts.append((host, entries))
    found: dict[str, PackedEntry] = {}
    for host, entries in parts:
        for entry in entries:
            first = found.setdefault(entry.name, entry)
            if first is not entry and not _equal([first.path, entry.path]):
                apart = entry.replace(name=f"{host}/{entry.name}")
                found[apart.name] = apart
                notes.append(f"{entry.name} differs between hosts: that of {host} is {apart.name}")
    notes += _links_that_leave(run.model, found.values())
    return _Found(tuple(found[name] for name in sorted(found)), tuple(lost), tuple(notes))


def _own_models(run: Run, lost: list[str]) -> Iterator[tuple[str, str]]:
    """(host, folder) where a host's /opt/ml/model is not the one that all share: its script has replaced the link."""
    for host in run.hosts:
        folder = f"{host.folder}/model"
        if not os.path.lexists(folder) or (os.path.islink(folder) and _same(folder, run.model)):
            continue
        if os.path.isdir(folder) and not os.path.islink(folder):
            yield host.name, folder
        elif os.path.islink(folder):
            lost.append(f"{host.name}/model: the script replaced the folder by a link to {os.readlink(folder)}")
        else:
            lost.append(f"{host.name}/model: the script replaced the folder by a file")


def _same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)


def _links_that_leave(folder: str, entries: Iterable[PackedEntry]) -> list[str]:
    """Links whose target is not in the archive, where they would lead nowhere, or to something else."""
    top = os.path.realpath(folder)
    away = []
    for entry in entries:
        if entry.link:
            target = os.path.realpath(entry.path)
            if not os.path.lexists(target):
                away.append(f"{entry.name} leads nowhere")
            elif os.path.isabs(os.readlink(entry.path)) or not f"{target}/".startswith(f"{top}/"):
                away.append(f"{entry.name} leads to {target}, which is not in the archive as such")
    return [f"link in the model: {_named(away)}"] if away else []


# --- output -----------------------------------------------------------------------------------------------------------


def merge(run: Run, verdict: RunEnd) -> _Found:
    """All hosts' output, under the names in the archive.

    One name on several hosts with the same content is one file; with different contents each goes below its host's
    name. `success` and `failure` at the root are the job's; each host's own failure is kept below its name.
    """
    found: dict[str, list[tuple[str, PackedEntry]]] = {}
    lost: list[str] = []
    several = len(run.hosts) > 1
    for host in run.hosts:
        entries, problems = listed(host.output)
        lost += [f"{host.name}/{problem}" if several else problem for problem in problems]
        for entry in entries:
            found.setdefault(entry.name, []).append((host.name, entry))
    members: list[PackedEntry] = []
    for name in sorted(found):
        copies = found[name]
        if name in _OUTCOME:
            members += _outcome(name, copies, verdict, several)
        elif len(copies) == 1 or _equal([entry.path for _, entry in copies]):
            members.append(copies[0][1])
        else:
            members += [entry.replace(name=f"{host}/{name}") for host, entry in copies]
    return _Found(tuple(members), tuple(lost))


def _outcome(name: str, copies: list[tuple[str, PackedEntry]], verdict: RunEnd, several: bool) -> Iterator[PackedEntry]:
    if name == "success":
        if verdict.status == "Completed":
            yield copies[0][1]
        return
    for host, entry in copies:
        if verdict.status == "Failed" and host == verdict.failed_host:
            yield entry
        if several:
            yield entry.replace(name=f"{host}/{name}")


def _equal(paths: list[str]) -> bool:
    try:
        return all(filecmp.cmp(paths[0], path, shallow=False) for path in paths[1:])
    except OSError:
        return False
