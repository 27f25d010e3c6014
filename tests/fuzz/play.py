"""Plays cases: each has a time limit, and nothing of ours may end it but an answer in words."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
import traceback
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from trainshed.base.record import Record

LIMIT = 30.0  # seconds; a case that takes longer hangs


class Result(Record):
    """A case that went wrong."""

    target: str
    number: int
    problem: str


class Hangs(BaseException):
    """Raised into a case that does not end."""


def share(cases: int, first: int, only: str, block: int) -> Iterator[tuple[str, int, int]]:
    """(target, first number, count) of blocks that are so many cases together."""
    from fuzz.targets import TARGETS

    chosen = {name: part for name, (_, part) in TARGETS.items() if only in name}
    whole = sum(chosen.values())
    for name, part in chosen.items():
        count = max(1, cases * part // whole)
        for start in range(0, count, block):
            yield name, first + start, min(block, count - start)


def play(job: tuple[int, str, int, int]) -> tuple[str, int, float, list[Result]]:
    """Plays a block of one target's cases: (target, cases, seconds of the slowest, what went wrong)."""
    from fuzz.targets import TARGETS

    seed, name, first, count = job
    if name == "plan files":
        import trainshed.parallel.plan.plan_file  # noqa: F401 (loads torch, which takes seconds and is no case's fault)
    target = TARGETS[name][0]
    slowest, wrong = 0.0, []
    home = os.getcwd()
    root = tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    os.environ |= {"XDG_STATE_HOME": f"{root}/state", "HOME": root, "TMPDIR": root}
    tempfile.tempdir = root
    before = signal.signal(signal.SIGALRM, _ring)
    try:
        for number in range(first, first + count):
            place = Path(root, str(number))
            place.mkdir()
            began = time.monotonic()
            signal.setitimer(signal.ITIMER_REAL, LIMIT)
            try:
                for said in target(random.Random(f"{seed}-{name}-{number}"), place):
                    if found := controls(said):
                        wrong.append(Result(name, number, f"control characters in a message: {found}"))
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                trace = "".join(traceback.format_exception(error)[-6:])[-1500:]
                wrong.append(Result(name, number, trace.encode("ascii", "backslashreplace").decode()))
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                os.chdir(home)
            slowest = max(slowest, time.monotonic() - began)
            shutil.rmtree(place, ignore_errors=True)
    finally:
        signal.signal(signal.SIGALRM, before)
        tempfile.tempdir = None
        shutil.rmtree(root, ignore_errors=True)
    return name, count, slowest, wrong


def controls(text: str) -> str:
    """What is in a text that no message may hold, spelled out."""
    if text.isprintable():
        return ""
    bad = {letter for letter in text if letter not in "\n\t\u200c\u200d" and not letter.isprintable()}
    return ", ".join(sorted(ascii(one) for one in bad if unicodedata.category(one) in ("Cc", "Cf", "Cs", "Zl", "Zp")))


def _ring(_number: int, _frame: object) -> None:
    raise Hangs
