"""A small folder of this run's own, for files between `train` and the ranks; `tempfile` would cost a third of the start."""

from __future__ import annotations

import os
import time

from trainshed.base.errors import TrainshedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


_more: list[str] = []  # folders elsewhere that go when the scratch does


def own_folder(what: str) -> str:
    """A folder of this run's own that is removed at its end: packages or code, where their usual place is read-only.

    Its name starts like the scratch's, so that whoever started a `train` that was killed can find it.
    """
    import tempfile

    _more.append(tempfile.mkdtemp(prefix=f"trainshed-{os.getpid()}-{what}-"))
    return _more[-1]


class Scratch:
    """Use in a `with` block: `path` is a name from the start, a folder after `make`, and nothing after the block."""

    def __init__(self, environ: Mapping[str, str], last_resort: str) -> None:
        places = [place for place in (environ.get("TMPDIR"), "/tmp", "/var/tmp", "/dev/shm", last_resort) if place]
        self.place = next((place for place in places if os.access(place, os.W_OK | os.X_OK)), last_resort)
        self.path = f"{self.place}/trainshed-{os.getpid()}-{time.time_ns():x}"
        self.made = False

    def make(self) -> None:
        """Makes the folder, for this user alone.

        Raises:
            TrainshedError: no place for temporary files can be written.
        """
        try:
            os.mkdir(self.path, 0o700)
        except OSError as error:
            raise TrainshedError(
                f"no temporary folder can be made in {self.place}: {error.strerror}",
                hint="mount a writable /tmp or set TMPDIR",
            ) from error
        self.made = True

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        for folder in (self.path, *_more):  # a notice of interruption makes it as well
            try:
                _empty(folder)
                os.rmdir(folder)
            except OSError:
                pass
        _more.clear()


def _empty(folder: str) -> None:
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):  # Open MPI's session folders, where it had no time to remove them
            _empty(entry.path)
            os.rmdir(entry.path)
        else:
            os.unlink(entry.path)
