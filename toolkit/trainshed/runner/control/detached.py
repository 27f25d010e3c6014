"""Runs a job in a separate process, which goes on when the process that started it ends.

The asking process hands the job over through a pipe (so that nothing secret lies on disk or on a command line), and waits
until the run has its folder or cannot be started. It runs nothing else of the job: a notebook's threads do no harm.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import trainshed
from trainshed.base.errors import EXIT_INTERNAL, TrainshedError

from ..files.run import Run
from ..job.job import Job
from ..job.places import HERE
from ..state.stored import Stored, load


class NotStarted(TrainshedError):
    """The job could not be started; the message is the runner's."""

    def __init__(self, message: str, hint: str, details: str, exit_code: int) -> None:
        super().__init__(message, hint=hint, details=details)
        self.exit_code = exit_code


@dataclass(frozen=True)
class _Order:
    """What the background process is to do.

    job, again: see `start`. hold: see there. on: the place.
    follow: the folder of a run that goes on elsewhere, "" for a start.
    """

    job: Job | None
    again: Run | None
    hold: int | None
    on: str
    follow: str = ""


def start(
    job: Job,
    environ: Mapping[str, str],
    again: Run | None = None,
    *,
    quiet: bool = False,
    hold: int | None = None,
    on: str = HERE.name,
) -> Stored:
    """Starts a runner in the background; the run, once it has a folder.

    Args:
        again: the run that is taken up again.
        quiet: what the runner says before the run has its folder (that it pulls an image, for example) is not shown.
        hold: a descriptor that the runner keeps open for as long as it lives, a lock for example; no host gets it.
        on: the place where it runs; or that it is submitted to, and followed.

    Raises:
        NotStarted: it could not be started.
    """
    return load(_told(_Order(job, again, hold, on), environ, quiet=quiet)["folder"])


def follow(run: Stored, environ: Mapping[str, str], *, hold: int | None = None) -> Stored | None:
    """Has a process in the background follow a run that goes on elsewhere; None where another one does, or it has ended.

    Raises:
        NotStarted: it cannot be followed from here.
    """
    told = _told(_Order(None, None, hold, run.place.name, run.folder), environ, quiet=True)
    return load(told["folder"]) if told["folder"] else None


def _told(order: _Order, environ: Mapping[str, str], *, quiet: bool) -> dict[str, str]:
    """What the process says that has got an order: its `folder`, "" where there was nothing to do."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(trainshed.__file__)))
    # Not `-m`: that would put the working directory before everything else.
    code = f"import sys; sys.path.insert(0, {root!r}); from trainshed.runner.control.detached import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=dict(environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if quiet else None,
        pass_fds=() if order.hold is None else (order.hold,),
        start_new_session=True,  # the terminal's signals are not for it
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        with process.stdin, process.stdout:
            process.stdin.write(pickle.dumps(order))
            process.stdin.close()
            answer = process.stdout.read()
    except BaseException:  # Ctrl-C, most likely
        process.send_signal(signal.SIGTERM)
        process.wait()
        raise
    try:
        told: dict[str, str] = json.loads(answer)
    except ValueError:
        raise NotStarted(f"the runner exited with {process.wait()} without a message", "", "", EXIT_INTERNAL) from None
    if "folder" not in told:
        process.wait()
        raise NotStarted(told["message"], told["hint"], told["details"], int(told["exit_code"]))
    # The runner is a child of this process: without a wait it would stay a zombie until this process ends.
    threading.Thread(target=process.wait, daemon=True, name=f"wait-{process.pid}").start()
    return told


def main() -> None:
    """The runner in the background: the job comes on standard input, one line about the start goes to standard output."""
    order: _Order = pickle.load(sys.stdin.buffer)  # from the process that started this one, through a pipe of theirs
    if order.hold is not None:
        os.set_inheritable(order.hold, False)
    answer = os.dup(1)
    os.set_inheritable(answer, False)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    told = False

    def tell(**what: object) -> None:
        nonlocal told
        told = True
        try:
            os.write(answer, json.dumps(what).encode())
        except BrokenPipeError:  # whoever asked has ended meanwhile; the run goes on
            pass
        os.close(answer)

    def started(run: Run) -> None:
        os.dup2(null, 2)  # its messages go to runner.log
        tell(folder=run.folder)

    try:
        code = _done(order, started)
        if not told and order.follow:
            tell(folder="")
        elif not told:
            tell(message="stopped before the job was started", hint="", details="", exit_code=code)
    except TrainshedError as error:
        code = error.exit_code
        if not told:
            tell(message=error.message, hint=error.hint, details=error.details, exit_code=code)
    except Exception as error:
        code = EXIT_INTERNAL
        if not told:
            said = f"trainshed itself failed: {type(error).__name__}: {error}"
            tell(message=said, hint="please report it", details="", exit_code=code)
    os._exit(code)


def _done(order: _Order, started: Callable[[Run], None]) -> int:
    """Does what was ordered; the exit status."""
    from .execution import run_job, take_up

    if order.follow:
        from ..display.screen import Screen

        screen = Screen()
        try:
            return take_up(load(order.follow), os.environ, screen, started=started) or 0
        finally:
            screen.close()
    assert order.job is not None
    return run_job(order.job, os.environ, again=order.again, started=started, on=order.on)
