"""Errors of `train` itself that mean a limit: told as the limit, with what raises it."""

from __future__ import annotations

import errno
import os

import pytest

from trainshed.base.errors import EXIT_USER, ProgramError
from trainshed.container.report.diagnose import failure_of_error, failure_of_start, limit_of
from trainshed.container.supervisor.launch_plan import ProcessSpec, StartError


@pytest.mark.parametrize(
    "error, said, hint",
    [
        (OSError(errno.EMFILE, "Too many open files"), "open files is reached", "--ulimit nofile"),
        (OSError(errno.ENFILE, "Too many open files in system"), "of the whole machine", "fs.file-max"),
        (MemoryError(), "no memory left for train itself", "memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "no memory left for train itself", "memory"),
        (RuntimeError("can't start new thread"), "limit of processes and threads", "--pids-limit"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "processes and threads", "--pids-limit"),
        (OSError(errno.ENOSPC, "No space left on device", "/out/x"), "the disk is full: /out/x", "free some space"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "the disk quota of this user", "free some space"),
        (OSError(errno.EFBIG, "File too large", "/out/x"), "the size of a file is reached: /out/x", "ulimit -f"),
    ],
)
def test_a_limit_is_told_as_what_it_is(error: BaseException, said: str, hint: str) -> None:
    failure = failure_of_error(error, "algo-1", ())

    assert (failure.kind, failure.exit_code) == ("LimitError", EXIT_USER)
    assert said in failure.summary and hint in failure.hint


def test_a_limit_behind_another_error_is_found() -> None:
    try:
        try:
            raise OSError(errno.EMFILE, "Too many open files")
        except OSError as error:
            raise ImportError("cannot load it") from error
    except ImportError as error:
        assert failure_of_error(error, "algo-1", ()).kind == "LimitError"


def test_other_errors_stay_what_they_are() -> None:
    assert limit_of(ValueError("no")) is None and limit_of(FileNotFoundError(2, "No such file")) is None
    assert failure_of_error(ValueError("no"), "algo-1", ()).kind == "InternalError"
    assert failure_of_error(ProgramError("gone"), "algo-1", ()).kind == "ProgramError"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EAGAIN, errno.ENOMEM])
def test_a_process_that_a_limit_keeps_from_starting_names_it(number: int) -> None:
    spec = ProcessSpec(argv=("python",), env={}, cwd="/")
    failure = failure_of_start(StartError(spec, "fork", OSError(number, os.strerror(number))), "algo-1", ())

    assert failure.kind == "LimitError" and failure.summary.startswith("python cannot be started: the")
    assert failure.hint
