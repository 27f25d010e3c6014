"""Commits on disk: what a job that is started again goes on from.

A commit is `horovod-<function>-commit-<number>.pt` in the folder of checkpoints, written by rank 0 with `torch.save`.
Numbers grow, also over restarts, which is how `train` sees that a job gets on. The newest two stay: one may be damaged.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

_KEPT = 2


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
        """Publishes a commit, and deletes older ones.

        Raises:
            OSError: the disk does not take it.
        """
        self._number += 1
        path = self._path(self._number)
        hidden = path.with_name(f".{path.name}.{os.getpid()}")
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            with open(hidden, "wb") as file:
                torch.save(content, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(hidden, path)
        finally:
            hidden.unlink(missing_ok=True)
        for number in self._numbers()[:-_KEPT]:
            self._path(number).unlink(missing_ok=True)

    def newest(self) -> dict[str, Any] | None:
        """The newest commit that can be read; None where there is none. Says what cannot be read."""
        for number in reversed(self._numbers()):
            path = self._path(number)
            try:
                content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=False)
                return content
            except Exception as error:  # a damaged file makes torch and pickle raise what they like
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                print(f"[horovod] {path} cannot be read, trying the one before: {reason}", file=sys.stderr, flush=True)
        return None
