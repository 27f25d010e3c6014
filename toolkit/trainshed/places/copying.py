"""For engines that do not see this machine's folders: files are copied into a container, and out when it has ended."""

from __future__ import annotations

import filecmp
import os
import shlex
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable

from trainshed.base.archive import unpack
from trainshed.base.errors import TrainshedError, some
from trainshed.machine.packing import listed
from trainshed.runner.files.run import HostTree, Run
from trainshed.runner.job.job import S3

from .container_command import container_name
from .container_engine import Engine, EngineError, hint_for, reason


def copy_in(engine: Engine, run: Run, host: HostTree) -> None:
    """Lays out /opt/ml in a container that has not started. Raises EngineError."""
    container = container_name(run, host)
    with beside(run) as folder:
        for name in ("model", "output/data"):
            os.makedirs(f"{folder}/ml/{name}")
        for name in ("ml", "ml/model", "ml/output", "ml/output/data"):
            os.chmod(f"{folder}/{name}", 0o777)  # whoever the image's user is
        _copy(engine, f"{folder}/ml", f"{container}:/opt/")
    _copy(engine, f"{host.folder}/input", f"{container}:/opt/ml/")
    _copy(engine, f"{run.checkpoints}/.", f"{container}:/opt/ml/{run.job.checkpoint_path}/")
    if run.job.source_dir and not run.job.source_dir.startswith(S3):
        _copy(engine, f"{host.folder}/code/.", f"{container}:/opt/ml/code/")
    for channel in run.job.channels_of(host.name):
        path = run.data(host, channel)
        source = path if os.path.isfile(path) else f"{path}/."
        _copy(engine, source, f"{container}:/opt/ml/input/data/{channel.name}/", follow=True)


class Brought:
    """The results that have come home, of all hosts.

    owners: host of each file, by its path: two hosts may have made the same one.
    before: size and time of the files that were there already, and that all hosts were given.
    notes: what the user should know of it.
    """

    def __init__(self, given: str = "") -> None:
        self.owners: dict[str, str] = {}
        self.before = {entry.path: _stamp(entry.path) for entry in listed(given)[0]} if given else {}
        self.notes: list[str] = []


def fetch_all(engine: Engine, run: Run, hosts: Iterable[HostTree]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Brings home what ended containers hold: (a message for each host whose results did not all come, notes)."""
    lost = []
    brought = Brought(run.checkpoints)
    for host in hosts:
        try:
            copy_out(engine, run, host, brought)
        except TrainshedError as error:
            container = container_name(run, host)
            lost.append(
                f"the results of {host.name} are not all here: {error.message}; its container {container} is kept: "
                f"`{engine.command[0]} cp {container}:/opt/ml/model .` fetches the model, `trainshed rm` removes it"
            )
    os.sync()  # the containers are removed next
    return tuple(lost), tuple(brought.notes)


def copy_out(engine: Engine, run: Run, host: HostTree, brought: Brought) -> None:
    """Brings output, model and checkpoints of an ended container home. Raises TrainshedError."""
    container = container_name(run, host)
    for source, target in (
        ("output", host.output),
        ("model", run.model),
        (run.job.checkpoint_path, run.checkpoints),
    ):
        place = f"{container}:/opt/ml/{source}/."
        if not _extract(engine, place, target, run, host.name, brought) and source in ("output", "model"):
            brought.notes.append(f"{host.name} left no /opt/ml/{source}: its script removed the folder")


def beside(run: Run) -> tempfile.TemporaryDirectory[str]:
    """A folder of the run's, which goes with it even if this process is killed."""
    return tempfile.TemporaryDirectory(prefix=".copying-", suffix=".tmp", dir=run.folder)


def _copy(engine: Engine, source: str, target: str, *, follow: bool = False) -> None:
    """`docker cp`; folders that are missing on the way are made by a tar of them."""
    container, _, path = target.partition(":")
    if not path.endswith("/opt/"):
        _make_folder(engine, container, path)
    options = ["--follow-link"] if follow else []
    engine.checked("cp", *options, source, target, timeout=None)


def _make_folder(engine: Engine, container: str, path: str) -> None:
    with tempfile.TemporaryFile() as file:
        with tarfile.open(fileobj=file, mode="w") as tar:
            parts = path.strip("/").split("/")
            for number in range(3, len(parts) + 1):  # /opt/ml is there
                info = tarfile.TarInfo("/".join(parts[:number]))
                info.type, info.mode = tarfile.DIRTYPE, 0o777
                tar.addfile(info)
        file.seek(0)
        done = subprocess.run([*engine.command, "cp", "-", f"{container}:/"], stdin=file, capture_output=True, text=True)
    if done.returncode != 0:
        raise EngineError(f"cannot create {path} in {container}: {reason(done.stderr)}", hint=hint_for(done.stderr))


def _extract(engine: Engine, source: str, target: str, run: Run, host: str, brought: Brought) -> bool:
    """What a container left is as hostile as any archive: it goes through the same door. False where it left nothing.

    Raises:
        TrainshedError: it did not come, or not whole.
    """
    with beside(run) as folder:
        archive = f"{folder}/out.tar"
        with open(archive, "wb") as file:
            command = [*engine.command, "cp", source, "-"]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            said = done.stderr.lower()
            if "no such container" not in said and ("no such file" in said or "not find" in said or "not be found" in said):
                return False
            raise EngineError(f"`{shlex.join(command)}` failed: {reason(done.stderr)}")
        if not is_whole(archive):
            raise EngineError(f"`{shlex.join(command)}` was cut off")
        take_in(archive, folder, source.removesuffix("/."), target, host, brought)
    return True


def take_in(archive: str, aside: str, source: str, target: str, host: str, brought: Brought) -> None:
    """Unpacks what came from a host beside its target, and merges it there.

    Args:
        aside: a folder for it, on the target's disk. source: what is told of where it came from.

    Raises:
        TrainshedError: it cannot be unpacked, or not be written.
    """
    out = f"{aside}/out"
    os.mkdir(out)
    try:
        left_out: list[str] = []
        unpack(archive, out, left_out)
        if left_out:
            brought.notes.append(f"left out of what came from {source}: {some(left_out, 3)}")
        merge(out, target, target, host, brought)
    except OSError as error:
        raise TrainshedError(f"{target}: {error.strerror}") from error


def is_whole(archive: str) -> bool:
    """Returns whether a .tar has its end: two blocks of zeros, tar(5). Without it a cut between two members is not seen."""
    with open(archive, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1024))
        return file.read() == bytes(1024)


