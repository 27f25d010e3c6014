"""A job as the person at the keyboard describes it: complete, checked, frozen. Paths are absolute."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from trainshed.contract.distributions import DEFAULT, DistributionTraits, traits_of

from .addresses import is_elsewhere

DEFAULT_GRACE = 110.0  # seconds: SageMaker's 120 without the ten that `train` keeps for its report
ALL_GPUS = -1
PARENTS_CHANNEL = "model"  # the platform's name for what incremental training goes on from


S3 = "s3://"


@dataclass(frozen=True)
class ChannelSpec:
    """One input channel.

    path: a folder or a file on this machine, a glob, or an address (`addresses.py`).
    files: what a glob found, absolute paths; none for other channels.
    s3_type: `S3Prefix`; `ManifestFile` where `path` is a manifest of objects; `AugmentedManifestFile` for one of samples.
    attributes: of an augmented manifest, in the order in which they are sent.
    distribution: `FullyReplicated`, or `ShardedByS3Key`, where each host gets about 1/n of the files.
    access: `rw` where hosts may write to the folder itself, `ro` where they must not, "" where the job does not say.
    compression, record_wrapper: `Gzip` and `RecordIO` change what goes through the FIFOs of Pipe mode.
    shuffle_seed: shuffles the order of the files in Pipe mode, anew for each epoch.
    instance_groups: whose hosts get it; () for all.
    """

    name: str
    path: str
    input_mode: str = "File"
    content_type: str = ""
    files: tuple[str, ...] = ()
    s3_type: str = "S3Prefix"
    attributes: tuple[str, ...] = ()
    distribution: str = "FullyReplicated"
    access: str = ""
    compression: str = "None"
    record_wrapper: str = "None"
    shuffle_seed: int | None = None
    instance_groups: tuple[str, ...] = ()

    @property
    def remote(self) -> bool:
        """Tells whether it must be fetched first."""
        return is_elsewhere(self.path)

    @property
    def staged(self) -> bool:
        """Tells whether the hosts see a folder made for the run instead of the path itself."""
        return self.remote or self.augmented or bool(self.files) or self.distribution != "FullyReplicated"

    @property
    def augmented(self) -> bool:
        """Tells whether `path` is an augmented manifest."""
        return self.s3_type == "AugmentedManifestFile"


@dataclass(frozen=True)
class DistributionSpec:
    """How ranks are started on the hosts; zeros and empty strings leave it to `train`.

    parameters: what a pipeline is told, by name.
    roles: how many processes play each role beside the chief, with parameter servers; servers: what those run.
    accelerate: the file in the code whose variables ranks get, as `accelerate launch` would give them.
    instance_groups: those whose hosts take part; () for all.
    for_amazons_library: the parameters go to the script as `mp_parameters`; mpi, mpi_options: as its estimators send them.
    """

    kind: str = DEFAULT
    processes_per_host: int = 0
    engine: str = ""
    max_restarts: int = 0
    parameters: dict[str, Any] = field(default_factory=dict)
    instance_groups: tuple[str, ...] = ()
    for_amazons_library: bool = False
    mpi: bool = False
    mpi_options: str = ""
    reduce: str = ""
    accelerate: str = ""
    roles: dict[str, int] = field(default_factory=dict)
    servers: str = ""

    @property
    def traits(self) -> DistributionTraits:
        """The traits of this kind of distribution."""
        return traits_of(self.kind)


@dataclass(frozen=True)
class Resources:
    """Limits of each host. None: not limited (cpus, memory), or chosen by what the machine has (gpus, shm_size).

    memory and shm_size are bytes; gpus is a number or `ALL_GPUS`.
    """

    cpus: float | None = None
    memory: int | None = None
    gpus: int | None = None
    shm_size: int | None = None


@dataclass(frozen=True)
class InstanceGroupSpec:
    """Hosts of one kind in a job with several. resources: those that differ from the job's."""

    name: str
    instances: int = 1
    instance_type: str = "local"
    resources: Resources = Resources()


@dataclass(frozen=True)
class SecretReference:
    """A reference to a secret's value: kind `env` (a variable of the caller), `file`, or `secret` (/run/secrets)."""

    kind: str
    name: str


@dataclass(frozen=True)
class Notify:
    """One way to tell people of a run.

    kind: of the sender, one of `notify.senders.SENDERS`. to: address or command; to_env: the variable that holds it instead.
    on: events, of `notify.telling.EVENTS`; () for all. template: of what is sent, "" for the usual text.
    server, sender, login_env: of e-mail: host and port, the address it comes from, the variable with `user:password`.
    """

    name: str
    kind: str = "webhook"
    to: str = ""
    to_env: str = ""
    on: tuple[str, ...] = ()
    template: str = ""
    server: str = ""
    sender: str = ""
    login_env: str = ""


@dataclass(frozen=True)
class Spot:
    """Spot capacity, played through.

    interrupt_after: seconds of training after which the first attempt is interrupted, the second, and so on.
    max_wait_seconds: bound on the whole job, interruptions included; 0 for none.
    price: what a spot second costs, as a part of an on-demand one.
    """

    interrupt_after: tuple[float, ...] = ()
    max_wait_seconds: float = 0.0
    price: float = 1.0


@dataclass(frozen=True)
class Parent:
    """A run that a job goes on from, or makes again. sha256: of its model.tar.gz, "" where nobody knows it."""

    run: str
    id: str
    folder: str
    sha256: str = ""


