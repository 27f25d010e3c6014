"""How ranks live on when one of them is lost: what passes between `train` and `trainshed.resumable`.

`train` names a folder (`TRAINSHED_IN_PLACE`) where it can start a single rank again. A rank that is inside of its resumable
function reads from the fifo `rank<n>.<life>` in there: that somebody reads it says that the rank can live on. When a rank is
lost, `train` writes a `Word` into the fifo of each other one. They leave their functions, and those of the next life are
their answer.
"""

from __future__ import annotations

import os

from trainshed.base import quick_json
from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

LIFE = "TORCHELASTIC_RESTART_COUNT"  # the variable that counts a job's starts
# What a rank notes beside its fifo, with its process's number: that it has come to its function in a life, and that it has
# left that with an error of its own.
BEGUN, FAILED = ".begun", ".failed"
_MOST = 4096  # bytes that a fifo takes as one (PIPE_BUF)


class Word(Record):
    """A rank was lost. environ: what the reader's variables are from now on, where that differs."""

    environ: dict[str, str]


def fifo_of(folder: str, rank: object, life: object) -> str:
    """Where a rank listens."""
    return f"{folder}/rank{rank}.{life}"


def life_of(environ: Mapping[str, str]) -> str:
    """Which start of the job a process, or what it has made, belongs to."""
    return environ.get(LIFE, "")


def open_fifo(path: str) -> int:
    """Opens a rank's fifo for a word. Raises OSError: nobody reads it."""
    return os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def line_of(word: Word) -> bytes:
    """The line to write. Raises ValueError: it is too long."""
    line = f"{quick_json.dumps(word.plain())}\n".encode()
    if len(line) > _MOST:
        raise ValueError(f"the variables that change have more than {_MOST} bytes")
    return line


def read_word(line: bytes) -> Word | None:
    """The word in a line, None for anything else."""
    try:
        return Word(environ={str(name): str(value) for name, value in quick_json.loads(line)["environ"].items()})
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
