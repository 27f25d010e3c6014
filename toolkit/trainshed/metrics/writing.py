"""`metrics.log`: from the user's script into a file of the job."""

from __future__ import annotations

import os
import sys
import time

from .points import LONGEST_NAME, PLACES, head_of, tail_of, text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import SupportsFloat

_MOST_HEADS = 10_000
FOLDER_VARIABLE = "SAGEMAKER_METRICS_DIRECTORY"


class Writer:
    """Writes one process's file; a child that was forked writes its own."""

    def __init__(self) -> None:
        self._place = ("", 0)  # folder and process of the open file
        self._fd = -1
        self._heads: dict[str, str] = {}  # of names that have been checked
        self._troubled = False

    def log(
        self,
        values: Mapping[str, SupportsFloat] | None = None,
        /,
        *,
        step: int | None = None,
        epoch: float | None = None,
        **named: SupportsFloat,
    ) -> None:
        """Writes values of metrics, with the time and this process's rank; every rank may call it.

        They are in `SAGEMAKER_METRICS_DIRECTORY` at once, one JSON object a line. Outside of a job, where that variable
        is not set, the line `metric NAME=VALUE ...` is printed instead. A full disk costs the values and one warning,
        never the job.

        Args:
            values: by name; anything that `float` takes, a tensor with one element too (which waits for its device).
            step: how many optimizer steps have been made, or whatever the script counts.
            epoch: passes over the data.
            named: values whose names are identifiers: `log(loss=0.25)`.

        Raises:
            TypeError: a value is not a number, or `step` is not a whole one.
            ValueError: a name is empty, too long, or one that says where something was measured, such as `step`.
        """
        if step is not None:
            if isinstance(step, bool) or not hasattr(step, "__index__"):
                raise TypeError(f"step must be a whole number, not {step!r}")
            step = step.__index__()
        rank = os.environ.get("RANK", "")
        epoch = None if epoch is None else float(epoch)
        numbers: list[tuple[str, float]] = []
        for name, value in ({**values, **named} if values else named).items():
            if name not in self._heads:
                _check_name(name)
            try:
                numbers.append((name, float(value)))
            except (TypeError, ValueError) as error:
                raise TypeError(f"the metric {name!r} is not a number: {type(value).__name__}") from error
        if numbers:
            self._write(numbers, step, epoch, int(rank) if rank.isdecimal() else None)

    def _write(self, numbers: list[tuple[str, float]], step: int | None, epoch: float | None, rank: int | None) -> None:
        folder = os.environ.get(FOLDER_VARIABLE, "")
        if not folder:
            print("metric", *_pairs(numbers, step, epoch), flush=True)
            return
        tail = tail_of(time.time(), step, epoch, rank)
        text = "".join([f"{self._head(name)}{text_of(number)}{tail}" for name, number in numbers])
        try:
            self._open(folder)
            os.write(self._fd, text.encode())
        except OSError as error:
            if not self._troubled:
                self._troubled = True
                print(f"trainshed: metrics cannot be written to {folder}: {error.strerror}", file=sys.stderr, flush=True)

    def _head(self, name: str) -> str:
        """The beginning of a metric's lines, made once for each name."""
        head = self._heads.get(name)
        if head is None:
            if len(self._heads) >= _MOST_HEADS:
                self._heads.clear()
            head = self._heads[name] = head_of(name)
        return head

    def _open(self, folder: str) -> None:
        """Opens the file where it is not this process's own yet; its name is new in each life of a process id."""
        if self._place == (folder, os.getpid()):
            return
        os.makedirs(folder, exist_ok=True)
        path = f"{folder}/{os.getpid()}-{time.time_ns() // 1_000_000}.json"
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._place = (folder, os.getpid())


def _pairs(numbers: list[tuple[str, float]], step: int | None, epoch: float | None) -> list[str]:
    places = (("step", step), ("epoch", epoch))
    return [f"{name}={value:g}" for name, value in (*numbers, *places) if value is not None]


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not name or len(name) > LONGEST_NAME or "\n" in name:
        raise ValueError(f"{name!r} is not a name for a metric: it needs 1 to {LONGEST_NAME} characters in one line")
    if name.lower() in PLACES:
        raise ValueError(f"{name!r} says where something was measured: log(..., {name.lower()}=...) beside the values")
