"""A small folder for each run, for files between `train` and the ranks; without `tempfile`, which is slow to import."""

from __future__ import annotations

import os
import stat
import time

from trainshed.base.errors import TrainshedError
from trainshed.contract.wire.variables import TRAIN_ID

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainshed.contract.paths import Paths

SHARED_MEMORY = "/dev/shm"
_USUAL = ("/tmp", "/var/tmp", SHARED_MEMORY)
_HELD = ".held"  # in a scratch: locked while its `train` lives
_MAKING = ".new"  # ends the name of a scratch that nobody holds yet
_more: list[str] = []  # folders elsewhere that are removed with the scratch


def own_folder(what: str, environ: Mapping[str, str], paths: Paths) -> str:
    """Makes a folder that is removed when the run ends: for packages or code whose usual place is read-only.

    It is made where programs can be executed, if such a place is writable: `docker run --tmpfs /tmp` mounts /tmp without
    that right. The name starts like the scratch's, so that the starter of a `train` that was killed can find it.

    Raises:
        TrainshedError: no folder can be written.
    """
    import tempfile

    places = [environ.get("TMPDIR") or "/tmp", "/tmp", "/var/tmp", paths.base, paths.output, SHARED_MEMORY]
    usable = [place for place in dict.fromkeys(places) if os.access(place, os.W_OK | os.X_OK)]
    if not usable:
        raise TrainshedError(
            f"a folder for {what} cannot be made: none of {', '.join(dict.fromkeys(places))} can be written",
            hint="mount a writable /tmp: docker run --tmpfs /tmp:exec",
        )
    place = next((place for place in usable if can_execute(place)), usable[0])
    _more.append(tempfile.mkdtemp(prefix=f"{_name(environ)}-{what}-", dir=place))
    return _more[-1]


def memory_folder(environ: Mapping[str, str]) -> str:
    """Where ranks keep copies of their state in memory, removed when the run ends; "" where no `train` has started them."""
    return f"{SHARED_MEMORY}/{_name(environ)}-memory" if environ.get(TRAIN_ID) else ""


def forget_attempt(scratch: str) -> None:
    """Removes what the ranks of an attempt have noted of their end, before the next ones are started."""
    try:
        names = os.listdir(scratch)
    except OSError:
        return
    for name in names:
        if name.endswith(".error.json"):
            try:
                os.unlink(f"{scratch}/{name}")
            except OSError:
                pass


def _name(environ: Mapping[str, str]) -> str:
    """How the names of this run's folders begin; no other run's do."""
    own = environ.get(TRAIN_ID, "").rpartition(";")[2]
    return f"trainshed-{own or f'{os.getpid()}-{time.time_ns():x}'}"


def remove_folders(train_id: str, environ: Mapping[str, str]) -> None:
    """Removes the folders of a `train` that was killed before it could."""
    from trainshed.contract.paths import Paths

    paths = Paths.from_environment(environ)
    for place in {environ.get("TMPDIR") or "/tmp", *_USUAL, paths.base, paths.output}:
        try:
            names = os.listdir(place)
        except OSError:
            continue
        for name in names:
            if name.startswith(f"trainshed-{train_id}-"):
                _remove(f"{place}/{name}")


def can_execute(folder: str) -> bool:
    """Returns whether programs and libraries in this folder can be executed: its file system is not mounted `noexec`."""
    return not os.statvfs(folder).f_flag & os.ST_NOEXEC


class Scratch:
    """Use in a `with` block: `path` is known at once, `make` makes the folder, and the end of the block removes it."""

    def __init__(self, environ: Mapping[str, str], last_resort: str) -> None:
        places = [place for place in (environ.get("TMPDIR"), *_USUAL, last_resort) if place]
        self.place = next((place for place in places if os.access(place, os.W_OK | os.X_OK)), last_resort)
        self.path = f"{self.place}/{_name(environ)}-run"
        self._memory = memory_folder(environ)
        self.made = False
        self._held = -1

    def make(self) -> None:
        """Makes the folder, for this user alone.

        Raises:
            TrainshedError: no folder for temporary files can be written.
        """
        _remove_abandoned(self.place)
        made = f"{self.path}{_MAKING}"  # another `train` that looks for abandoned ones takes none without its name
        try:
            os.mkdir(made, 0o700)
            self._held = _hold(f"{made}/{_HELD}", os.O_CREAT)
            os.rename(made, self.path)
        except OSError as error:
            _remove(made)
            raise TrainshedError(
                f"no temporary folder can be made in {self.place}: {error.strerror}",
                hint="mount a writable /tmp or set TMPDIR",
            ) from error
        self.made = True

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        for folder in (self.path, self._memory, *_more):  # a notice of interruption makes it as well
            _remove(folder)
        _more.clear()
        if self._held >= 0:
            os.close(self._held)
            self._held = -1


def _hold(path: str, more: int = 0) -> int:
    """Locks a file for as long as this process lives, also against processes of other containers. Raises OSError."""
    import fcntl

    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | more, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd


def _remove_abandoned(place: str) -> None:
    """Removes the folders of a `train` that was killed together with its guardian: nobody holds them any more."""
    try:
        names = os.listdir(place)
    except OSError:
        return
    for name in names:
        if not _is_own_scratch(place, name):
            continue
        try:
            held = _hold(f"{place}/{name}/{_HELD}")
        except OSError:  # in use, or of a version that held none
            continue
        for other in names:
            if other.startswith(name.removesuffix("run")):
                _remove(f"{place}/{other}")
        _remove(f"{SHARED_MEMORY}/{name.removesuffix('run')}memory")
        os.close(held)


def _is_own_scratch(place: str, name: str) -> bool:
    """Whether this is named `trainshed-PID-TIME-run`, and is a folder of this user."""
    parts = name.split("-")
    if len(parts) != 4 or parts[0] != "trainshed" or not parts[1].isdecimal() or parts[3] != "run":
        return False
    try:
        found = os.lstat(f"{place}/{name}")
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _remove(folder: str) -> None:
    """Removes a folder with all that others have left in it: Open MPI's session folders, pip's builds."""
    try:
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                _remove(entry.path)
            else:
                os.unlink(entry.path)
        os.rmdir(folder)
    except OSError:  # not there, or not ours to remove
        pass
