"""Where a run lies on this machine: one /opt/ml a host, and beside them what the hosts share.

runs/digits-2026-11-21-10-15-30-123/
    job.json status.json          what was asked for, how it went
    algo-1/ algo-2/               /opt/ml of each host: input/, code/, output/
    model/ checkpoints/           one for all hosts
    logs/algo-1.log               everything the host printed
    output/                       model.tar.gz, output.tar.gz when it is over
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from dataclasses import dataclass

from trainshed.contract.errors import TrainshedError
from trainshed.contract.files import write_atomic
from trainshed.contract.paths import DEFAULT_BASE

from . import code
from .job import Job
from .platform_files import config_files, to_json

RUNS = "runs"


@dataclass(frozen=True)
class Host:
    """One host's tree. `base` is what the host itself calls `folder`."""

    name: str
    folder: str
    base: str

    @property
    def output(self) -> str:
        """/opt/ml/output of this host."""
        return f"{self.folder}/output"

    @property
    def record(self) -> str:
        """The run record that `train` keeps."""
        return f"{self.output}/data/run/{self.name}.json"

    @property
    def failure(self) -> str:
        """The failure file."""
        return f"{self.output}/failure"


@dataclass(frozen=True)
class Run:
    """One start of a job. `id` is unique, and in the environment of every process of the run."""

    job: Job
    name: str
    id: str
    folder: str
    started: float
    hosts: tuple[Host, ...]

    @property
    def model(self) -> str:
        """/opt/ml/model of all hosts."""
        return f"{self.folder}/model"

    @property
    def checkpoints(self) -> str:
        """/opt/ml/checkpoints of all hosts; outlives the run where the job says so."""
        return self.job.checkpoints or f"{self.folder}/checkpoints"

    @property
    def artifacts(self) -> str:
        """Where the archives go."""
        return f"{self.folder}/output"

    def log(self, host: str) -> str:
        """Everything that a host printed."""
        return f"{self.folder}/logs/{host}.log"


def plan(job: Job, *, in_containers: bool, now: float) -> Run:
    """The run that a start at this moment (seconds since the epoch) would be; nothing is made."""
    while True:
        stamp = time.strftime("%Y-%m-%d-%H-%M-%S", time.gmtime(now)) + f"-{int(now * 1000) % 1000:03d}"
        name = f"{job.name}-{stamp}"
        folder = job.output or os.path.join(os.getcwd(), RUNS, name)
        if job.output or not os.path.exists(folder):
            break
        now += 0.001  # another run of this name started in the same millisecond
    hosts = tuple(
        Host(host, f"{folder}/{host}", DEFAULT_BASE if in_containers else f"{folder}/{host}") for host in job.hosts
    )
    return Run(job, name, uuid.uuid4().hex, folder, now, hosts)


def place(run: Run, *, interface: str) -> tuple[str, ...]:
    """Makes the run's folders, configuration and code; returns what the user should know about it.

    Raises:
        ProgramError: the code cannot be copied.
        TrainshedError: a folder cannot be made, or holds an earlier run.
    """
    job = run.job
    leave_out = [channel.path for channel in job.channels] + [job.output, job.checkpoints, run.folder]
    source = code.survey(job.source_dir, leave_out) if job.source_dir else code.Source("")
    _make_folder(run.folder, new=not job.output)
    try:
        for folder in (run.model, run.checkpoints, run.artifacts, f"{run.folder}/logs"):
            os.makedirs(folder, exist_ok=True)
        for host in run.hosts:
            _place_host(run, host, interface)
            if job.source_dir:
                code.copy(source, f"{host.folder}/code")
    except BaseException as error:
        shutil.rmtree(run.folder, ignore_errors=True)  # it was empty or absent before
        if isinstance(error, OSError):
            raise _unusable(error) from error
        raise
    return source.notes


def _unusable(error: OSError) -> TrainshedError:
    return TrainshedError(
        f"the run's folder cannot be made: {error.filename}: {error.strerror}", hint="name another place with --output"
    )


def _make_folder(folder: str, *, new: bool) -> None:
    try:
        os.makedirs(folder, exist_ok=not new)
        held = os.listdir(folder)
    except OSError as error:
        raise _unusable(error) from error
    if held:
        what = "an earlier run" if "status.json" in held else f"{len(held)} other things ({', '.join(sorted(held)[:3])})"
        raise TrainshedError(f"{folder} holds {what}", hint="name a new folder with --output, or move the old one away")


def _place_host(run: Run, host: Host, interface: str) -> None:
    for part in ("input/config", "input/data", "output/data"):
        os.makedirs(f"{host.folder}/{part}", exist_ok=True)
    for name, value in config_files(run.job, run.name, host.name, host.base, interface).items():
        write_atomic(f"{host.folder}/input/config/{name}", to_json(value))
    if host.base != host.folder:
        # Mount points: were Docker to make them, they would belong to root.
        for channel in run.job.channels:
            point = f"{host.folder}/input/data/{channel.name}"
            os.makedirs(point, exist_ok=True)
            if os.path.isfile(channel.path):
                open(f"{point}/{os.path.basename(channel.path)}", "w").close()
        return
    os.symlink(os.path.relpath(run.model, host.folder), f"{host.folder}/model")
    checkpoints = run.checkpoints
    if not run.job.checkpoints:
        checkpoints = os.path.relpath(checkpoints, host.folder)
    os.symlink(checkpoints, f"{host.folder}/checkpoints")
    for channel in run.job.channels:
        link = f"{host.folder}/input/data/{channel.name}"
        if os.path.isfile(channel.path):  # a channel is a folder, if only of one file
            os.makedirs(link)
            link = f"{link}/{os.path.basename(channel.path)}"
        os.symlink(channel.path, link)
