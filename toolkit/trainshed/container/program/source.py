"""Brings the user's code to this host: the code folder, an archive, a channel, or S3."""

from __future__ import annotations

import os

from trainshed.base.errors import ProgramError, shorten
from trainshed.contract.paths import ARCHIVES
from trainshed.machine.scratch import own_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trainshed.contract.job import TrainingJob

_UNPACKING = ".unpacking-"  # a folder that is being filled: never the code, whatever it contains
_UNPACKED = ".unpacked-"  # a folder that is complete; its entries are being moved to the folder above it
_ORIGIN = ".trainshed-source"  # a file among unpacked code: the digest of the source that it came from


def fetch_source(job: TrainingJob, environ: Mapping[str, str], say: Callable[[str], None]) -> str:
    """Returns the folder with the user's code; "" if there is none (the program may still be an absolute path).

    /opt/ml/code is used unchanged unless it is empty; else the source that the job names; else the `code` channel.

    Raises:
        ProgramError: the source does not exist, or cannot be fetched or unpacked.
    """
    code = job.paths.code
    if _unsettled(code):
        # Another host may be at it: a folder that is being filled is waited for, one that was left is completed.
        from .turn import Turn

        with Turn(code, "unpacking the source code", job.settings.install_timeout_seconds, say):
            _settle(code)
    named = job.source if job.source and os.path.abspath(job.source.removeprefix("file://")) != code else ""
    if has_entries(code):
        if named and _origin(code) != _digest(named):
            say(f"{code} is not empty and runs as it is: the job's source {shorten(named)} is not fetched")
        return code
    if named:
        return _bring(job.source, job, environ, say)
    channel = job.channel("code")
    if channel and has_entries(channel.path):
        archives = [name for name in sorted(os.listdir(channel.path)) if name.endswith(ARCHIVES)]
        if len(archives) == 1 and len([n for n in os.listdir(channel.path) if not n.startswith(".")]) == 1:
            return _bring(f"{channel.path}/{archives[0]}", job, environ, say)
        return channel.path
    return code if os.path.isdir(code) else ""


def has_entries(folder: str) -> bool:
    """Returns whether the folder has entries other than the remains of an interrupted unpacking."""
    try:
        with os.scandir(folder) as entries:
            return any(not entry.name.startswith((_UNPACKING, _UNPACKED, _ORIGIN)) for entry in entries)
    except OSError:
        return False


def _unsettled(code: str) -> bool:
    """Whether an unpacking is under way or was interrupted here."""
    try:
        # A listing made while names change can miss one; the second sees all that began before the first ended.
        return bool(os.listdir(code)) and any(name.startswith((_UNPACKING, _UNPACKED)) for name in os.listdir(code))
    except OSError:
        return False


def _digest(source: str) -> str:
    """Tells sources apart without keeping what their URLs hold."""
    import hashlib

    return hashlib.sha256(source.encode("utf-8", "surrogateescape")).hexdigest()


def _note_origin(folder: str, source: str) -> None:
    """Lets later hosts and runs know the code as the job's own; without it they say that it hides the source."""
    from contextlib import suppress

    with suppress(OSError):  # an archive may have an entry of this name, a link even
        place = os.open(f"{folder}/{_ORIGIN}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
        with open(place, "w", encoding="ascii") as file:
            file.write(_digest(source))


def _origin(code: str) -> str:
    """The digest of the source that was unpacked here; "" for code that came otherwise."""
    try:
        with open(f"{code}/{_ORIGIN}", encoding="ascii") as file:
            return file.read(100)
    except (OSError, ValueError):
        return ""


def _settle(code: str) -> None:
    """Moves completely unpacked code into the code folder; an earlier run may have been killed while it did so."""
    try:
        whole = [name for name in os.listdir(code) if name.startswith(_UNPACKED)]
    except OSError:
        return
    for folder in whole:
        try:
            for name in os.listdir(f"{code}/{folder}"):
                os.rename(f"{code}/{folder}/{name}", f"{code}/{name}")
            os.rmdir(f"{code}/{folder}")
        except OSError as error:
            raise ProgramError(
                f"the source code could not be moved from {code}/{folder} to {code}: {error.strerror}",
                hint="empty that folder, so that the code is unpacked again",
            ) from error


def _bring(source: str, job: TrainingJob, environ: Mapping[str, str], say: Callable[[str], None]) -> str:
    if source.startswith("file://"):
        source = source[len("file://") :]
    if source.startswith("s3://"):
        from .download import download

        def fill(folder: str) -> None:
            _unpack_download(download(source, folder, environ, say), folder)

        return _in_folder(job, environ, say, fill)
    if "://" in source:
        scheme = source.split("://", 1)[0]
        raise ProgramError(
            f"the source directory {source!r} cannot be fetched: {scheme}:// is not supported",
            hint="use a folder, a .tar.gz, .tar or .zip file, or s3://bucket/key",
        )
    if os.path.isdir(source):
        return os.path.abspath(source)
    if not os.path.exists(source):
        raise ProgramError(
            f"the source directory {source} does not exist",
            hint="sagemaker_submit_directory must be a folder or archive in this container, or an s3:// URI",
        )
    if not os.path.isfile(source):  # a FIFO would be waited for
        raise ProgramError(f"the source directory {source} is neither a folder nor a file")
    if source.endswith(".py") or source.endswith(".sh"):
        return os.path.dirname(os.path.abspath(source))
    return _in_folder(job, environ, say, lambda folder: _unpack(source, folder))


def _in_folder(job: TrainingJob, environ: Mapping[str, str], say: Callable[[str], None], fill: Callable[[str], None]) -> str:
    """Fills the code folder by way of a folder beside it, so that an interrupted unpacking is never taken for the code."""
    import shutil
    import tempfile

    from .turn import Turn

    code = job.paths.code
    try:
        os.makedirs(code, exist_ok=True)
        os.rmdir(tempfile.mkdtemp(prefix=_UNPACKING, dir=code))
    except OSError:  # /opt/ml/code is read-only, or this user may not write there
        code = own_folder("code", environ, job.paths)
    try:
        # The hosts of a job may share the folder: processes on one machine.
        with Turn(code, "unpacking the source code", job.settings.install_timeout_seconds, say):
            if has_entries(code):  # another host was first
                return code
            aside = tempfile.mkdtemp(prefix=_UNPACKING, dir=code)
            try:
                fill(aside)
                _note_origin(aside, job.source)
                os.rename(aside, f"{code}/{_UNPACKED}{os.path.basename(aside)[len(_UNPACKING) :]}")
            finally:
                shutil.rmtree(aside, ignore_errors=True)
            _settle(code)
    except OSError as error:
        raise ProgramError(
            f"the source code could not be unpacked to {code}: {error.strerror or error}",
            hint="free some space there, or set SAGEMAKER_BASE_DIR to a larger disk" if error.errno == 28 else "",
        ) from error
    return code


def _unpack(source: str, folder: str) -> None:
    from trainshed.base.archive import unpack

    unpack(source, folder)


def _unpack_download(path: str, folder: str) -> None:
    if path.endswith(ARCHIVES):
        archive = f"{folder}/.downloaded-source"  # out of the way of a member that has the archive's own name
        os.rename(path, archive)
        _unpack(archive, folder)
        os.unlink(archive)
