"""Shipping to the nodes: which folders of the run, for which hosts, under which name there; packed into streams."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field

import trainshed
from trainshed.runner.files.run import HostTree, Run
from trainshed.runner.job.job import S3

from .environment import READY
from .node import TOOLKIT
from .wishes import RayOptions

CHUNK = 4 << 20  # bytes of a part on its way: small against any object store


@dataclass
class Parcel:
    """One file or folder on its way.

    source: here. name: below the actor's folder, with `ml/` before what is in the host's tree. hosts: who gets it.
    what: for people.
    """

    source: str
    name: str
    what: str
    hosts: list[int] = field(default_factory=list)


@dataclass
class Load:
    """All that a run's hosts get: `parcels`; `links`, for each host, from names to folders that all nodes see; `small`,
    files for each host by their name there."""

    parcels: list[Parcel]
    links: list[dict[str, str]]
    small: list[dict[str, bytes]]


def load_of(run: Run, options: RayOptions, ready: str = "") -> Load:
    """Returns what a run that has been placed needs on its nodes; `ready`: the folder that a ready program is in."""
    job = run.job
    toolkit = os.path.dirname(os.path.abspath(trainshed.__file__))
    found = Load([], [{} for _ in run.hosts], [{} for _ in run.hosts])
    everyone = list(range(len(run.hosts)))
    found.parcels.append(Parcel(toolkit, f"{TOOLKIT}/trainshed", "trainshed", everyone))
    if ready:
        found.parcels.append(Parcel(ready, READY, "the ready programs", everyone))
    if job.source_dir and not job.source_dir.startswith(S3):
        found.parcels.append(Parcel(f"{run.hosts[0].folder}/code", "ml/code", "the code", everyone))  # all have the same
    for number, host in enumerate(run.hosts):
        found.small[number] = _small(host)
        if options.sees(run.checkpoints):
            found.links[number][f"ml/{job.checkpoint_path}"] = run.checkpoints
        for channel in job.channels_of(host.name):
            path = run.data(host, channel)
            name = f"ml/input/data/{channel.name}"
            if not channel.staged and os.path.isfile(path):
                name += f"/{os.path.basename(path)}"
            if options.sees(path):
                found.links[number][name] = path
                continue
            same = next((one for one in found.parcels if (one.source, one.name) == (path, name)), None)
            if same is None:
                same = Parcel(path, name, f"the channel {channel.name}")
                found.parcels.append(same)
            same.hosts.append(number)
    if not options.sees(run.checkpoints):
        found.parcels.append(Parcel(run.checkpoints, f"ml/{job.checkpoint_path}", "checkpoints", everyone))
    return found


def folders_of(run: Run, host: HostTree) -> list[str]:
    """Folders of a host's tree that are there when `train` starts, empty or not, by their path below the actor's folder."""
    channels = [f"ml/input/data/{one.name}" for one in run.job.channels_of(host.name)]
    return ["ml/model", "ml/output/data", "ml/input/config", "ml/input/data", *channels]


def relocated(small: dict[str, bytes], host: HostTree, tree: str) -> dict[str, bytes]:
    """Configuration files that name the host's tree where it is on its node."""
    return {name: data.replace(host.base.encode(), tree.encode()) for name, data in small.items()}


def packed(parcel: Parcel, chunk: int = CHUNK) -> Iterator[tuple[bytes, bool]]:
    """A parcel as a tar (POSIX.1-2001, pax), in parts: (bytes, whether it is the last). Links are followed: what they
    lead to is not on the node. Special files are left out, also bytecode of trainshed itself.

    Raises:
        OSError: a file cannot be read, or became shorter meanwhile.
    """
    held: list[bytes] = []
    size = 0
    for data in _blocks(parcel, chunk):
        held.append(data)
        size += len(data)
        if size >= chunk:
            yield b"".join(held), False
            held, size = [], 0
    yield b"".join(held), True


def _blocks(parcel: Parcel, chunk: int) -> Iterator[bytes]:
    for path, name in _walked(parcel):
        info = tarfile.TarInfo(name)
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") if not os.path.isdir(path) else nullcontext() as file:
            status = os.fstat(file.fileno()) if file else os.stat(path)
            info.mode, info.mtime = stat.S_IMODE(status.st_mode) | 0o600, status.st_mtime
            info.type = tarfile.REGTYPE if file else tarfile.DIRTYPE
            info.mode |= 0 if file else 0o100
            info.size = status.st_size if file else 0
            yield info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
            left = info.size
            while file and left:
                data = file.read(min(chunk, left))
                if not data:
                    raise OSError(0, "it became shorter while it was read", path)
                left -= len(data)
                yield data
        yield bytes(-info.size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _walked(parcel: Parcel) -> Iterator[tuple[str, str]]:
    """(path, name) of everything in a parcel, folders before what is in them. What leads back to itself is left out."""
    if not os.path.isdir(parcel.source):
        yield parcel.source, parcel.name
        return
    yield from _below(parcel.source, parcel.name, (os.path.realpath(parcel.source),), skip=_skipped(parcel))


def _below(folder: str, name: str, above: tuple[str, ...], skip: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
    yield folder, name
    for entry in sorted(os.scandir(folder), key=lambda one: one.name):
        if skip(entry.name):
            continue
        try:
            mode = entry.stat().st_mode
        except FileNotFoundError:  # a link that leads nowhere
            continue
        if stat.S_ISREG(mode):
            yield entry.path, f"{name}/{entry.name}"
        elif stat.S_ISDIR(mode) and (real := os.path.realpath(entry.path)) not in above:
            yield from _below(entry.path, f"{name}/{entry.name}", (*above, real), skip)


def _skipped(parcel: Parcel) -> Callable[[str], bool]:
    return (lambda name: name == "__pycache__") if parcel.name.startswith(TOOLKIT) else (lambda name: False)


def _small(host: HostTree) -> dict[str, bytes]:
    folder = f"{host.folder}/input/config"
    found = {}
    for name in sorted(os.listdir(folder)):
        with open(f"{folder}/{name}", "rb") as file:
            found[f"ml/input/config/{name}"] = file.read()
    return found
