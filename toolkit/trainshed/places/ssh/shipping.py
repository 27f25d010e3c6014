"""Shipping to hosts, and of their results home: tars through ssh, which every machine can read and write."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import trainshed
from trainshed.base.errors import TrainshedError, one_line
from trainshed.base.secrets import new_token
from trainshed.base.units import size as shown
from trainshed.runner.files.platform_files import config_files, to_json
from trainshed.runner.files.run import HostTree, Run
from trainshed.runner.job.job import S3, ChannelSpec

from ..copying import Brought, beside, is_whole, take_in
from .connection import SshError
from .machine import Machine
from .wishes import SshOptions

ROOM = 64 << 20  # bytes beyond what is sent that a disk there must have
# Written for the runner's machine; a host of this place gets its own (`HostParcel.configuration`).
_CONFIG = "input/config"

Member = tuple[str, str]  # its name below the host's folder; the file here


class HostParcel:
    """The parcel for one host: its /opt/ml, with the channels that are not there already.

    Args:
        base: what its /opt/ml is for `train`.
        interface: of the machine, that leads to the other hosts.
        links: whether channels that are there already are linked to; else they are mounted.
        apart: channels that go another way.
    """

    def __init__(
        self,
        run: Run,
        host: HostTree,
        options: SshOptions,
        base: str,
        interface: str,
        *,
        links: bool = True,
        apart: Sequence[ChannelSpec] = (),
    ) -> None:
        self.run, self.host, self.options, self.links = run, host, options, links
        self.apart = apart
        self.configuration = config_files(run.job, run.name, host.name, base, interface)

    def members(self) -> Iterator[Member]:
        """Everything but the configuration that is written for the host."""
        run, host = self.run, self.host
        for top in ("input", "code") if run.job.source_dir and not run.job.source_dir.startswith(S3) else ("input",):
            for name, path in below(f"{host.folder}/{top}", f"ml/{top}", follow=False):
                linked = self.links and name.removeprefix("ml/input/data/") in self.options.data
                if name.removeprefix(f"ml/{_CONFIG}/") not in self.configuration and not linked:
                    yield name, path
        yield from below(run.checkpoints, f"ml/{run.job.checkpoint_path}", follow=False)
        for channel in run.job.channels_of(host.name):
            if channel.name in self.options.data or channel in self.apart:
                continue
            path, there = run.data(host, channel), f"ml/input/data/{channel.name}"
            if os.path.isfile(path):
                yield f"{there}/{os.path.basename(path)}", path
            else:
                yield from below(path, there, follow=True)

    def size(self) -> int:
        """Bytes of the files, about."""
        return sum(os.stat(path).st_size for _, path in self.members() if os.path.isfile(path))

    def write(self, archive: tarfile.TarFile) -> None:
        """Writes all of it. A file that is gone meanwhile is left out."""
        checkpoints = f"ml/{self.run.job.checkpoint_path}"
        for folder in ("ml", "ml/model", "ml/output", "ml/output/data", "ml/input", "ml/input/data", checkpoints):
            info = tarfile.TarInfo(folder)
            info.type, info.mode = tarfile.DIRTYPE, 0o700
            archive.addfile(info)
        sent = set()
        for name, path in self.members():
            if name in sent:  # the empty files that stand for mounted ones
                continue
            sent.add(name)
            add(archive, name, path)
        for name, value in self.configuration.items():
            data = to_json(value).encode()
            info = tarfile.TarInfo(f"ml/{_CONFIG}/{name}")
            info.size, info.mode = len(data), 0o600
            archive.addfile(info, io.BytesIO(data))
        for channel, path in self.options.data.items() if self.links else ():
            info = tarfile.TarInfo(f"ml/input/data/{channel}")
            info.type, info.linkname = tarfile.SYMTYPE, path
            if any(one.name == channel for one in self.run.job.channels_of(self.host.name)):
                archive.addfile(info)


def below(folder: str, name: str, *, follow: bool, inside: tuple[str, ...] = ()) -> Iterator[Member]:
    """Yields what is in a folder, folders first; with `follow` what links lead to instead of them, but never in a circle."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    yield name, folder
    here = (*inside, os.path.realpath(folder))
    for entry in entries:
        if entry.is_dir(follow_symlinks=follow):
            if os.path.realpath(entry.path) not in here:
                yield from below(entry.path, f"{name}/{entry.name}", follow=follow, inside=here)
        elif entry.is_file(follow_symlinks=follow) or (entry.is_symlink() and not follow):
            yield f"{name}/{entry.name}", os.path.realpath(entry.path) if follow else entry.path


