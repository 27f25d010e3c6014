"""Sends a run to MLflow while it runs, where the job's own environment names one (MLFLOW_TRACKING_URI).

A process of its own sends (`studio.tracking.mlflow_live`): a server that is slow, down or broken costs what it would have
been told, never the training. It says one line for each thing that it has to tell:

    run ID           the run in MLflow is there; ranks get its id as MLFLOW_RUN_ID, so that a script's own calls add to it
    problem TEXT     MLflow cannot be reached; it goes on trying
    done NUMBER      all values have been sent, and the run is closed
"""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from trainshed.base.errors import visible
from trainshed.base.secrets import mask_text
from trainshed.base.wings import has_wing
from trainshed.machine.isolation import isolated
from trainshed.machine.streams import read_block

from ..files.run import Run
from ..job.job import Job

ADDRESS, RUN_ID, EXPERIMENT = "MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME"
START_SECONDS = 10.0  # that hosts wait at most for the run in MLflow
END_SECONDS = 20.0  # for what is left when the run is over
_CHOOSES = b"set_experiment"  # in a script: a run of another experiment would be an error to it
_LARGEST = 4 << 20  # bytes of a script that is looked through


class LiveMlflow:
    """The sending of one run.

    Args:
        secrets: variables of the job that were looked up.
        say: prints a message for the user.
    """

    def __init__(self, job: Job, secrets: Mapping[str, str], environ: Mapping[str, str], say: Callable[[str], None]) -> None:
        given = {**job.environment, **secrets}
        self._own = {name: value for name, value in given.items() if name.startswith("MLFLOW_")}
        self._job, self._environ, self._say = job, environ, say
        self._process: subprocess.Popen[bytes] | None = None
        self._said = b""
        self._problem = ""

    def start(self, run: Run) -> None:
        """Starts the process, where the job asks for it."""
        if not self._own.get(ADDRESS):
            return
        if not has_wing("studio"):
            self._say("warning: nothing is sent to MLflow: trainshed.studio is not installed")
            return
        # Of the runner's own variables those of another MLflow would mix with the job's.
        kept = {name: value for name, value in self._environ.items() if not name.startswith("MLFLOW_")}
        patience = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
        experiment = self._own.get(EXPERIMENT) or self._job.name
        try:
            self._process = subprocess.Popen(
                isolated("trainshed.studio.tracking.mlflow_live", run.folder, experiment),
                env={**kept, **patience, **self._own},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # the terminal's Ctrl-C is for the runner alone
                cwd="/",
            )
        except OSError as error:
            self._say(f"warning: nothing is sent to MLflow: {error.strerror}")

    def joined(self, run: Run) -> Run:
        """The run whose ranks know their run in MLflow, once that is there; waits for it, for a while."""
        if self._process is None:
            return run
        found = self._told(b"run ", time.monotonic() + START_SECONDS)
        address = mask_text(self._own[ADDRESS])
        if not found:
            why = self._problem or f"{address} has not answered within {START_SECONDS:g} s"
            self._say(f"warning: MLflow: {why}; the job starts, and is sent as soon as that is possible")
            return run
        self._say(f"sending to MLflow at {address}, run {found}")
        if RUN_ID in self._own:
            return run
        if any(_chooses(f"{host.folder}/code") for host in run.hosts[:1]):
            self._say(f"note: the script calls set_experiment: its own runs in MLflow stand beside this one (no {RUN_ID})")
            return run
        return replace(run, job=replace(run.job, environment={**run.job.environment, RUN_ID: found}))

    def finish(self) -> None:
        """Has the rest sent, and says what could not be; for a while."""
        if self._process is None:
            return
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        done = self._told(b"done ", time.monotonic() + END_SECONDS)
        if not done:
            why = f": {self._problem}" if self._problem else f" within {END_SECONDS:g} s of its end"
            self._say(f"warning: not all of the run is in MLflow{why}; `trainshed export mlflow RUN` sends the rest")
            process.kill()
        process.wait()
        process.stdout.close()
        self._process = None

    def _told(self, what: bytes, until: float) -> str:
        """What the process tells after this word, "" where it ends or does not until then; problems are kept."""
        assert self._process is not None and self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        os.set_blocking(descriptor, False)
        while True:
            *lines, self._said = self._said.split(b"\n")
            for number, line in enumerate(lines):
                text = visible(line.decode("utf-8", "replace"))
                if line.startswith(b"problem "):
                    self._problem = text.partition(" ")[2]
                if line.startswith(what):
                    self._said = b"\n".join([*lines[number + 1 :], self._said])
                    return text.partition(" ")[2]
            if (what == b"run " and self._problem) or time.monotonic() >= until:
                return ""
            select.select([descriptor], [], [], max(0.0, until - time.monotonic()))
            block = read_block(descriptor)
            if block == b"" or (block is None and not self._alive()):
                return ""
            self._said += block or b""

    def _alive(self) -> bool:
        return self._process is not None and self._process.poll() is None


def _chooses(folder: str) -> bool:
    """Whether a script below a folder chooses its experiment in MLflow itself."""
    for place, _, names in os.walk(folder):
        for name in names:
            if name.endswith(".py"):
                try:
                    with open(f"{place}/{name}", "rb") as file:
                        if _CHOOSES in file.read(_LARGEST):
                            return True
                except OSError:
                    continue
    return False