@dataclass(frozen=True)
class Job:
    """One training job.

    name: base of the run's name; the time of the start is added.
    program: as `train` is to find it: relative to `source_dir`, `-m module`, or a program that the image has.
    source_dir: folder with the code, "" where the image has it.
    image: container image, "" to run the hosts as processes of this machine.
    instances: hosts, of all groups together; instance_groups: hosts of several kinds, () where all are alike.
    machines: where the hosts run with `--on ssh`, one for each host in the order of their numbers, like `user@host:22`.
    hyperparameters: JSON values; floats are `SpelledFloat` and keep the spelling of whoever wrote them.
    environment: variables with their values; references: variables whose values are looked up when hosts are started,
        and shown and recorded nowhere.
    output: folder for this run, "" for a new one below `runs/`.
    compiler: settings of `train` about the compiler (`trainshed_compiler` ...), {} where the job does not ask for it.
    places: what the job asks of a place where it may run (`slurm`, `ssh` ...), for that place to read.
    upload: `s3://` prefix that gets the archives, "" for none.
    checkpoints: folder that outlives the run, "" for one inside the run; checkpoint_path: what the hosts call it, below
        /opt/ml; checkpoint_auto: whether Trainers are made to use it; checkpoint_copy_to: URL of a storage that gets
        copies, "" for none; checkpoint_every: how their interval is found, "" as the script says;
        checkpoint_memory: copies in the hosts' memory, {} for none.
    from_run: the run whose model is the channel `model`, "" for none; parent: which run that is, once it has been found.
    rerun_of: the run that this one makes again; expect_data: digests of which each channel must show one, by channel.
    keep_alive: seconds for which packages and data are kept for the next run, 0 for none.
    host_price: what an hour of a host costs, in any currency; 0 where nobody says.
    python: interpreter of hosts that are processes, "" for the runner's own.
    retries: how often a failed job is started again.
    spot: None for capacity that nobody takes away.
    entrypoint, arguments: run instead of `train`, in containers.
    network_isolation: containers reach each other, and nothing else.
    tags: texts by name that are kept with the run.
    notify: who is told when it starts, ends, fails, is interrupted, or a rule fires.
    full_name: exact name of the run, "" for `name` and the time.
    config: further files of input/config, JSON values by name.
    notes: what the user should know of how the job was read.
    """

    name: str
    program: str = ""
    source_dir: str = ""
    image: str = ""
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    channels: tuple[ChannelSpec, ...] = ()
    instances: int = 1
    instance_groups: tuple[InstanceGroupSpec, ...] = ()
    machines: tuple[str, ...] = ()
    distribution: DistributionSpec = DistributionSpec()
    environment: dict[str, str] = field(default_factory=dict)
    output: str = ""
    max_runtime_seconds: float = 0.0
    keep_alive: float = 0.0
    host_price: float = 0.0
    grace_seconds: float = DEFAULT_GRACE
    metric_definitions: tuple[tuple[str, str], ...] = ()
    resources: Resources = Resources()
    checkpoints: str = ""
    argv: str = ""
    rules: str = ""
    profile: str = "off"
    fingerprint: str = "sampled"
    compiler: dict[str, str] = field(default_factory=dict)
    places: dict[str, dict[str, Any]] = field(default_factory=dict)
    references: dict[str, SecretReference] = field(default_factory=dict)
    upload: str = ""
    checkpoint_path: str = "checkpoints"
    checkpoint_auto: bool = False
    checkpoint_copy_to: str = ""
    checkpoint_every: str = ""
    checkpoint_memory: dict[str, int] = field(default_factory=dict)
    from_run: str = ""
    parent: Parent | None = None
    rerun_of: Parent | None = None
    expect_data: dict[str, tuple[str, ...]] = field(default_factory=dict)
    python: str = ""
    retries: int = 0
    spot: Spot | None = None
    entrypoint: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    network_isolation: bool = False
    tags: dict[str, str] = field(default_factory=dict)
    notify: tuple[Notify, ...] = ()
    instance_type: str = "local"
    full_name: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def hosts(self) -> tuple[str, ...]:
        """algo-1 ... algo-N in the order in which the platform lists them, which is that of letters."""
        return tuple(sorted(f"algo-{number}" for number in range(1, self.instances + 1)))

    def group_hosts(self, group: str) -> tuple[str, ...]:
        """The hosts of a group: the first group has algo-1 and those that follow, the next one goes on from there."""
        first = 1
        for one in self.instance_groups:
            if one.name == group:
                return tuple(f"algo-{number}" for number in range(first, first + one.instances))
            first += one.instances
        return ()

    def group_of(self, host: str) -> InstanceGroupSpec | None:
        """A host's group; None where all hosts are alike."""
        return next((one for one in self.instance_groups if host in self.group_hosts(one.name)), None)

    def resources_of(self, group: InstanceGroupSpec | None) -> Resources:
        """The resources of a host of a group: what the group says, else what the job says."""
        if group is None:
            return self.resources
        own = {name: value for name, value in vars(group.resources).items() if value is not None}
        return replace(self.resources, **own)

    def channels_of(self, host: str) -> tuple[ChannelSpec, ...]:
        """The channels that a host gets."""
        group = self.group_of(host)
        return tuple(one for one in self.channels if group is None or group.name in (one.instance_groups or (group.name,)))
