"""The process that uploads: `python -m trainshed.container.intermediate.uploader FOLDER s3://BUCKET/PREFIX/`.

It uploads a file when that has been closed, even if it is deleted meanwhile (`waiting`), and once more when it changes. All
that is left follows when its standard input ends, which is how `train` says that the job is over. A line on standard output
says that it watches.
"""

from __future__ import annotations

import os
import resource
import stat
import sys
import threading
from functools import partial
from threading import Thread

from trainshed.base import s3
from trainshed.machine.console import say

from .inotify import InotifyWatch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    Put = Callable[[str, str, str], None]  # path, bucket, key


MISSING = 3  # exit status: some files have not been uploaded
_FOR_OTHERS = 128  # descriptors that S3's client may need


class Uploader:
    """Keeps track of what has been uploaded of a folder, and in which state."""

    def __init__(self, folder: str, uri: str, put: Put, say: Callable[[str], None]) -> None:
        self.folder = folder
        self.put = put
        self.say = say
        self.bucket, self.prefix = s3.split_uri(uri)
        self.done: dict[str, tuple[int, int, int]] = {}  # path -> what it was like when it was uploaded
        self.failed: dict[str, int] = {}  # path -> descriptor of what could not be uploaded

    def upload_held(self, path: str, fd: int) -> None:
        """Uploads a file by its descriptor, -1 for none; keeps that for `rest` where it fails."""
        release(self.failed.pop(path, -1))
        if self.upload(path, fd=fd):
            release(fd)
        else:
            self.failed[path] = fd

    def upload(self, path: str, again: bool = False, fd: int = -1) -> bool:
        """Uploads a file unless it is there already as it is; False where that failed, which is said.

        Args:
            again: whether this is the last attempt, so that failing is final.
            fd: a descriptor of the file, which then may be deleted.
        """
        source = f"/proc/self/fd/{fd}" if fd >= 0 else path
        try:
            status = os.stat(source)
        except OSError:  # gone already
            return True
        if not stat.S_ISREG(status.st_mode):
            return True
        state = (status.st_mtime_ns, status.st_size, status.st_ino)
        if self.done.get(path) == state:
            return True
        try:
            self.put(source, self.bucket, self.prefix + os.path.relpath(path, self.folder))
        except Exception as error:
            if os.path.exists(source):
                later = "" if again else "; tried again at the end"
                self.say(f"intermediate output: {path} cannot be uploaded{later}: {s3.explain(error)}")
            return False
        self.done[path] = state
        return True

    def rest(self) -> int:
        """Everything that is not there yet, or has changed; how many files did not get there."""
        missing = 0
        for folder, _, names in os.walk(self.folder):
            for name in sorted(names):
                missing += not self.upload(f"{folder}/{name}", again=True)
        deleted = [(path, fd) for path, fd in self.failed.items() if fd >= 0 and not os.path.exists(path)]
        return missing + sum(not self.upload(path, again=True, fd=fd) for path, fd in deleted)


def _put(client: Any, path: str, bucket: str, key: str) -> None:
    """Uploads a file and compares what has arrived. Raises OSError and boto3's errors."""
    if problem := s3.upload_verified(client, path, bucket, key):
        raise OSError(problem)


def check(client: Any, uri: str) -> None:
    """Says at the start what will keep files from getting there, if anything does; each is tried all the same."""
    bucket, key = s3.split_uri(uri)
    try:
        s3.check_writable(client, bucket, f"{key}.check")
    except Exception as error:
        say(f"warning: intermediate output cannot be uploaded to {uri}: {s3.explain(error)}; {s3.CHECK}")


def main(folder: str, uri: str) -> int:
    """Watches and uploads until standard input ends; 1 where nothing can be uploaded at all, `MISSING` where files are
    not there in the end."""
    held = UploadQueue()
    try:
        Thread(target=keep, args=(InotifyWatch(folder), held, 0), daemon=True).start()
        print("watching", flush=True)
        client = s3.make_client(os.environ)
    except ImportError:
        say(f"warning: intermediate output stays in this container: {s3.NOT_INSTALLED} ({s3.INSTALL})")
        return 1
    except Exception as error:
        say(f"warning: intermediate output stays in this container: {s3.explain(error)}")
        return 1
    check(client, uri)
    uploader = Uploader(folder, uri, partial(_put, client), say)
    while (file := held.take()) is not None:
        uploader.upload_held(*file)
    return MISSING if uploader.rest() else 0


class UploadQueue:
    """A queue of files, oldest first; of a path only the newest file waits, as only that would stay on S3."""

    def __init__(self) -> None:
        self._files: dict[str, int] = {}  # path -> descriptor, -1 where the file is not held
        self._over = False
        self._changed = threading.Condition()
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self._most = most - _FOR_OTHERS

    def add(self, paths: Iterable[str]) -> None:
        """Holds what is there and is a file."""
        for path in paths:
            fd = self._open(path)
            if fd is None:
                continue
            with self._changed:
                release(self._files.pop(path, -1))
                self._files[path] = fd
                self._changed.notify()

    def end(self) -> None:
        """Nothing will be added any more."""
        with self._changed:
            self._over = True
            self._changed.notify()

    def take(self) -> tuple[str, int] | None:
        """The next file, as soon as there is one: its path and descriptor, -1 for none. None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._files or self._over)
            path = next(iter(self._files), None)
            return None if path is None else (path, self._files.pop(path))

    def _open(self, path: str) -> int | None:
        """A descriptor, -1 where the file is there and cannot be held, None where there is no file."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError:  # the upload says why
            return -1
        if stat.S_ISREG(os.fstat(fd).st_mode) and fd < self._most:
            return fd
        os.close(fd)
        return -1


def keep(watch: InotifyWatch, held: UploadQueue, over: int) -> None:
    """Holds what is written until `over` can be read; a thread of its own, so that no upload delays it."""
    try:
        while not watch.wait(over):
            held.add(watch.take())
        held.add(watch.take())
    finally:
        held.end()


def release(fd: int) -> None:
    """Lets a file go."""
    if fd >= 0:
        os.close(fd)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
