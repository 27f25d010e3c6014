"""`metrics.log`: from the user's script into a file of the job. What is not a number goes to media_files.py."""

from __future__ import annotations

import os
import sys
import time

from .points import LONGEST_NAME, PLACES, head_of, tail_of, text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from .media_files import Album

_MOST_HEADS = 10_000
FOLDER_VARIABLE = "SAGEMAKER_METRICS_DIRECTORY"
# Names of what is not a number, unless it is one: of `media.KINDS`, which only those need.
_KINDS = frozenset({"image", "figure", "table", "histogram", "text", "audio"})


class MetricsWriter:
    """Writes one process's file; a child that was forked writes its own."""

    def __init__(self) -> None:
        self._place = ("", 0)  # folder and process of the open file
        self._fd = -1
        self._heads: dict[str, str] = {}  # of names that have been checked
        self._troubled = False
        self._album: Album | None = None

    def log(
        self,
        values: Mapping[str, Any] | None = None,
        /,
        *,
        step: int | None = None,
        epoch: float | None = None,
        **named: Any,
    ) -> None:
        """Writes values of metrics, with the time and this process's rank; every rank may call it.

        They are in `SAGEMAKER_METRICS_DIRECTORY` at once, one JSON object a line. Outside of a job, where that variable
        is not set, the line `metric NAME=VALUE ...` is printed instead. A full disk costs the values and one warning,
        never the job.

        What is not a number is kept as a file beside them, thinned and bounded (docs/metrics.md): below the names `image`,
        `figure`, `table`, `histogram`, `text` and `audio`, below any name where it is a `metrics.Image`, `Figure`, `Table`,
        `Histogram`, `Text` or `Audio`, an image of PIL, a figure, or a DataFrame.

        Args:
            values: by name; anything that `float` takes, a tensor with one element too (which waits for its device).
            step: how many optimizer steps have been made, or whatever the script counts.
            epoch: passes over the data.
            named: values whose names are identifiers: `log(loss=0.25)`.

        Raises:
            TypeError: a value is neither a number nor of these kinds, or `step` is not a whole number.
            ValueError: a name is empty, too long, or one that says where something was measured, such as `step`.
        """
        if step is not None:
            if isinstance(step, bool) or not hasattr(step, "__index__"):
                raise TypeError(f"step must be a whole number, not {step!r}")
            step = step.__index__()
        rank = os.environ.get("RANK", "")
        epoch = None if epoch is None else float(epoch)
        number = int(rank) if rank.isdecimal() else None
        numbers: list[tuple[str, float]] = []
        others: dict[str, Any] = {}
        for name, value in ({**values, **named} if values else named).items():
            if name not in self._heads:
                _check_name(name)
                if name in _KINDS and not _is_number(value):
                    others[name] = value
                    continue
            try:
                numbers.append((name, float(value)))
            except (TypeError, ValueError):
                others[name] = value
        if others:
            self._log_others(others, (step, epoch, number))
        if numbers:
            self._write(numbers, step, epoch, number)

    def _log_others(self, others: dict[str, Any], places: tuple[int | None, float | None, int | None]) -> None:
        if self._album is None:
            from .media_files import Album

            self._album = Album()
        taken = {name: found for name, value in others.items() if (found := self._album.take(name, value))}
        if taken:
            self._album.keep(os.environ.get(FOLDER_VARIABLE, ""), taken, places)

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


def _is_number(value: object) -> bool:
    """Whether it is what metrics of such names have always been."""
    return isinstance(value, (int, float)) or getattr(value, "ndim", None) == 0


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not name or len(name) > LONGEST_NAME or "\n" in name:
        raise ValueError(f"{name!r} is not a name for a metric: it needs 1 to {LONGEST_NAME} characters in one line")
    if name.lower() in PLACES:
        raise ValueError(f"{name!r} says where something was measured: log(..., {name.lower()}=...) beside the values")
