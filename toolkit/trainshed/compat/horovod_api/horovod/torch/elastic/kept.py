"""Commits on disk: what a job that is started again goes on from.

A commit is `horovod-<function>-commit-<number>.pt` in the folder of checkpoints, written by rank 0 with `torch.save`, and
its SHA-256 in a file `.pt.sum` beside it. Numbers grow, also over restarts, which is how `train` sees that a job gets
on. The newest two stay: one may be damaged.

Whoever can write to the folder must not run code here: what is loaded holds tensors, plain values, and values of the
classes of `_harmless`. A state that holds others is kept in memory alone.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import pathlib
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from trainshed.base.files import write_atomic

_KEPT = 2
_BLOCK = 1 << 20


class Kept:
    """The commits of one training function.

    Args:
        folder: of checkpoints.
        name: the function's.
    """

    def __init__(self, folder: str, name: str) -> None:
        self._folder = Path(folder)
        self._stem = f"horovod-{re.sub(r'[^A-Za-z_]+', '-', name).strip('-')}-commit-"
        self._number = max(self._numbers(), default=0)
        self._refused = ""

    @classmethod
    def of_job(cls, environ: Mapping[str, str], name: str) -> Kept | None:
        """Those of the job's folder of checkpoints; None outside of jobs."""
        folder = environ.get("SM_CHECKPOINT_DIR", "")
        return cls(folder, name) if folder else None

    def _numbers(self) -> list[int]:
        names = [path.name for path in self._folder.glob(f"{self._stem}*.pt")]
        digits = [name.removeprefix(self._stem).removesuffix(".pt") for name in names]
        return sorted(int(one) for one in digits if one.isdecimal())

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._stem}{number}.pt"

    @property
    def next_number(self) -> int:
        """The number of the next commit."""
        return self._number + 1

    def write(self, content: dict[str, Any]) -> None:
        """Publishes a commit, and deletes older ones; says once where the state holds what is not kept.

        Raises:
            OSError: the disk does not take it.
        """
        number = self.next_number
        path = self._path(number)
        hidden = path.with_name(f".{path.name}.{os.getpid()}")
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            with open(hidden, "wb") as file:
                torch.save(content, file)
                file.flush()
                os.fsync(file.fileno())
            if self._is_refused(hidden):
                return
            write_atomic(str(sum_of(path)), digest_of(hidden))
            os.replace(hidden, path)
        finally:
            hidden.unlink(missing_ok=True)
        self._number = number
        for old in self._numbers()[:-_KEPT]:
            self._path(old).unlink(missing_ok=True)
            sum_of(self._path(old)).unlink(missing_ok=True)

    def _is_refused(self, path: Path) -> bool:
        """Whether a commit holds classes that a restart would not load."""
        with torch.serialization.safe_globals(_harmless()):
            names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        if names and not self._refused:
            _say(
                f"commits stay in memory, and a restart begins anew: the state holds {', '.join(sorted(names))}, which are"
                " not loaded from disk; keep numbers, texts, lists and tensors, or give the object a state_dict"
            )
        self._refused = self._refused or ", ".join(names)
        return bool(names)

    def newest(self) -> dict[str, Any] | None:
        """The newest commit that is whole and can be read; None where there is none. Says what cannot be read."""
        for number in reversed(self._numbers()):
            path = self._path(number)
            try:
                return _loaded(path)
            except Exception as error:  # a damaged file makes torch and pickle raise what they like
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                _say(f"{path} cannot be read, trying the one before: {reason}")
        return None


def _loaded(path: Path) -> dict[str, Any]:
    try:
        written = sum_of(path).read_text().strip()
    except OSError as error:
        raise OSError(f"its checksum {sum_of(path).name} cannot be read: {error.strerror}") from None
    if digest_of(path) != written:
        raise OSError(f"it is not what {sum_of(path).name} says")
    with torch.serialization.safe_globals(_harmless()):
        content = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(content, dict) or not {"number", "ranks", "content"} <= content.keys():
        raise ValueError("it is not a commit")
    return content


def sum_of(path: Path) -> Path:
    """The path of a commit's checksum."""
    return path.with_name(f"{path.name}.sum")


def digest_of(path: Path) -> str:
    """The SHA-256 of a file, hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _harmless() -> list[Any]:
    """Classes of plain values, whose making has no effect; those of numpy where the script has loaded it."""
    found: list[Any] = [frozenset, range, slice, datetime.datetime, datetime.date, datetime.timedelta, pathlib.PosixPath]
    if numpy := sys.modules.get("numpy"):
        found += [numpy.ndarray, numpy.dtype, *{type(numpy.dtype(code)) for code in numpy.typecodes["All"]}]
        with suppress(AttributeError):
            inner = numpy._core.multiarray
            found += [inner._reconstruct, inner.scalar]
    return found


def _say(text: str) -> None:
    print(f"[horovod] {text}", file=sys.stderr, flush=True)
