"""A warm pool on disk: what was slow to make for one run, kept for the next one that can use it.

    ~/.local/state/trainshed/pools/<job>-<six digits>/
        pool.json       what it is for, who uses it, when it ends
        lock            held by the runner that uses it; the kernel lets go of it when that ends, however it ends
        keeper          held by the process that removes the pool in time (`keeper`)
        packages/       of requirements.txt, written and checked by `train` (container/program/kept_packages.py)
        channels/       fetched files that the user's cache does not keep; a cache of the same form

Hosts themselves are not kept: every run gets new containers and processes, with new trees, so that nothing of an earlier
job (its variables, files, processes) can reach the next one. A container is there in a third of a second; what is slow is
what goes into it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from trainshed.base.files import read_object, write_atomic
from trainshed.base.locks import is_held, locked

from .fetching.file_cache import Cache
from .run import Run
from .user_dirs import state_folder

ABOUT, LOCK, KEEPER, PACKAGES, CHANNELS, RELEASED = "pool.json", "lock", "keeper", "packages", "channels", "released"
GONE = ".gone-"  # how the names of pools begin that are being removed
MOST_SETS = 3  # of packages: what was used longest ago goes
_LONGEST_ABOUT = 1 << 16  # bytes
_TRIES, _PAUSE = 4, 0.05  # a keeper holds a lock for a moment


@dataclass(frozen=True)
class WarmPoolKey:
    """The properties that two runs must have in common for the packages of one to serve the other.

    engine: address of the container engine, "" for processes. image: id of the containers' image, "" for processes.
    python: interpreter of hosts that are processes, "" for containers.
    """

    engine: str
    image: str
    python: str


@dataclass(frozen=True)
class Standing:
    """How a pool stands.

    job: the name of the job that made it. until: seconds since the epoch; 0 while it is in use.
    run: what uses it, or used it last: its Id, Name and Folder.
    """

    folder: str
    job: str
    shape: WarmPoolKey
    seconds: float
    until: float
    in_use: bool
    run: dict[str, str]

    @property
    def name(self) -> str:
        """The name that people use."""
        return os.path.basename(self.folder)

    @property
    def expired(self) -> bool:
        """Tells whether its time is over."""
        return not self.in_use and 0 < self.until <= time.time()


class Pool:
    """A pool that this process holds; everybody else keeps away from it until `let_go` or `drop`."""

    def __init__(self, folder: str, fd: int) -> None:
        self.folder, self._fd = folder, fd

    @property
    def name(self) -> str:
        """The name that people use."""
        return os.path.basename(self.folder)

    @property
    def packages(self) -> str:
        """The folder for packages."""
        return f"{self.folder}/{PACKAGES}"

    @property
    def channels(self) -> Cache:
        """See `channels_of`."""
        return channels_of(self.folder)

    def note(self, job: str, shape: WarmPoolKey, seconds: float, run: Run | None, until: float = 0.0) -> None:
        """Writes what it is for, and who uses it (None for nobody). Raises OSError."""
        who = {"Id": run.id, "Name": run.name, "Folder": run.folder} if run is not None else {}
        about = {"Job": job, "Shape": asdict(shape), "Seconds": seconds, "Until": until, "Run": who}
        write_atomic(f"{self.folder}/{ABOUT}", json.dumps(about) + "\n", mode=0o600)

    def extend(self, until: float) -> None:
        """Says when it ends, of a pool whose runner was killed before it could. Raises OSError, ValueError."""
        about = read_object(f"{self.folder}/{ABOUT}", _LONGEST_ABOUT)
        write_atomic(f"{self.folder}/{ABOUT}", json.dumps({**about, "Until": until}) + "\n", mode=0o600)

    @property
    def released(self) -> bool:
        """Tells whether somebody has asked for its end while it was in use."""
        return os.path.exists(f"{self.folder}/{RELEASED}")

    def tidy(self, since: float) -> bool:
        """Removes what runs since `since` (seconds since the epoch) have not used; whether anything is left."""
        cache = self.channels
        for entry in cache.entries():
            if not entry.whole or entry.used < since - 1.0:
                cache.remove(entry)
        sets = sorted(_folders(self.packages), key=lambda path: os.stat(path).st_mtime, reverse=True)
        for path in sets[MOST_SETS:]:
            shutil.rmtree(path, ignore_errors=True)
        return bool(sets or cache.entries())

    def let_go(self) -> None:
        """Others may use it from here on."""
        os.close(self._fd)

    def drop(self) -> None:
        """Removes it. Never raises."""
        _remove(self.folder)
        os.close(self._fd)


def channels_of(folder: str) -> Cache:
    """A pool's cache for what the user's cache does not keep. It has no limit but the pool's time."""
    return Cache(f"{folder}/{CHANNELS}", 1 << 62)


def every(environ: Mapping[str, str]) -> list[Standing]:
    """All pools of this user, the one first that was used last."""
    found = [one for one in map(standing, _folders(pools_folder(environ))) if one is not None]
    return sorted(found, key=lambda one: (one.until or time.time(), one.name), reverse=True)


