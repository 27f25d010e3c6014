"""A rank's notes for `train` while no checkpoint can be made: `output/data/run/<host>.checkpoints-rank<n>`.

The file is there from the first save that failed until the next one that succeeds, so that a job which trains on without
checkpoints says so at its end, too.
"""

from __future__ import annotations

import os

from trainshed.base import quick_json
from trainshed.base.errors import one_line
from trainshed.base.files import read_bytes, remove, write_atomic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

LARGEST = 1 << 16  # bytes
_FOLDER = "SM_OUTPUT_DATA_DIR"
_INFIX = ".checkpoints-rank"


def note(environ: Mapping[str, str], *, step: int, failures: int, reason: str) -> None:
    """Notes that no checkpoint of `step` could be made, the last of `failures` in a row; without a job's folder, nothing."""
    if path := _path(environ):
        try:
            write_atomic(path, quick_json.dumps({"step": step, "failures": failures, "reason": reason}))
        except OSError:  # the same full disk, most likely; the line on the console is there
            pass


def clear(environ: Mapping[str, str]) -> None:
    """Checkpoints can be made again."""
    if path := _path(environ):
        remove(path)


def take(folder: str, host: str) -> str:
    """One line about a host's checkpoints that could not be made, "" while all is well; the notes are removed.

    Args:
        folder: where the run records are.
    """
    worst: tuple[int, int, str] = (0, 0, "")
    try:
        names = os.listdir(folder)
    except OSError:
        return ""
    for name in names:
        if not name.startswith(f"{host}{_INFIX}"):
            continue
        try:
            told = quick_json.loads(read_bytes(f"{folder}/{name}", LARGEST) or b"{}")
            worst = max(worst, (int(told["failures"]), int(told["step"]), str(told["reason"])))
        except (OSError, ValueError, KeyError, TypeError, ArithmeticError, RecursionError):
            pass
        remove(f"{folder}/{name}")
    failures, step, reason = worst
    if not failures:
        return ""
    times = "the last checkpoint" if failures == 1 else f"the last {failures} checkpoints"
    return one_line(f"{times} (step {step}) could not be made: {reason}")


def _path(environ: Mapping[str, str]) -> str:
    folder, host = environ.get(_FOLDER, ""), environ.get("SM_CURRENT_HOST", "")
    rank = environ.get("RANK") or "0"
    if not folder or not host or "/" in host or "/" in rank:
        return ""
    return f"{folder}/run/{host}{_INFIX}{rank}"
