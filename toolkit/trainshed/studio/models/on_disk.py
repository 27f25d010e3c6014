"""A model store in a folder. What appears there appears by write, fsync and link or rename, so it is whole."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from trainshed.base.errors import TrainshedError
from trainshed.base.files import open_plain, read_bytes, remove, sync_folder

BLOCK = 1 << 20  # bytes
_MADE = ".tmp"  # ending of what is being written


class OnDisk:
    """The folder; it is made by the first writer."""

    def __init__(self, folder: str) -> None:
        self.folder = os.path.abspath(folder)
        self.shown = self.folder

    def names(self, folder: str) -> list[str]:
        """What lies directly in a folder, sorted."""
        try:
            return sorted(name for name in os.listdir(self.address(folder)) if not name.startswith("."))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise self._unreadable(error) from error

    def keys(self, folder: str) -> dict[str, int]:
        """Bytes of everything below a folder; links are not followed."""
        top = self.address(folder)
        found = {}

        def broken(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):
                raise self._unreadable(error) from error

        for place, _, names in os.walk(top, onerror=broken):
            for name in names:
                path = f"{place}/{name}"
                try:
                    found[os.path.relpath(path, top)] = os.lstat(path).st_size
                except FileNotFoundError:
                    continue
                except OSError as error:
                    raise self._unreadable(error) from error
        return found

    def read(self, key: str, limit: int) -> bytes | None:
        """A small file; b"" where it is larger than any of ours."""
        try:
            return read_bytes(self.address(key), limit)
        except ValueError:
            return b""
        except OSError as error:
            raise self._unreadable(error) from error

    def create(self, key: str, data: bytes) -> bool:
        """Writes aside, then links: a link does not replace."""
        path = self.address(key)
        with self._writing(), _aside(path) as aside:
            _write(aside, data)
            try:
                os.link(aside, path)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
                    raise
                raise TrainshedError(
                    f"{self.folder}: its file system has no hard links, so two writers could not be told apart",
                    hint="put the store on another disk, or on s3://",
                ) from None
            sync_folder(os.path.dirname(path))
        return True

    def replace(self, key: str, data: bytes) -> None:
        """Writes aside, then renames."""
        path = self.address(key)
        with self._writing(), _aside(path) as aside:
            _write(aside, data)
            os.replace(aside, path)
            sync_folder(os.path.dirname(path))

    def put(self, path: str, key: str) -> tuple[int, str]:
        """Copies a file and hashes what it copies, in constant memory."""
        target, count, found = self.address(key), 0, hashlib.sha256()
        with open_plain(path) as source, self._writing():
            os.makedirs(os.path.dirname(target), exist_ok=True)
            fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            with os.fdopen(fd, "wb") as file:
                while block := source.read(BLOCK):
                    file.write(block)
                    found.update(block)
                    count += len(block)
                file.flush()
                os.fsync(file.fileno())
                os.fchmod(file.fileno(), 0o444)
        return count, found.hexdigest()

    def blocks(self, key: str) -> Iterator[bytes]:
        """The bytes of a file; a link in a file's place is refused."""
        path = self.address(key)
        try:
            if os.path.islink(path):
                raise OSError(errno.ELOOP, "a link, which the store never makes", path)
            with open_plain(path) as file:
                while block := file.read(BLOCK):
                    yield block
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(path) from None
        except OSError as error:
            raise self._unreadable(error) from error

    def address(self, key: str) -> str:
        """The path of a file."""
        return f"{self.folder}/{key}"

    def remove(self, key: str) -> None:
        """Removes a file, if it is there."""
        with self._writing():
            try:
                os.unlink(self.address(key))
            except FileNotFoundError:
                pass

    def remove_below(self, folder: str) -> None:
        """Removes a folder and everything in it; a link in its place is removed, not followed."""
        path = self.address(folder)
        with self._writing():
            try:
                os.unlink(path) if os.path.islink(path) else shutil.rmtree(path)
            except FileNotFoundError:
                pass

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Within the block an error is one of writing in the store."""
        try:
            yield
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise TrainshedError(
                f"cannot write in the model store {self.folder}: {error.strerror}",
                hint="make room there; nothing was added or changed" if full else "--store names another one",
            ) from error

    def _unreadable(self, error: OSError) -> TrainshedError:
        return TrainshedError(f"the model store {self.folder} cannot be read: {error.filename or ''}: {error.strerror}")


@contextmanager
def _aside(path: str) -> Iterator[str]:
    """A path beside another one, unique on all hosts that share the folder; what is left there is removed."""
    folder, name = os.path.split(path)
    os.makedirs(folder, exist_ok=True)
    aside = f"{folder}/.{name}.{uuid.uuid4().hex}{_MADE}"
    try:
        yield aside
    finally:
        remove(aside)


def _write(path: str, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
