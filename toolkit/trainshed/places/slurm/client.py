"""Questions to Slurm's own commands, and their answers.

`scontrol show job` is all that is needed to follow a job: it works without accounting, and for MinJobAge (300 s by
default) after the end; `sacct` is asked only about a job that scontrol has forgotten.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from trainshed.base.errors import EXIT_NOT_FOUND, EXIT_UNAVAILABLE, TrainshedError
from trainshed.base.numerals import whole
from trainshed.runner.files.run import number_in
from trainshed.runner.job.places import SLURM

ANSWER_SECONDS = 60.0
PENDING, RUNNING = "PENDING", "RUNNING"
# The job is not over in these, nor in any that says that it will run again (scontrol(1), JOB STATE CODES).
_LIVING = {PENDING, RUNNING, "CONFIGURING", "COMPLETING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESIZING",
           "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}  # fmt: skip


class SlurmError(TrainshedError):
    """Slurm refused, or does not answer."""

    exit_code = EXIT_UNAVAILABLE


@dataclass(frozen=True)
class State:
    """How a job stands.

    state: Slurm's word, `RUNNING`; reason: why it waits or failed, "" for none.
    nodes: Slurm's short form, `node[1-2]`; "" before it has any.
    restarts: how often it has been queued again.
    code, signal: how the batch script ended.
    """

    state: str
    reason: str = ""
    nodes: str = ""
    restarts: int = 0
    code: int = 0
    signal: int = 0

    @property
    def over(self) -> bool:
        """Tells whether it will not run (again)."""
        return self.state not in _LIVING


class Client:
    """Slurm's commands, with the caller's environment."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = dict(environ)

    def check(self) -> None:
        """Raises SlurmError where this machine cannot submit jobs."""
        if shutil.which("sbatch", path=self.environ.get("PATH")) is None:
            raise SlurmError(
                "sbatch is not installed: Slurm jobs are submitted from a machine of the cluster",
                hint="run trainshed on a login node, or omit --on slurm",
            )

    def submit(self, script: str, environment: Mapping[str, str], folder: str) -> int:
        """Submits the script in a file; returns the job's number. Raises SlurmError.

        Args:
            folder: of the run. sbatch itself writes the number there: where this process is killed meanwhile, it is there
                nevertheless, and nobody submits the job a second time.
        """
        answer = f"{folder}/{SLURM.key_file}"
        with open(answer, "wb") as file:
            done = self._run("sbatch", "--parsable", script, environment=environment, output=file.fileno())
        number = number_in(answer)
        if done.returncode != 0 or number is None:
            os.unlink(answer)
            raise SlurmError(
                f"sbatch refuses the job: {_reason(done)}", hint="pass further options with --sbatch NAME=VALUE"
            )
        return number

    def state(self, job: int) -> State | None:
        """How the job stands; None where nobody remembers it. Raises SlurmError where Slurm does not answer."""
        done = self._run("scontrol", "show", "job", "--oneliner", str(job))
        if done.returncode == 0 and "JobState=" in done.stdout:
            return parse_state(done.stdout)
        if "Invalid job id" not in done.stderr:
            raise SlurmError(f"scontrol does not answer: {_reason(done)}")
        past = self._run(
            "sacct", "--jobs", str(job), "--allocations", "--noheader", "--parsable2", "--format=State,ExitCode"
        )
        state, _, code = past.stdout.strip().partition("|")
        if past.returncode != 0 or not state:
            return None
        number, _, signal = code.partition(":")
        return State(state.split()[0], code=_number(number), signal=_number(signal))

    def ask_to_stop(self, job: int) -> None:
        """SIGTERM to `train` on all nodes, and nothing else; a job that still waits does not hear it."""
        self._run("scancel", "--signal=TERM", str(job))

    def cancel(self, job: int) -> None:
        """Ends the job: SIGTERM, and SIGKILL after the cluster's KillWait."""
        self._run("scancel", str(job))

    def _run(
        self, *command: str, environment: Mapping[str, str] | None = None, output: int = subprocess.PIPE
    ) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                command,
                env=dict(environment if environment is not None else self.environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                timeout=ANSWER_SECONDS,
                start_new_session=True,  # the terminal's Ctrl-C is for us alone
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 1, "", f"no answer in {ANSWER_SECONDS:.0f} s")
        except OSError as error:
            return subprocess.CompletedProcess(command, EXIT_NOT_FOUND, "", f"{command[0]}: {error.strerror}")


def parse_state(text: str) -> State:
    """One line of `scontrol show job --oneliner`: `NAME=value` pairs, of which values of few hold spaces."""
    fields = dict(re.findall(r"(?:^| )([A-Za-z/:]+)=(\S*)", text))
    code, _, signal = fields.get("ExitCode", "0:0").partition(":")
    reason = fields.get("Reason", "None")
    nodes = fields.get("NodeList", "")
    return State(
        state=fields.get("JobState", "UNKNOWN"),
        reason="" if reason == "None" else reason,
        nodes="" if nodes == "(null)" else nodes,
        restarts=_number(fields.get("Restarts", "0")),
        code=_number(code),
        signal=_number(signal),
    )


def _number(text: str) -> int:
    return whole(text) or 0


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in (done.stderr or done.stdout or "").splitlines() if line.strip()]
    return lines[-1] if lines else f"exit status {done.returncode}"
