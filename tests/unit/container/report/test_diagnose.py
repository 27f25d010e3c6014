"""From how the ranks ended to the one reason: who was first, what is said of it, and what is never said."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

from trainshed.base.errors import EXIT_USER, ProgramError
from trainshed.container.report.diagnose import (
    diagnose,
    failure_of_error,
    failure_of_start,
    first_failure,
    limit_of,
    searchable,
)
from trainshed.container.supervisor.launch_plan import Outcome, ProcessResult, ProcessSpec, StartError
from trainshed.contract.cluster import Cluster
from trainshed.contract.outcome import Failure

CODE = "/opt/ml/code"
TERMINATED, KILLED = -15, -9


def traceback(text: str) -> bytes:
    """What Python prints of an uncaught exception."""
    return f'Traceback (most recent call last):\n  File "{CODE}/train.py", line 7, in main\n    step()\n{text}\n'.encode()


def rank(number: int, returncode: int, ended: float, tail: bytes = b"", **fields: Any) -> ProcessResult:
    """How one rank ended; its traceback, if it printed one, came half a second before."""
    spec = ProcessSpec(argv=("python", "train.py"), env={}, cwd=CODE, label=f"algo-1:{number}", rank=number)
    at = ended - 0.5 if b"Traceback" in tail else None
    return ProcessResult(
        **{"spec": spec, "returncode": returncode, "ended": ended, "tail": tail, "traceback_at": at, **fields}
    )


PEER = traceback("RuntimeError: Connection closed by peer [10.0.0.2]:1234")
BAD = traceback("ValueError: bad label 17")
HOROVOD = traceback(
    "horovod.common.exceptions.HorovodInternalError: allreduce of 'w': rank 1 is gone: its process has ended, or its "
    "host is lost"
)

# What is known of the ranks, and which of them is to blame.
BLAME: dict[str, tuple[list[ProcessResult], int]] = {
    "the only one that failed": ([rank(0, 0, 9), rank(1, 3, 5), rank(2, 0, 9)], 1),
    "the one that ended first": ([rank(0, 2, 9), rank(1, 3, 5)], 1),
    "the one whose traceback came first, though it took longer to end": (
        [rank(0, 1, 10, traceback("OSError: a")), rank(1, 1, 12, BAD, traceback_at=6.0)],
        1,
    ),
    "the one with a reason, not the one that lost its peer": ([rank(0, 1, 5, PEER), rank(1, 1, 6, BAD)], 1),
    "the one with a reason, not the one that says so in other words": (
        [rank(0, 1, 5, b"recv failed: Connection reset by peer\n"), rank(1, 1, 6, BAD)],
        1,
    ),
    "the one that was killed, not the one that lost its peer": ([rank(0, 1, 6, PEER), rank(1, KILLED, 7)], 1),
    "the one that was killed, not the one that Horovod tells of it": ([rank(0, 1, 6, HOROVOD), rank(1, KILLED, 7)], 1),
    "the first of those that lost their peer, if there are no others": ([rank(0, 1, 6, PEER), rank(1, 1, 5, PEER)], 1),
    "none of those that we stopped": ([rank(0, TERMINATED, 6, stopped=True), rank(1, 3, 7)], 1),
    "the one that we stopped while it was failing, not the one that lost its peer": (
        [rank(0, 1, 5, PEER), rank(1, TERMINATED, 6, BAD, stopped=True, traceback_at=4.0)],
        1,
    ),
    "not the one that we stopped and that had once handled an exception": (
        [rank(0, 3, 5), rank(1, TERMINATED, 6, BAD, stopped=True, traceback_at=1.0)],
        0,
    ),
    "not the one that lived on after its exception": (
        [rank(0, 3, 5), rank(1, 4, 6, BAD + b"step\n" * 50, traceback_at=1.0)],
        0,
    ),
    "the one whose own thread found that another is gone comes last": (
        [
            rank(0, -6, 5, b"terminate called after throwing an instance of 'c10::DistBackendError'\n"
                           b"  what():  NCCL watchdog thread terminated with exception: remote process exited\n"),
            rank(1, 1, 6, BAD),
        ],
        1,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("results", "guilty"), BLAME.values(), ids=BLAME)
def test_to_blame_is(results: list[ProcessResult], guilty: int) -> None:
    first = first_failure(Outcome(results=tuple(results)), CODE)
    assert first is not None and first.spec.rank == guilty
    first = first_failure(Outcome(results=tuple(reversed(results))), CODE)
    assert first is not None and first.spec.rank == guilty, "the order of the ranks must not matter"


def test_nobody_is_to_blame_where_all_went_well() -> None:
    assert first_failure(Outcome(results=(rank(0, 0, 1), rank(1, 0, 2))), CODE) is None


def test_after_a_stop_signal_the_one_that_ended_first_speaks_for_all() -> None:
    results = (rank(0, 5, 8, stopped=True), rank(1, TERMINATED, 7, stopped=True))
    first = first_failure(Outcome(results=results, stop_signal=15, stop_at=6.0), CODE)
    assert first is not None and first.spec.rank == 1


@pytest.fixture
def explain(job_tree: Any) -> Callable[..., Failure]:
    """Diagnoses an outcome of a job on one host."""
    job_tree.configure(hyperparameters={"api_token": "tok-71e5c0ffee"})
    job = job_tree.read()

    def run(*results: ProcessResult, hosts: tuple[str, ...] = ("algo-1",), oom: int = 0, **fields: Any) -> Failure:
        cluster = Cluster(hosts=hosts, current_host="algo-1", processes_per_host=max(1, len(results)))
        failure = diagnose(Outcome(results=results, **fields), job, cluster, CODE, oom, ("tok-71e5c0ffee",))
        assert failure is not None
        return failure

    return run


def alone(returncode: int, tail: bytes = b"", **fields: Any) -> ProcessResult:
    """A script without ranks."""
    spec = ProcessSpec(argv=("python", "train.py"), env={}, cwd=CODE)
    return rank(0, returncode, 1.0, tail, **{"spec": spec, **fields})


def test_the_summary_names_rank_host_way_and_exception(explain: Callable[..., Failure]) -> None:
    failure = explain(rank(0, 0, 9), rank(3, 1, 5, BAD))
    assert failure.summary == "rank 3 on algo-1 exited with 1: ValueError: bad label 17"
    assert (failure.kind, failure.place, failure.exit_code, failure.rank) == ("UserError", "train.py:7 in main", 1, 3)


def test_a_script_without_ranks_is_called_so_and_named_by_host_where_there_are_several(
    explain: Callable[..., Failure],
) -> None:
    assert explain(alone(3)).summary == "the script exited with 3, and printed nothing"
    assert explain(alone(3), hosts=("algo-1", "algo-2")).summary.startswith("the script on algo-1 exited with 3")


def test_a_rank_that_we_stopped_while_it_was_failing_failed_for_its_own_reason(explain: Callable[..., Failure]) -> None:
    failure = explain(rank(0, 1, 5, PEER), rank(1, TERMINATED, 6, BAD, stopped=True))
    assert failure.summary == "rank 1 on algo-1 failed: ValueError: bad label 17"
    assert failure.exit_code == 1


def test_of_torchruns_agent_rank_and_status_of_the_first_child_are_taken(explain: Callable[..., Failure]) -> None:
    report = (
        b"step 9\nE1121 02:24:08.881000 10629 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 3) "
        b"local_rank: 1 (pid: 1) of binary: python\n"
        b'Traceback (most recent call last):\n  File "/usr/lib/python3/run.py", line 1, in main\n'
        b"torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n=====\ntrain.py FAILED\n-----\n"
        b"Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-21_02:24:08\n  host      : localhost\n"
        b"  rank      : 1 (local_rank: 1)\n  exitcode  : 3 (pid: 1)\n  error_file: <N/A>\n=====\n"
    )
    failure = explain(alone(1, report))
    assert (failure.summary, failure.exit_code) == ("rank 1 on algo-1 exited with 3; its last line: step 9", 3)
    killed = explain(alone(1, report.replace(b"exitcode  : 3", b"exitcode  : -9")))
    assert (killed.exit_code, killed.signal) == (137, "SIGKILL")


def test_an_exception_that_torch_recorded_for_the_rank_is_taken(explain: Callable[..., Failure], tmp_path: Any) -> None:
    stack = BAD.decode().replace("bad label 17", "the recorded one")
    (tmp_path / "error.json").write_text(
        '{"message": {"message": "x", "extraInfo": {"py_callstack": '
        + repr(stack).replace('"', '\\"').replace("'", '"')
        + "}}}"
    )
    spec = ProcessSpec(argv=("python",), env={"TORCHELASTIC_ERROR_FILE": str(tmp_path / "error.json")}, cwd=CODE, rank=0)
    assert "ValueError: the recorded one" in explain(rank(0, 1, 5, b"noise\n", spec=spec)).summary


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"message": "text"}', '{"message": {"extraInfo": {"py_callstack": 3}}}']
)
def test_a_record_that_is_none_is_passed_over(content: str, explain: Callable[..., Failure], tmp_path: Any) -> None:
    (tmp_path / "error.json").write_text(content)
    spec = ProcessSpec(argv=("python",), env={"TORCHELASTIC_ERROR_FILE": str(tmp_path / "error.json")}, cwd=CODE, rank=0)
    assert "ValueError: bad label 17" in explain(rank(0, 1, 5, BAD, spec=spec)).summary


@pytest.mark.parametrize(
    ("returncode", "fields", "how", "status"),
    [
        (-11, {}, "was killed by SIGSEGV (segmentation fault in native code)", 139),
        (-9, {"oom": 1}, "was killed by the kernel: out of memory", 137),
        (-9, {"stop_signal": 15, "killed": 1}, "was stopped by SIGTERM and killed at the end of the grace period", 137),
        (-15, {"stop_signal": 15}, "was stopped by SIGTERM", 143),
        (7, {"stop_signal": 15}, "was stopped by SIGTERM and exited with 7", 7),
        (255, {}, "exited with 255", 255),
        (-34, {}, "was killed by SIGRTMIN", 162),
        (-40, {}, "was killed by signal 40", 168),
    ],
)
def test_every_way_of_ending_has_its_words(
    returncode: int, fields: dict[str, Any], how: str, status: int, explain: Callable[..., Failure]
) -> None:
    failure = explain(alone(returncode, stopped="stop_signal" in fields), **fields)
    assert how in failure.summary
    assert failure.exit_code == status
    assert failure.kind == ("Interrupted" if "stop_signal" in fields else "UserError")


def test_a_failure_before_the_stop_signal_is_not_blamed_on_the_signal(explain: Callable[..., Failure]) -> None:
    failure = explain(alone(1, BAD), stop_signal=15, stop_at=2.0)
    assert (failure.kind, failure.summary) == ("UserError", "the script exited with 1: ValueError: bad label 17")


@pytest.mark.safety
def test_a_secret_is_nowhere_in_the_failure(explain: Callable[..., Failure]) -> None:
    failure = explain(alone(1, b"using tok-71e5c0ffee\n" + traceback("OSError: tok-71e5c0ffee and https://me:pw@host/x")))
    assert "tok-71e5c0ffee" not in failure.text() and "me:pw" not in failure.text()


def test_the_first_1024_bytes_hold_summary_place_and_hint_of_a_long_exception(explain: Callable[..., Failure]) -> None:
    failure = explain(alone(1, traceback("OSError: [Errno 28] No space left on device " + "\u00e9" * 3000)))
    head = failure.text().encode()[:1024].decode("utf-8", "ignore")
    assert (
        "the script exited with 1: OSError: [Errno 28]" in head
        and "at train.py:7 in main" in head
        and "a disk is full" in head
    )


def test_long_lines_are_cut_in_the_tail_and_for_searching(explain: Callable[..., Failure]) -> None:
    line = b"a" * 40_000 + b"z"
    assert max(len(text) for text in explain(alone(3, line * 1 + b"\n")).tail.splitlines()) <= 500
    short = searchable(line + b"\nnext")
    assert len(short) < 3000 and short.endswith("az\nnext")


def test_an_error_of_ours_is_called_one_and_others_keep_their_kind() -> None:
    failure = failure_of_error(ZeroDivisionError("x"), "algo-1", ())
    assert (failure.kind, failure.exit_code) == ("InternalError", 70)
    assert "defect of trainshed" in failure.hint and "ZeroDivisionError" in failure.details
    failure = failure_of_error(ProgramError("no train.py", hint="add it", details="secret tok"), "algo-1", ("tok",))
    assert (failure.kind, failure.exit_code, failure.hint, failure.details) == ("ProgramError", 1, "add it", "secret ******")


@pytest.mark.parametrize(
    ("stage", "number", "status", "hint"),
    [
        ("exec", 2, 127, "is not in the image"),
        ("exec", 7, 1, "pass large values in a file"),
        ("exec", 8, 126, "another processor architecture"),
        ("exec", 13, 126, "chmod +x prog"),
        ("cwd", 2, 127, "the working directory does not exist"),
        ("exec", 5, 1, ""),
    ],
)
def test_what_cannot_be_started_has_its_status_and_its_hint(stage: str, number: int, status: int, hint: str) -> None:
    spec = ProcessSpec(argv=("prog",), env={}, cwd="/nowhere")
    failure = failure_of_start(StartError(spec, stage, OSError(number, "strange")), "algo-1", ())
    assert (failure.kind, failure.exit_code) == ("LaunchError", status)
    assert hint in failure.hint and bool(hint) == bool(failure.hint)
    assert ("/nowhere" if stage == "cwd" else "prog") in failure.summary


def test_the_report_shows_a_traceback_once_and_the_lines_around_it(explain: Callable[..., Failure]) -> None:
    failure = explain(alone(1, b"epoch 1\n" + BAD + b"closing the logger\n"))

    assert failure.details.count("Traceback") == 1
    assert failure.tail == "epoch 1"
    assert failure.text().count("ValueError: bad label 17") == 2, "in the summary and in the traceback"


def test_a_failure_whose_output_is_a_traceback_alone_has_no_last_lines_besides(
    explain: Callable[..., Failure],
) -> None:
    failure = explain(alone(1, BAD))

    assert failure.tail == "" and "last output" not in failure.text()


# --- Errors of `train` itself that mean a limit: told as the limit, with what raises it ---


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
