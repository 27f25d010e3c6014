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
from collections.abc import Mapping

import trainshed
from trainshed.base.errors import EXIT_INTERNAL, TrainshedError

from ..files.run import Run
from ..job.job import Job
from ..state.stored import Stored, load


class NotStarted(TrainshedError):
    """The job could not be started; the message is the runner's."""

    def __init__(self, message: str, hint: str, details: str, exit_code: int) -> None:
        super().__init__(message, hint=hint, details=details)
        self.exit_code = exit_code


def start(job: Job, environ: Mapping[str, str], again: Run | None = None, *, quiet: bool = False) -> Stored:
    """Starts a runner in the background; the run, once it has a folder.

    Args:
        again: the run that is taken up again.
        quiet: what the runner says before the run has its folder (that it pulls an image, for example) is not shown.

    Raises:
        NotStarted: it could not be started.
    """
    root = os.path.dirname(os.path.dirname(os.path.abspath(trainshed.__file__)))
    # Not `-m`: that would put the working directory before everything else.
    code = f"import sys; sys.path.insert(0, {root!r}); from trainshed.runner.control.detached import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=dict(environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if quiet else None,
        start_new_session=True,  # the terminal's signals are not for it
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        with process.stdin, process.stdout:
            process.stdin.write(pickle.dumps((job, again)))
            process.stdin.close()
            answer = process.stdout.read()
    except BaseException:  # Ctrl-C, most likely
        process.send_signal(signal.SIGTERM)
        process.wait()
        raise
    try:
        told = json.loads(answer)
    except ValueError:
        raise NotStarted(f"the runner exited with {process.wait()} without a message", "", "", EXIT_INTERNAL) from None
    if "folder" not in told:
        process.wait()
        raise NotStarted(told["message"], told["hint"], told["details"], told["exit_code"])
    # The runner is a child of this process: without a wait it would stay a zombie until this process ends.
    threading.Thread(target=process.wait, daemon=True, name=f"wait-{process.pid}").start()
    return load(told["folder"])


def main() -> None:
    """The runner in the background: the job comes on standard input, one line about the start goes to standard output."""
    from .execution import run_job

    job, again = pickle.load(sys.stdin.buffer)  # from the process that started this one, through a pipe of theirs
    answer = os.dup(1)
    os.set_inheritable(answer, False)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    told = False

    def tell(**what: object) -> None:
        nonlocal told
        told = True
        os.write(answer, json.dumps(what).encode())
        os.close(answer)

    def started(run: Run) -> None:
        os.dup2(null, 2)  # its messages go to runner.log
        tell(folder=run.folder)

    try:
        code = run_job(job, os.environ, again=again, started=started)
        if not told:
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