def merge(source: str, target: str, top: str, host: str, brought: Brought) -> None:
    """Moves what came into a folder. What is there already is replaced, but never what another host has just brought."""
    os.makedirs(target, exist_ok=True)
    for entry in os.scandir(source):
        place = f"{target}/{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            if os.path.lexists(place) and (os.path.islink(place) or not os.path.isdir(place)):
                place = _another_place(place, top, host, brought)
            merge(entry.path, place, top, host, brought)
            continue
        if os.path.lexists(place) and brought.before.get(place) == _stamp(entry.path):
            continue  # as it was given to the host; another one may have a newer one
        first = brought.owners.get(place, host)
        if first != host and os.path.lexists(place):
            if _equal(entry.path, place):
                continue
            place = _another_place(place, top, host, brought)
            os.makedirs(os.path.dirname(place), exist_ok=True)
        if os.path.lexists(place):
            shutil.rmtree(place) if os.path.isdir(place) and not os.path.islink(place) else os.unlink(place)
        shutil.move(entry.path, place)
        brought.owners[place] = host


def _stamp(path: str) -> tuple[int, int]:
    status = os.lstat(path)
    return status.st_size, int(status.st_mtime)


def _another_place(place: str, top: str, host: str, brought: Brought) -> str:
    """Where a file goes whose place is taken by another host's: below the host's name."""
    name = os.path.relpath(place, top)
    first = brought.owners.get(place)
    if first is None:  # a file of an earlier attempt where there is a folder now
        os.unlink(place)
        return place
    folder = host
    while os.path.lexists(f"{top}/{folder}") and not _is_real_folder(f"{top}/{folder}"):  # a file of that name
        folder += "_"
    brought.notes.append(
        f"{os.path.basename(top)}/{name} differs between {first} and {host}: that of {host} is {folder}/{name}"
    )
    return f"{top}/{folder}/{name}"


def _is_real_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _equal(one: str, other: str) -> bool:
    if os.path.islink(one) or os.path.islink(other):
        return os.path.islink(one) and os.path.islink(other) and os.readlink(one) == os.readlink(other)
    try:
        return filecmp.cmp(one, other, shallow=False)
    except OSError:
        return False
