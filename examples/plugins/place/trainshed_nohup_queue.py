"""A place for trainshed: `train` in the background of this machine, as `nohup train &` has it, with a spool folder.

The job goes on when nobody follows it. Its spool folder, `nohup_queue/` of the run's, has its process and its exit status.
"""

from __future__ import annotations

import os
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping
from functools import partial

from trainshed.base.files import remove
from trainshed.contract.wire.variables import RUN_ID
from trainshed.machine.isolation import isolated
from trainshed.machine.signals import STOP_SIGNALS, SignalPipe
from trainshed.places.processes import inherited
from trainshed.places.tail import Tail
from trainshed.places.target import PlaceFields
from trainshed.runner.acting.submission import Follow, Queue, Submission, finish
from trainshed.runner.display.screen import Screen
from trainshed.runner.files import layout
from trainshed.runner.files.ending import Ending, HostEnd
from trainshed.runner.files.metrics import Metrics
from trainshed.runner.files.run import Run, number_in
from trainshed.runner.files.staging import stage
from trainshed.runner.job.job import Job
from trainshed.runner.job.places import Can, Place, refused
from trainshed.runner.state.status import StatusFile
from trainshed.runner.state.stored import Stored
from trainshed.runner.state.verdict import judge

# What is asked about the place; `acts` names what acts there.
PLACE = Place(
    "nohup_queue",
    acts="trainshed_nohup_queue:NohupQueue",
    title="the nohup queue",
    where="in the nohup queue",
    options="options for `--on nohup_queue`",
    can=Can(
        pipe=False,
        fast_file=False,
        mpi=False,
        groups=False,
        retries=False,
        keep_alive=False,
        detach=True,
        tune=False,
        probe=False,
    ),
    key="NohupQueueProcess",
    pattern="[0-9]{1,9}",
)
PID, EXIT = f"{PLACE.name}/pid", f"{PLACE.name}/exit"  # below the run's folder
LOOK_SECONDS = 0.2
LOST = 128 + signal.SIGKILL  # a process that has left no exit status
# $1: the spool folder, $2: the log, then the command. The shell waits, so that the process stays the command's.
SCRIPT = 'pid=$1/pid exit=$1/exit log=$2; shift 2; "$@" >"$log" 2>&1 & echo $! >"$pid"; wait $!; echo $? >"$exit"'


class InBackground(Submission):
    """One job, from its folder to its start."""

    def check(self) -> None:
        """Nothing is needed."""

    def fill(self) -> None:
        """The host's tree, channels that are fetched, and the spool folder."""
        os.makedirs(f"{self.run.folder}/{PLACE.name}", exist_ok=True)
        for name in (PID, EXIT):
            remove(f"{self.run.folder}/{name}")
        layout.place(self.run, interface="", say=self.screen.say)
        stage(self.run, self.environ, self.screen.say, status=self.screen.status, blind=PLACE.obstacle("fast_file"))

    def submit(self, secrets: Mapping[str, str]) -> str:
        """Starts `train`; what `status.json` says of it."""
        run, host = self.run, self.run.hosts[0]
        own = {"SAGEMAKER_BASE_DIR": host.base, "TRAINING_JOB_NAME": run.name, RUN_ID: run.id}
        subprocess.Popen(
            ["sh", "-c", SCRIPT, "sh", f"{run.folder}/{PLACE.name}", run.log(host.name), *command_of(run.job)],
            env={**inherited(self.environ), **own, **run.job.environment, **secrets},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a terminal that is closed does not end it
        )
        while (process := number_in(f"{run.folder}/{PID}")) is None:
            time.sleep(0.01)
        self.status.data["Trainshed"] |= {PLACE.key: process}
        self.screen.say(f"{run.name}: process {process}, in {run.folder}")
        return f"Process {process} has it"

    def follow(self, signals: SignalPipe) -> int:
        """Until it is over."""
        return to_the_end(self.run, self.screen, signals, self.status)


class NohupQueue(Queue):
    """What acts there."""

    submits = InBackground

    def check(self, job: Job, environ: Mapping[str, str]) -> None:
        """Raises JobError where an option is wrong, or the job asks for what the place cannot do."""
        command_of(job)

    def preview(self, job: Job, environ: Mapping[str, str]) -> str:
        """The command line."""
        return f"nohup {shlex.join(command_of(job))} &\n"

    def reach(self, stored: Stored, run: Run, environ: Mapping[str, str]) -> Follow:
        """Follows a job whose follower has ended."""
        return partial(to_the_end, run)

    def stop(self, stored: Stored, environ: Mapping[str, str], *, kill: bool = False) -> None:
        """Asks a job to end that another process follows."""
        send(stored.folder, signal.SIGKILL if kill else signal.SIGTERM)


def command_of(job: Job) -> list[str]:
    """What starts `train`. Raises JobError for all that is wrong with the job's `nohup_queue`, or cannot be here."""
    fields = PlaceFields(job, PLACE, ("nice",))
    nice = fields.get("nice", int, 0)
    if job.instances > 1:
        fields.problem("job.instances", "must be 1 in the nohup queue")
    fields.problems += refused(PLACE, job)
    fields.done()
    return ["nice", "-n", str(nice), *isolated("trainshed.container.main")]


def send(folder: str, number: int) -> None:
    """A signal to the job of a run's folder, if it runs."""
    process = number_in(f"{folder}/{PID}")
    if process and exit_of(folder) is None:
        os.kill(process, number)


def exit_of(folder: str) -> int | None:
    """The exit status of the job of a run's folder; None while it runs."""
    if (code := number_in(f"{folder}/{EXIT}")) is not None:
        return code
    try:
        os.kill(number_in(f"{folder}/{PID}") or 0, 0)
    except ProcessLookupError:  # it, or the shell that waited, was killed; or the status is being written
        return late_exit(folder)
    return None


def late_exit(folder: str) -> int:
    """The exit status that the shell writes a moment after the end; LOST where it does not."""
    end = time.monotonic() + 2
    while (code := number_in(f"{folder}/{EXIT}")) is None and time.monotonic() < end:
        time.sleep(0.01)
    return LOST if code is None else code


def to_the_end(run: Run, screen: Screen, signals: SignalPipe, status: StatusFile) -> int:
    """Passes on what the job prints and what is sent to this process, then writes how the job ended; its exit status."""
    metrics = Metrics.of(run.job.metric_definitions)
    tail = Tail(run.log(run.hosts[0].name))
    stopped, start = 0, time.monotonic()
    status.to("Training")
    while (code := exit_of(run.folder)) is None:
        pass_on(tail.read(), metrics, screen)
        for number in waited(signals):
            send(run.folder, signal.SIGINT if stopped else signal.SIGTERM)  # `train` kills its ranks at the second one
            stopped = stopped or number
    pass_on(tail.read() + tail.rest(), metrics, screen)
    ending = Ending((HostEnd(run.hosts[0].name, code, asked=bool(stopped)),), stopped, seconds=time.monotonic() - start)
    return finish(run, judge(run, ending), ending, status, metrics, screen)


def waited(signals: SignalPipe) -> list[int]:
    """Stop signals that have come within a moment."""
    select.select([signals.fd], [], [], LOOK_SECONDS)
    return [number for number in signals.take() if number in STOP_SIGNALS]


def pass_on(lines: bytes, metrics: Metrics, screen: Screen) -> None:
    """What the job has printed, to the screen and to what searches it for metrics."""
    metrics.scan(lines)
    screen.lines(lines, error=False)
    screen.flush()
