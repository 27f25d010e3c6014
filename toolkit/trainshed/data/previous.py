"""The model that a training goes on from: what the channel `model` has, as a folder.

The platform's incremental training gives the previous job's model.tar.gz in a channel of that name (File mode), and
`trainshed run --from-run` does so, too; the archive is unpacked once on each host, by whichever rank comes first.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from contextlib import suppress

from trainshed.base.errors import TrainshedError, some
from trainshed.contract.wire.variables import NOTICE_FILE

from .channels import facts_of
from .formats.errors import DataError
from .user_cache import own_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

CHANNEL = "model"
ARCHIVE = "model.tar.gz"  # the platform's name
_ENDINGS = (".tar.gz", ".tgz")
_GIVE = f"trainshed run --from-run RUN gives one, or a channel `{CHANNEL}` with a {ARCHIVE} or its files"
_DEEPEST = 3  # folders that an archive may lie below the channel's: PREFIX/JOB/output/model.tar.gz


def has_previous_model(environ: Mapping[str, str] | None = None) -> bool:
    """Returns whether the job has a channel `model`."""
    try:
        facts_of(CHANNEL, os.environ if environ is None else environ)
    except DataError:
        return False
    return True


def previous_model(environ: Mapping[str, str] | None = None) -> str:
    """The folder with the previous model's files, as that job left them in its SM_MODEL_DIR.

    That is the channel `model` itself, or a folder in which its archive was unpacked; do not write to it. All ranks of a
    host may call this at once, and get the same folder.

    Raises:
        DataError: the job has no such channel, it is empty or a pipe, it has several archives, or one that is damaged,
            hostile, or larger than the free space.
    """
    environ = os.environ if environ is None else environ
    if not has_previous_model(environ):
        raise DataError(f"there is no previous model: the job has no channel {CHANNEL!r}", hint=_GIVE)
    facts = facts_of(CHANNEL, environ)
    if facts.input_mode == "Pipe":
        raise DataError(f"the channel {CHANNEL} is a pipe: a model cannot be read from one", hint="set input_mode to File")
    archive = _archive(facts.path)
    return _unpacked(archive, environ) if archive else facts.path


def _archive(folder: str) -> str:
    """The archive to unpack, "" where the folder holds the files themselves. Raises DataError."""
    try:
        held = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError as error:
        raise DataError(f"the channel {CHANNEL}: {folder} cannot be listed: {error.strerror}", hint=_GIVE) from error
    if not held:
        raise DataError(f"the channel {CHANNEL} is empty: {folder} has no file", hint=_GIVE)
    if ARCHIVE in held:
        return f"{folder}/{ARCHIVE}"
    if len(held) == 1 and held[0].endswith(_ENDINGS):
        return f"{folder}/{held[0]}"
    if not any(os.path.isfile(f"{folder}/{name}") for name in held):  # a prefix that has more than the one object
        below = _below(folder)
        if len(below) == 1:
            return below[0]
        if below:
            shown = some([os.path.relpath(path, folder) for path in below], 3)
            raise DataError(
                f"the channel {CHANNEL} has {len(below)} models: {shown}", hint="give the address of one of them"
            )
    return ""


def _below(folder: str) -> list[str]:
    found = []
    for top, folders, names in os.walk(folder):
        if os.path.relpath(top, folder).count("/") + 1 >= _DEEPEST:
            folders.clear()
        found += [f"{top}/{ARCHIVE}"] * (ARCHIVE in names)
    return sorted(found)


def _unpacked(archive: str, environ: Mapping[str, str]) -> str:
    import fcntl

    try:
        info = os.stat(archive)
        facts = f"{os.path.realpath(archive)}\0{info.st_size}\0{info.st_mtime_ns}"
        name = f"model-{hashlib.sha256(os.fsencode(facts)).hexdigest()[:16]}"
        place = _place(environ)
        with open(f"{place}/{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one rank unpacks, the others wait for it
            folder = f"{place}/{name}"
            if not os.path.isdir(folder):
                _unpack(archive, folder)
    except OSError as error:
        raise DataError(f"the previous model {archive} cannot be unpacked: {error.strerror}: {error.filename}") from error
    return folder


def _unpack(archive: str, folder: str) -> None:
    """Into a folder that appears whole. Raises DataError, OSError."""
    from trainshed.base.archive import unpack

    part = f"{folder}.part"
    shutil.rmtree(part, ignore_errors=True)  # of a rank that was killed meanwhile
    os.mkdir(part, 0o700)
    try:
        unpack(archive, part)
    except BaseException as error:
        shutil.rmtree(part, ignore_errors=True)
        if not isinstance(error, TrainshedError):
            raise
        room = f"set TMPDIR to a folder with more room than {os.path.dirname(folder)} has"
        raise DataError(
            f"the previous model: {error.message}", hint=room if "free" in error.message else "give one that train has made"
        ) from error
    os.rename(part, folder)


def _place(environ: Mapping[str, str]) -> str:
    """A folder of this host's ranks alone: it goes with the job, and outside of jobs stays among temporary files."""
    scratch = os.path.dirname(environ.get(NOTICE_FILE, ""))
    if scratch and _is_ours(scratch) and (place := own_folder(scratch)):
        return place
    try:
        place = own_folder(tempfile.gettempdir())
    except FileNotFoundError:  # there is none that can be written to
        place = ""
    if not place:
        raise DataError("no folder for temporary files can be written", hint="set TMPDIR")
    return place


def _is_ours(folder: str) -> bool:
    """Whether the folder is there, made if need be, and no other user can write to it."""
    try:
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        info = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid() and not info.st_mode & 0o022
