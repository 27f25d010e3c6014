"""Thousands of damaged job folders: whatever is in them, `train` ends with an exit status and says why.

`TRAINSHED_TEST_MUTATIONS=20000 pytest tests/unit/contract/test_mutated_configs.py` runs that many of them.
"""

from __future__ import annotations

import io
import itertools
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from trainshed.base.errors import EXIT_INTERNAL
from trainshed.container import attempts, main, training
from trainshed.container import parent_death as guardian
from trainshed.container.roster.roster import Alone
from trainshed.container.supervisor.launch_plan import LaunchPlan, Outcome, ProcessResult
from trainshed.machine import hardware
from unit.contract.mutations import Damage

# Cases in the order of their numbers: so many in `make test`, so many more in `make test-all`.
CASES, MORE = 1000, int(os.environ.get("TRAINSHED_TEST_MUTATIONS", "3000"))
REAL_PROCESSES = 25
SECONDS = 120  # a case that takes longer than this hangs
OUR_FRAME = re.compile(r'File "[^"]*/trainshed/')  # the damaged script may have tracebacks of its own


class Hangs(BaseException):
    """Raised into a case that does not end."""


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raises `Hangs` in the block after so many seconds."""

    def ring(_number: int, _frame: object) -> None:
        raise Hangs

    old = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


@contextmanager
def captured() -> Iterator[Any]:
    """Both streams as a real process has them: stderr by file descriptor, stdout as strict UTF-8 text."""
    saved, old_out = os.dup(2), sys.stdout
    sys.stdout = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict")
    with tempfile.TemporaryFile() as errors:
        os.dup2(errors.fileno(), 2)
        try:
            yield lambda: (errors.seek(0), errors.read().decode())[1]
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            sys.stdout = old_out


def end_well(plan: LaunchPlan, *, started: Any, **_: Any) -> Outcome:
    """Instead of the supervisor: every process of the plan exits with 0."""
    started()
    return Outcome(results=tuple(ProcessResult(spec=spec, returncode=0, ended=0.0) for spec in plan.processes))


def check_outcome(base: Path, status: int, errors: str, dry_run: bool) -> None:
    """What holds however a job is damaged."""
    assert isinstance(status, int) and 0 <= status <= 255
    assert status != EXIT_INTERNAL and "InternalError" not in errors
    assert not OUR_FRAME.search(errors), "a traceback of ours"
    if status != 0:
        assert errors.strip(), "a failure is explained"
    if dry_run:
        return
    failure, success = base / "output/failure", base / "output/success"
    if status == 0 and not os.path.lexists(failure):
        assert success.is_file() or "cannot write" in errors
    if status != 0 and not failure.is_file():
        assert "cannot write" in errors or not base.exists()
    assert not (success.is_file() and failure.is_file())


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory where there is one: three thousand folders made and removed are slow on a disk."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as path:
        yield Path(path)


@pytest.mark.safety
@pytest.mark.parametrize("cases", [range(CASES), pytest.param(range(CASES, MORE), marks=pytest.mark.heavy)], ids=str)
def test_no_damaged_job_gets_an_exception_or_a_failure_without_words(
    cases: range, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "run", end_well)
    monkeypatch.setattr(training, "make_roster", lambda *_: Alone("algo-1"))
    # Nothing is started that it could end, and two forks of the process that runs the tests cost more than the case.
    monkeypatch.setattr(guardian.Guardian, "__enter__", lambda self: self)
    monkeypatch.chdir(folder)
    devices = iter(itertools.cycle((["null"], ["nvidia0", "nvidia1", "nvidiactl"], ["neuron0"])))
    monkeypatch.setattr(hardware, "_devices", lambda: next(devices))
    (folder / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "tmp"))
    base = folder / "ml"
    failed = 0
    for number in cases:
        damage = Damage(number)
        damage.build(base)
        dry_run = number % 2 == 0
        environ = {"PATH": "/usr/bin:/bin", "SAGEMAKER_BASE_DIR": str(base), **damage.environ}
        status, errors = -1, ""
        try:
            with captured() as printed:
                try:
                    with alarm(SECONDS):
                        status = main.train(environ, dry_run=dry_run)
                finally:
                    errors = printed()
            check_outcome(base, status, errors, dry_run)
        except BaseException as error:
            what = f"case {number}: {'; '.join(damage.notes)}\nexit status {status}\n{errors[-3000:]}"
            raise AssertionError(f"{what}\n{type(error).__name__}: {error}") from error
        failed += status != 0
    assert len(cases) * 0.2 < failed < len(cases) * 0.9, "some damage is fatal, some is not: else the cases are no use"


@pytest.mark.parametrize("number", range(1, REAL_PROCESSES + 1))
def test_a_damaged_job_in_a_real_process_ends_with_words(number: int, job_tree: Any) -> None:
    damage = Damage(1_000_000 + number)
    damage.build(job_tree.base)
    damage.environ["TRAINSHED_HOST_TIMEOUT_SECONDS"] = "1"  # host names of a damaged cluster never resolve
    damage.environ["PYTHONPATH"] = f"{job_tree.environ()['PYTHONPATH']}:{damage.environ.get('PYTHONPATH', '')}"
    done = job_tree.train(**damage.environ)

    check_outcome(job_tree.base, done.status, done.stderr, dry_run=False)
