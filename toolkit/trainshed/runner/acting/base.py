"""Base classes of places whose hosts are children of the runner, or are followed by some."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, Any, Protocol

from trainshed.base.errors import TrainshedError

from ..files.run import Run
from ..job.job import Job
from ..job.places import Place, refuse
from .leftovers import LeftoverProcesses, Leftovers

DEFAULT_SHM = 2 << 30  # bytes of /dev/shm; engines give 64 MB, too little for data loaders and NCCL


@dataclass(frozen=True)
class Exit:
    """How a host ended: its exit status (128 + n for signal n) and what the backend knows beside it."""

    code: int
    note: str = ""


class Child(Protocol):
    """A process of ours, or what stands for one on another machine."""

    stdout: IO[bytes] | None
    stderr: IO[bytes] | None

    def poll(self) -> int | None:
        """Its exit status; None while it runs. Returns at once."""


class RunningHost(Protocol):
    """A host: a child whose pipes carry what it prints, and whose end is the host's."""

    name: str

    @property
    def process(self) -> Child:
        """Its pipes and its end."""

    def stop(self, grace: float) -> None:
        """Asks it to end within `grace` seconds; returns at once."""

    def hurry(self) -> None:
        """Ends its grace: `train` takes SIGINT after a stop signal so, kills the script and reports. Returns at once."""

    def kill(self) -> None:
        """Ends it without any report; returns at once."""

    def news(self) -> list[str]:
        """Returns what there is to tell people of it, beside what it prints, since the last call."""

    def exit(self) -> Exit:
        """How it ended; only when `process` has."""


class Backend(Protocol):
    """One way of running hosts.

    in_containers: whether the hosts see their tree as /opt/ml.
    interface: network interface that hosts reach each other by.
    secrets: variables that were looked up by `prepare`, with their values.
    image: of containers, once `prepare` has found it: `name`, `id` and, of an image that came from a registry, `digest`.
    """

    in_containers: bool
    interface: str
    secrets: dict[str, str]
    image: dict[str, str]

    @property
    def place(self) -> str:
        """Address of the container engine that runs the hosts, "" for processes."""

    def prepare(self) -> None:
        """Finds out whether hosts can be started at all. Raises TrainshedError."""

    def mount_obstacle(self) -> str:
        """Why hosts cannot be shown a file system that this process mounts, "" if they can; after `prepare`."""

    def pool_obstacle(self) -> str:
        """Why hosts cannot use folders that stay for other runs, "" if they can; after `prepare`."""

    def start(self, run: Run) -> list[RunningHost]:
        """Starts all hosts, or none; again after `clear`, for another attempt. Raises TrainshedError."""

    def roots(self) -> list[int]:
        """PIDs below which the hosts' processes are, as far as this machine sees them."""

    def fetch(self, run: Run) -> tuple[str, ...]:
        """Brings home what hosts that have ended left elsewhere; before `clear`, which then leaves alone what could not
        be brought. One message for each host where something is missing."""

    def clear(self) -> None:
        """Removes everything that `start` made but the run's folder; hosts that still run are killed. Never raises."""

    def describe(self, run: Run) -> list[tuple[str, str]]:
        """For `--dry-run`: each host's command line, secrets masked."""

    def where(self, job: Job) -> str:
        """How many hosts there are, and of what, as a person is told it."""


class Acting:
    """The class that acts at one place, whichever kind of place it is: this, or what a subclass says."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def with_flags(self, job: Job, options: Mapping[str, Any]) -> Job:
        """The job with what the place's flags of `trainshed run` say, by argparse's names."""
        return job

    def check(self, job: Job, environ: Mapping[str, str]) -> None:
        """Raises JobError where the job asks for what the place cannot do, or an option of the place is wrong."""
        refuse(self.place, job)

    def leftovers(self, run_id: str, engine: str | None, environ: Mapping[str, str]) -> Leftovers:
        """Returns what is left on this machine of a run whose runner was killed.

        Args:
            engine: address of the container engine that has its hosts, "" where nothing says which; None for processes.

        Raises:
            TrainshedError: the engine does not answer, or is another one.
        """
        return LeftoverProcesses(run_id)


class Hosts(Acting):
    """A place whose hosts are started, followed and ended by the runner."""

    def prepared(self, job: Job) -> Job:
        """The job as the place takes it. Raises JobError."""
        return job

    def backend(self, job: Job, environ: Mapping[str, str], say: Callable[[str], None]) -> Backend:
        """Returns what starts the hosts. Raises JobError."""
        raise NotImplementedError

    def taken_up(self, run: Run, environ: Mapping[str, str], say: Callable[[str], None]) -> Backend:
        """Returns what follows hosts that were started by a runner that is dead. Raises TrainshedError."""
        raise TrainshedError(f"{run.name} cannot be followed again {self.place.where}")
