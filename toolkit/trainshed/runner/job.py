"""A job as the person at the keyboard describes it: complete, checked, frozen. Paths are absolute."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

DEFAULT_GRACE = 110.0  # seconds: SageMaker's 120 without the ten that `train` keeps for its report
ALL_GPUS = -1


@dataclass(frozen=True)
class Channel:
    """One input channel: a folder or a file on this machine."""

    name: str
    path: str
    input_mode: str = "File"
    content_type: str = ""


@dataclass(frozen=True)
class Distribution:
    """How ranks are started on the hosts; zeros and empty strings leave it to `train`.

    parameters: what a pipeline is told, by name.
    for_amazons_library: the parameters go to the script as `mp_parameters`; mpi, mpi_options: as its estimators send them.
    """

    kind: str = "script"
    processes_per_host: int = 0
    engine: str = ""
    max_restarts: int = 0
    parameters: dict[str, Any] = field(default_factory=dict)
    for_amazons_library: bool = False
    mpi: bool = False
    mpi_options: str = ""


@dataclass(frozen=True)
class Resources:
    """What each host may use. None: not limited (cpus, memory), or chosen by what the machine has (gpus, shm_size).

    memory and shm_size are bytes; gpus is a number or `ALL_GPUS`.
    """

    cpus: float | None = None
    memory: int | None = None
    gpus: int | None = None
    shm_size: int | None = None


@dataclass(frozen=True)
class Job:
    """One training job.

    name: base of the run's name; the time of the start is added.
    program: as `train` is to find it: relative to `source_dir`, `-m module`, or a program that the image has.
    source_dir: folder with the code, "" where the image has it.
    image: container image, "" to run the hosts as processes of this machine.
    hyperparameters: JSON values; floats are `SpelledFloat` and keep the spelling of whoever wrote them.
    output: folder for this run, "" for a new one below `runs/`.
    checkpoints: folder that outlives the run, "" for one inside the run.
    compiler: settings of `train` about the compiler (`trainshed_compiler` ...), {} where the job does not ask for it.
    places: what the job asks of a place where it may run (`slurm`, `kubernetes`, `sagemaker`), for that place to read.
    """

    name: str
    program: str = ""
    source_dir: str = ""
    image: str = ""
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    channels: tuple[Channel, ...] = ()
    instances: int = 1
    distribution: Distribution = Distribution()
    environment: dict[str, str] = field(default_factory=dict)
    output: str = ""
    max_runtime_seconds: float = 0.0
    grace_seconds: float = DEFAULT_GRACE
    metric_definitions: tuple[tuple[str, str], ...] = ()
    resources: Resources = Resources()
    checkpoints: str = ""
    argv: str = ""
    compiler: dict[str, str] = field(default_factory=dict)
    places: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def hosts(self) -> tuple[str, ...]:
        """algo-1 ... algo-N in the order in which the platform lists them, which is that of letters."""
        return tuple(sorted(f"algo-{number}" for number in range(1, self.instances + 1)))
