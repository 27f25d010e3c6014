"""Where a run lies on this machine: one /opt/ml a host, and beside them what the hosts share.

runs/digits-2026-11-21-10-15-30-123/
    job.json status.json          what was asked for, how it went
    algo-1/ algo-2/               /opt/ml of each host: input/, code/, output/
    model/ checkpoints/           one for all hosts
    logs/algo-1.log               everything the host printed
    runner.log                    the runner's messages
    staged/                       channels that were fetched or put together for the run
    attempts/1/                   what an attempt left that was followed by another one: hosts' trees, model
    output/                       model.tar.gz, output.tar.gz when it is over
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from trainshed.contract.paths import DEFAULT_BASE

from ..job.job import Channel, Job

RUNS = "runs"
RUNNER_LOG = "runner.log"


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

    @property
    def words(self) -> str:
        """The file with the runner's messages."""
        return f"{self.folder}/{RUNNER_LOG}"

    def data(self, host: Host, channel: Channel) -> str:
        """The file or folder that a channel is for a host."""
        return self.staged(host, channel) if channel.staged else channel.path

    def staged(self, host: Host, channel: Channel) -> str:
        """The folder that stands for a staged channel on a host: one for all hosts, or one a host where it is sharded."""
        part = host.name if channel.distribution == "ShardedByS3Key" else "all"
        return f"{self.folder}/staged/{channel.name}/{part}"


def state_folder(environ: Mapping[str, str]) -> str:
    """What this user's commands keep between runs: `$XDG_STATE_HOME/trainshed`, else below `~/.local/state`."""
    state = environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):
        state = os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".local/state")
    return f"{state}/trainshed"


def hosts_of(job: Job, folder: str, *, in_containers: bool) -> tuple[Host, ...]:
    """The hosts' trees in a run's folder."""
    return tuple(Host(host, f"{folder}/{host}", DEFAULT_BASE if in_containers else f"{folder}/{host}") for host in job.hosts)
