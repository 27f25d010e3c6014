"""Whether a run that has ended was interrupted: what its ranks answered, and how they ended."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from trainshed.container.notices import Interruption, Notices
from trainshed.container.supervisor.launch_plan import Outcome, ProcessResult, ProcessSpec
from trainshed.contract.wire.notice import Acknowledgement, write_answer


def rank(number: int, returncode: int, stopped: bool = True) -> ProcessResult:
    spec = ProcessSpec(argv=("train.py",), env={}, cwd="/", rank=number)
    return ProcessResult(spec=spec, returncode=returncode, ended=1.0, stopped=stopped)


def interruption(folder: Path, answered: tuple[int, ...], *results: ProcessResult) -> Interruption | None:
    """What the notices say of a run that another host stopped."""
    path = str(folder / "notices/notice.json")
    notices = Notices(path, {}, lambda _: None, watch=False, exit_code=75)
    notices.interrupted_elsewhere("algo-2: stopped by SIGTERM", 110.0)
    for number in answered:
        write_answer(path, Acknowledgement(rank=number, step=15, checkpoint="/c/step-15", reason="SIGTERM received"))
    return notices.interruption(Outcome(results=results, stopped_by="algo-2: stopped by SIGTERM"), len(results))


def test_a_rank_that_has_saved_and_meets_the_signal_while_it_ends_was_interrupted(tmp_path: Path) -> None:
    found = interruption(tmp_path, (0, 1), rank(0, -signal.SIGTERM), rank(1, 0))

    assert found is not None and (found.exit_code, found.step) == (75, 15)


@pytest.mark.parametrize(
    ("answered", "result"),
    [
        pytest.param((), rank(0, -signal.SIGTERM), id="it has not saved"),
        pytest.param((0,), rank(0, 1), id="it failed after it had saved"),
        pytest.param((0,), rank(0, -signal.SIGSEGV), id="it crashed after it had saved"),
        pytest.param((0,), rank(0, -signal.SIGTERM, stopped=False), id="somebody else's signal ended it"),
    ],
)
def test_another_end_stays_a_failure(answered: tuple[int, ...], result: ProcessResult, tmp_path: Path) -> None:
    assert interruption(tmp_path, answered, result) is None