def standing(folder: str) -> Standing | None:
    """How a pool stands; None where there is none."""
    try:
        about = read_object(f"{folder}/{ABOUT}", _LONGEST_ABOUT)
        shape = WarmPoolKey(**{name: str(about["Shape"][name]) for name in ("engine", "image", "python")})
        run = {str(name): str(value) for name, value in about["Run"].items()}
        in_use = is_held(f"{folder}/{LOCK}")
        return Standing(folder, str(about["Job"]), shape, float(about["Seconds"]), float(about["Until"]), in_use, run)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def take(one: Standing) -> Pool | None:
    """The pool, held; None where somebody else has it, or it has gone meanwhile, or its time is over."""
    for attempt in range(_TRIES):
        time.sleep(_PAUSE if attempt else 0)
        fd = _open(one.folder)
        if fd is None:
            return None
        if locked(fd):
            # It may have been removed, used by another run or released between the look and the lock.
            now = standing(one.folder) if _is_its_lock(one.folder, fd) else None
            in_time = now is not None and not 0 < now.until <= time.time()
            if in_time and not os.path.exists(f"{one.folder}/{RELEASED}"):
                return Pool(one.folder, fd)
            os.close(fd)
            return None
        os.close(fd)
    return None


def make(environ: Mapping[str, str], job: str) -> Pool:
    """A new, empty pool, held. Raises OSError."""
    root = pools_folder(environ)
    os.makedirs(root, mode=0o700, exist_ok=True)
    folder = f"{root}/{job}-{secrets.token_hex(3)}"
    os.mkdir(folder, 0o700)
    try:
        fd = _open(folder, os.O_CREAT)
        assert fd is not None and locked(fd)
        os.mkdir(f"{folder}/{PACKAGES}")
    except BaseException:
        _remove(folder)
        raise
    return Pool(folder, fd)


def ask_for_end(one: Standing) -> bool:
    """Removes a pool, or has the run that uses it do so when it ends; whether it is gone. Raises OSError."""
    for attempt in range(_TRIES):
        time.sleep(_PAUSE if attempt else 0)
        fd = _open(one.folder)
        if fd is None:
            return True
        if locked(fd):
            Pool(one.folder, fd).drop()
            return True
        os.close(fd)
    try:
        os.close(os.open(f"{one.folder}/{RELEASED}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except FileNotFoundError:
        return True
    return False


def sweep(environ: Mapping[str, str]) -> None:
    """Removes pools whose time is over, and what a killed process has left of one. Never raises."""
    root = pools_folder(environ)
    for folder in _folders(root, GONE):
        shutil.rmtree(folder, ignore_errors=True)
    for folder in _folders(root):
        with contextlib.suppress(OSError):  # another user's
            end_in_time(folder)


def end_in_time(folder: str) -> None:
    """Removes a pool if its time is over, or if it is none; sets its time if its runner was killed.

    Raises:
        OSError: it is another user's.
    """
    one = standing(folder)
    if one is not None and (one.in_use or (one.until > time.time() and not os.path.exists(f"{folder}/{RELEASED}"))):
        return
    if one is None and _age(folder) < 60:  # it is being made
        return
    fd = _open(folder)
    if fd is None or not locked(fd):
        if fd is not None:
            os.close(fd)
        elif one is None:
            _remove(folder)
        return
    pool, one = Pool(folder, fd), standing(folder)
    if one is not None and not one.until and not pool.released:
        try:
            pool.extend(time.time() + one.seconds)
            pool.let_go()
            return
        except (OSError, ValueError):
            pass
    if one is not None and one.until > time.time() and not pool.released:
        pool.let_go()
    else:
        pool.drop()


def pools_folder(environ: Mapping[str, str]) -> str:
    """The folder of this user's pools."""
    return f"{state_folder(environ)}/pools"


def size_of(folder: str) -> int:
    """Bytes of the files in a folder, each counted once."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                status = os.lstat(f"{place}/{name}")
            except OSError:
                continue
            if (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                total += status.st_size
    return total


def _folders(root: str, beginning: str = "") -> Iterator[str]:
    try:
        names = sorted(os.listdir(root))
    except OSError:
        return
    for name in names:
        if name.startswith(beginning or ".") == bool(beginning) and os.path.isdir(f"{root}/{name}"):
            yield f"{root}/{name}"


def _open(folder: str, more: int = 0) -> int | None:
    try:
        return os.open(f"{folder}/{LOCK}", os.O_RDWR | os.O_CLOEXEC | more, 0o600)
    except FileNotFoundError:
        return None


def _is_its_lock(folder: str, fd: int) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(f"{folder}/{LOCK}"))
    except OSError:
        return False


def _age(folder: str) -> float:
    try:
        return time.time() - os.stat(folder).st_mtime
    except OSError:
        return 0.0


def _remove(folder: str) -> None:
    """Under another name first, so that nobody finds half of it."""
    aside = f"{os.path.dirname(folder)}/{GONE}{secrets.token_hex(6)}"
    try:
        os.rename(folder, aside)
    except OSError:
        aside = folder
    shutil.rmtree(aside, ignore_errors=True)


def keeper_lock(folder: str) -> str:
    """The file that a pool's keeper holds."""
    return f"{folder}/{KEEPER}"
