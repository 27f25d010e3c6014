"""The folders of a run on this machine: one /opt/ml a host, and beside them what the hosts share.

runs/digits-2026-11-21-10-15-30-123/
    job.json status.json          what was asked for, how it went
    provenance.json code.json     where it comes from: code, git, image, parents; hashes of its code and its model
    algo-1/ algo-2/               /opt/ml of each host: input/, code/, output/
    model/ checkpoints/           one for all hosts
    logs/algo-1.log               everything the host printed
    runner.log                    the runner's messages
    mlflow.json                   of a run that was sent to MLflow while it ran: its run there
    report.html                   of the whole run, where `trainshed report` was asked for it
    staged/                       channels that were fetched or put together for the run
    attempts/1/                   what an attempt left that was followed by another one: hosts' trees, model
    output/                       model.tar.gz, output.tar.gz when it is over
    slurm/                        on Slurm: the batch script, the job's number
    ssh/                          on machines reached by ssh: while it runs there, where
    kubernetes/                   in a cluster: which job there, how far its logs were read
"""

from __future__ import annotations

from dataclasses import dataclass

from trainshed.base.numerals import whole
from trainshed.contract.paths import DEFAULT_BASE

from ..job.job import ChannelSpec, Job

RUNNER_LOG = "runner.log"
REPORT = "report.html"  # where `trainshed report` writes
PROVENANCE, CODE = "provenance.json", "code.json"
MLFLOW = "mlflow.json"  # which run it is in MLflow, and which metrics there are the script's own


@dataclass(frozen=True)
class HostTree:
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
    """One start of a job. `id` is unique, and in the environment of every process of the run.

    pool: the folder of its warm pool, "" for none.
    """

    job: Job
    name: str
    id: str
    folder: str
    started: float
    hosts: tuple[HostTree, ...]
    pool: str = ""

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
        """The place of the archives."""
        return f"{self.folder}/output"

    @property
    def packages(self) -> str:
        """The pool's folder for packages, "" for none."""
        return f"{self.pool}/packages" if self.pool else ""

    def log(self, host: str) -> str:
        """Everything that a host printed."""
        return f"{self.folder}/logs/{host}.log"

    @property
    def words(self) -> str:
        """The file with the runner's messages."""
        return f"{self.folder}/{RUNNER_LOG}"

    def data(self, host: HostTree, channel: ChannelSpec) -> str:
        """The file or folder that a channel is for a host."""
        return self.staged(host, channel) if channel.staged else channel.path

    def hosts_with(self, channel: ChannelSpec) -> tuple[HostTree, ...]:
        """The hosts that get a channel."""
        return tuple(host for host in self.hosts if channel in self.job.channels_of(host.name))

    def staged(self, host: HostTree, channel: ChannelSpec) -> str:
        """The folder that stands for a staged channel on a host: one for all hosts, or one a host where it is sharded."""
        part = host.name if channel.distribution == "ShardedByS3Key" else "all"
        return f"{self.folder}/staged/{channel.name}/{part}"


def number_in(path: str) -> int | None:
    """The number of a job in a file as `sbatch --parsable` writes it, `7` or `7;cluster`; None for none (yet)."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return whole(file.read(64).strip().partition(";")[0])
    except OSError:
        return None


def hosts_of(job: Job, folder: str, *, in_containers: bool) -> tuple[HostTree, ...]:
    """The hosts' trees in a run's folder."""
    return tuple(
        HostTree(host, f"{folder}/{host}", DEFAULT_BASE if in_containers else f"{folder}/{host}") for host in job.hosts
    )
