"""The folder of a batch: files that are replaced as a whole, so that a kill at any moment leaves them whole."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar, TypeVar

from trainshed.base.disk_full import Shortage
from trainshed.base.errors import EXIT_JOB, TrainshedError, did_you_mean
from trainshed.base.files import write_atomic
from trainshed.base.locks import hold, is_held
from trainshed.runner.files import code
from trainshed.runner.files.user_dirs import RUNS, state_folder

LARGEST = 16 << 20  # bytes of a file of ours
PATIENCE = 2.0  # seconds: a command that was killed may have left a child that has not let go of the lock yet
IN_PROGRESS, COMPLETED, FAILED, STOPPED = "InProgress", "Completed", "Failed", "Stopped"  # of TrainingJobStatus

Say = Callable[[str], None]
_Own = TypeVar("_Own", bound="Folder")


class NoBatchError(TrainshedError):
    """There is no such batch."""

    exit_code = EXIT_JOB


class Folder:
    """The folder of one batch. A subclass names its files, and says what people read.

    home: the folder that batches of this kind are in. about, lock, log: file names. parts: the folders that it makes.
    noun: what a batch is called. done: what a process does with it (`run`). start, resume: what to do, for a hint.
    busy: what is said while another process works in it, of its path. busy_hint: what to do then.
    """

    home: ClassVar[str]
    about_file: ClassVar[str]
    lock_file: ClassVar[str]
    log_file: ClassVar[str]
    parts: ClassVar[tuple[str, ...]]
    noun: ClassVar[str]
    done: ClassVar[str]
    start: ClassVar[str]
    resume: ClassVar[str]
    busy: ClassVar[str]
    busy_hint: ClassVar[str]

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self._lock = -1

    @property
    def shown(self) -> str:
        """Its path for a person: as short as it can be here."""
        return shown(self.path)

    @property
    def code(self) -> str:
        """Where copies of code are."""
        return f"{self.path}/code"

    @property
    def log(self) -> str:
        """The file that holds what was said."""
        return f"{self.path}/{self.log_file}"

    # --- one process works in it --------------------------------------------------------------------------------------

    def claim(self) -> None:
        """Makes the folder, and makes this process the only one that works in it until it ends.

        Raises:
            TrainshedError: another one does, or the folder holds other things or cannot be used.
        """
        with self.guarded():
            self._refuse_taken()
            for name in self.parts:
                os.makedirs(f"{self.path}/{name}", exist_ok=True)
            deadline = time.monotonic() + PATIENCE
            while (fd := hold(self._lock_path)) is None:
                if time.monotonic() > deadline:
                    pid = self._pid()
                    by = f", by process {pid}" if pid > 0 else ""
                    raise TrainshedError(self.busy.format(self.shown) + by, hint=self.busy_hint)
                time.sleep(0.05)
        self._lock = fd
        try:
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except OSError:  # a full disk costs the PID in a message
            pass

    def _refuse_taken(self) -> None:
        """Raises TrainshedError where the folder holds something else: nothing in it is ours then."""
        try:
            held = set(os.listdir(self.path))
        except FileNotFoundError:
            return
        if held and not held & {self.about_file, self.lock_file, self.parts[0]}:
            other = ", ".join(sorted(held)[:3])
            raise TrainshedError(f"{self.shown} holds other things ({other})", hint="name a new folder with --output")

    def release(self) -> None:
        """Lets another process work here."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @property
    def worker(self) -> int:
        """PID of the process that works here, 0 if none does; -1 where one does and it is not known which."""
        return self._pid() if is_held(self._lock_path) else 0

    @property
    def _lock_path(self) -> str:
        return f"{self.path}/{self.lock_file}"

    def _pid(self) -> int:
        try:
            with open(self._lock_path, "rb") as file:
                text = file.read(20).strip()
        except OSError:
            return -1
        return int(text) if text.isdigit() else -1

    # --- its files ----------------------------------------------------------------------------------------------------

    def write(self, name: str, text: str) -> None:
        """Replaces one of the folder's files. Raises TrainshedError."""
        with self.guarded():
            write_atomic(f"{self.path}/{name}", text)

    def copy_code(self, source: str, leave_out: Iterable[str], environ: Mapping[str, str], say: Say) -> str:
        """Copies code aside, so that all runs have the same whatever is edited meanwhile; the folder of the copy.

        Args:
            leave_out: paths that are not code, besides batches and runs.

        Raises:
            TrainshedError: it cannot be copied.
        """
        above = os.path.dirname(self.path)
        others = [above] if os.path.basename(above) == self.home else []
        leave_out = [*leave_out, self.path, state_folder(environ), f"{source}/{RUNS}", *others]
        found = code.survey(source, leave_out, home=environ.get("HOME", ""), say=say)
        for note in found.notes:
            say(f"warning: {note}")
        aside = f"{self.path}/.code.tmp"
        with self.guarded():
            shutil.rmtree(aside, ignore_errors=True)
            code.copy(found, aside)
        return aside

    # --- what can go wrong --------------------------------------------------------------------------------------------

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Says an OSError in words. Raises TrainshedError."""
        try:
            yield
        except OSError as error:
            raise self.unusable(error) from error

    def unusable(self, error: OSError) -> TrainshedError:
        """What is wrong with the folder, in words."""
        return TrainshedError(
            f"cannot write in the {self.noun}'s folder: {error.filename or self.path}: {error.strerror}",
            hint=f"nothing is lost; make room, then {self.resume}",
        )

    def shortage(self) -> Shortage:
        """Who runs while the disk of this folder is full."""
        return Shortage(self.path, self.unusable)

    # --- which one ----------------------------------------------------------------------------------------------------

    @classmethod
    def find(cls: type[_Own], text: str) -> _Own:
        """A batch by its folder, its name or the beginning of that; the one that was started last for "".

        Raises:
            NoBatchError: there is none, or several begin so.
        """
        home, noun = cls.home, cls.noun
        if text and os.path.isfile(f"{text}/{cls.about_file}"):
            return cls(text)
        if "/" in text:
            raise NoBatchError(f"{text} is not the folder of a {noun}: it has no {cls.about_file}")
        try:
            names = sorted(name for name in os.listdir(home) if os.path.isfile(f"{home}/{name}/{cls.about_file}"))
        except OSError:
            names = []
        if not names:
            raise NoBatchError(f"there are no {noun}s in ./{home}", hint=cls.start)
        if not text:
            return cls(max((f"{home}/{name}" for name in names), key=cls._changed))
        begins = [text] if text in names else [name for name in names if name.startswith(text)]
        if len(begins) == 1:
            return cls(f"{home}/{begins[0]}")
        if begins:
            raise NoBatchError(f"{len(begins)} {noun}s begin with {text!r}: {', '.join(begins)}")
        near = did_you_mean(text, names)
        raise NoBatchError(f"there is no {noun} {text!r} in ./{home}" + (f": {near}" if near else ""))

    @classmethod
    def _changed(cls, path: str) -> float:
        try:
            return os.stat(f"{path}/{cls.about_file}").st_mtime
        except OSError:
            return 0.0


def shown(path: str) -> str:
    """A path as short as it can be for a person here."""
    near = os.path.relpath(path)
    return path if near.startswith("..") else near