def add(archive: tarfile.TarFile, name: str, path: str) -> None:
    """Adds one file, folder or link, without an owner; its bytes are as many as it had at first."""
    try:
        info = archive.gettarinfo(path, name)
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        if info.islnk():  # gettarinfo has seen it before by another name
            info.type, info.linkname, info.size = tarfile.REGTYPE, "", os.stat(path).st_size
        if not info.isreg():
            archive.addfile(info)
            return
        with open(path, "rb") as file:
            archive.addfile(info, file)
    except FileNotFoundError:
        return


def send(machine: Machine, folder: str, write: Callable[[tarfile.TarFile], None]) -> None:
    """Sends a tar that is made on the way, and has it laid out in a folder there. Raises SshError."""
    process = machine.open("unpack", folder)
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    said: list[bytes] = []
    errors = process.stderr
    reader = threading.Thread(target=lambda: said.append(errors.read()), daemon=True)
    reader.start()
    problem = ""
    try:
        with tarfile.open(fileobj=process.stdin, mode="w|", bufsize=1 << 20, format=tarfile.PAX_FORMAT) as archive:
            write(archive)
    except (BrokenPipeError, ConnectionError):
        problem = "the connection broke"
    except OSError as error:
        problem = f"{error.filename or 'what is to be sent'} cannot be read: {error.strerror}"
    try:
        process.stdin.close()
    except OSError:
        problem = problem or "the connection broke"
    if problem and problem != "the connection broke":
        process.kill()
    answer = process.stdout.read()
    process.stdout.close()
    code = process.wait()
    reader.join()
    errors.close()
    if problem and problem != "the connection broke":
        raise SshError(f"{machine.name}: {problem}")
    if code or answer.strip() != b"whole":
        raise machine.trouble(code, b"".join(said).decode("utf-8", "replace"))


def check_room(machine: Machine, size: int) -> None:
    """Raises SshError where the machine's disk is too small for so many bytes."""
    if machine.facts.free < size + ROOM:
        raise SshError(
            f"{machine.name}: {shown(size)} are to be sent, and {machine.facts.folder} has {shown(machine.facts.free)} free",
            hint="make room there, or name another disk: ssh: {folder: /data/me}",
        )


@lru_cache
def toolkit_digest() -> str:
    """The digest of this trainshed: a hash of its files."""
    found = hashlib.sha256()
    for name, path in _toolkit():
        if os.path.isfile(path):
            with open(path, "rb") as file:
                found.update(name.encode() + b"\0" + hashlib.sha256(file.read()).digest())
    return found.hexdigest()[:16]


def send_toolkit(machine: Machine) -> str:
    """The folder there that has this very trainshed; it is sent where it is missing. Raises SshError."""
    folder = f"{machine.facts.folder}/toolkit/{toolkit_digest()}"
    if machine.ask("has", folder).output.strip() == b"yes":
        return folder

    def write(archive: tarfile.TarFile) -> None:
        for name, path in _toolkit():
            add(archive, name, path)

    aside = f"{folder}.{new_token()[:8]}.tmp"
    send(machine, aside, write)
    machine.ask("name", aside, folder)
    return folder


def _toolkit() -> Iterator[Member]:
    package = os.path.dirname(os.path.abspath(trainshed.__file__))
    for name, path in below(package, "trainshed", follow=False):
        if "__pycache__" not in name.split("/"):
            yield name, path


def bring_home(machine: Machine, run: Run, host: HostTree, base: str, brought: Brought) -> None:
    """Brings output, model and checkpoints of a host that has ended. Raises TrainshedError where something is missing."""
    for source, target in (("output", host.output), ("model", run.model), (run.job.checkpoint_path, run.checkpoints)):
        with beside(run) as folder:
            archive = f"{folder}/out.tar"
            with open(archive, "wb") as file:
                answer = machine.connection.run(machine.words("pack", f"{base}/{source}"), stdout=file, seconds=None)
            if answer.code:
                raise SshError(f"{machine.name}: {one_line(answer.last_error)}")
            if not is_whole(archive):
                raise SshError(f"{machine.name}: {base}/{source} was cut off on its way")
            if os.path.getsize(archive) > tarfile.RECORDSIZE or _holds_something(archive):
                take_in(archive, folder, f"{machine.name}:{base}/{source}", target, host.name, brought)


def _holds_something(archive: str) -> bool:
    try:
        with tarfile.open(archive) as tar:
            return tar.next() is not None
    except tarfile.TarError as error:
        raise TrainshedError(f"{archive}: {error}") from error
