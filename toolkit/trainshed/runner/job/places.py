"""Places where jobs run: one record a place, and the table of those that are built in.

All that others ask about a place is in its record. What acts there is a class that the record names (`acts`), and is
loaded when the place is used. A package adds a place by an entry point of the group `trainshed.places` that leads to a
record.
"""

from __future__ import annotations

import re

from trainshed.base.entry_points import load
from trainshed.base.entry_points import names as added_names
from trainshed.base.errors import EXIT_JOB, JobError, Problem, TrainshedError, did_you_mean
from trainshed.base.record import Record

from .job import Job
from .place_fields import KUBERNETES_FIELDS, RAY_FIELDS, SAGEMAKER_FIELDS, SLURM_FIELDS, SSH_FIELDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from .field import Field

GROUP = "trainshed.places"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")
_ENGINES = ("docker", "podman")  # what `job.json` may name instead of a place


class UnknownPlace(TrainshedError):
    """There is no place of this name, or the package that adds it is missing or wrong."""

    exit_code = EXIT_JOB


class Flag(Record):
    """A flag of `trainshed run` for one place.

    metavar, help: for `--help`; "" where the flag is that of a field of the job file.
    several: whether it may be given more than once.
    """

    name: str
    metavar: str = ""
    help: str = ""
    several: bool = False

    @property
    def attribute(self) -> str:
        """The attribute in which argparse puts its value."""
        return self.name.removeprefix("--").replace("-", "_")

    @property
    def default(self) -> list[str] | str | None:
        """Its value where nobody gives it."""
        return [] if self.several else "" if self.metavar else None


class Can(Record):
    """The abilities of a place that jobs, and commands, may ask for.

    pipe: channels in Pipe mode; refused without it
    fast_file: channels in FastFile mode are streamed; without it they are fetched first
    rw: channels with `access: rw`; refused without it
    image: the job runs in its `image`; without it, with what the hosts have installed
    mpi: `mpirun` on several hosts; refused without it
    groups: hosts of several kinds (`instance_groups`); refused without it
    isolation: hosts without a network (`network_isolation`); refused without it
    retries: a job that failed is started again (`retries`); without it a line says so
    resume: `trainshed resume` takes up a run that is over
    keep_alive: `keep_alive` keeps packages and data for the next run; without it a line says so
    detach: with `--detach` no process of ours stays behind
    tune: trials of a tuning job
    probe: short runs that look for the largest batch size (`--find-batch-size`)
    """

    pipe: bool = True
    fast_file: bool = True
    rw: bool = True
    image: bool = True
    mpi: bool = True
    groups: bool = True
    isolation: bool = True
    retries: bool = True
    resume: bool = True
    keep_alive: bool = True
    detach: bool = False
    tune: bool = True
    probe: bool = True


class Place(Record):
    """Somewhere that jobs run.

    acts: `module:Class` of what acts there (`runner.acting.base.Hosts`, `runner.acting.submission.Queue`); "" for a place
        that jobs are exported to.
    title: its name in sentences, `Slurm`. where: `on Slurm`.
    help: for `--on`. options: for the job file's field of the same name; "" for a place without one.
    fields: what is in that field. open_fields: whether other names in it are somebody else's options.
    here: whether its hosts are processes or containers of this machine.
    hosts: what `trainshed ps` calls its hosts.
    key: the field of `status.json` that names the job of a run there; pattern: of its value.
    key_file: the file below a run's folder that begins with the number of the job.
    sign: the file below a run's folder that is there as long as it may run on the machines that it names.
    own_data: the option that says which channels' data is there already.
    """

    name: str
    acts: str = ""
    title: str = ""
    where: str = ""
    help: str = ""
    options: str = ""
    fields: tuple[Field, ...] = ()
    open_fields: bool = False
    flags: tuple[Flag, ...] = ()
    can: Can = Can()
    here: bool = False
    hosts: str = "processes"
    key: str = ""
    pattern: str = r"[!-~]{1,300}"
    key_file: str = ""
    sign: str = ""
    own_data: str = ""

    @property
    def known(self) -> tuple[str, ...]:
        """The names of its fields."""
        return tuple(row.name for row in self.fields)

    @property
    def outlives(self) -> bool:
        """Tells whether a job there goes on without its runner; it keeps files in a folder of the run with its name then."""
        return bool(self.key or self.sign)

    def obstacle(self, ability: str) -> str:
        """Why it cannot stream channels (`fast_file`), or keep things for later runs (`keep_alive`); "" if it can."""
        return "" if getattr(self.can, ability) else _OBSTACLES[ability]

    @property
    def lock(self) -> str:
        """Of the process that follows a run there, below the run's folder."""
        return f"{self.name}/follower.lock"


_OBSTACLES = {
    "fast_file": "the hosts do not see a file system that is mounted here",
    "keep_alive": "the job does not run on this machine",
}
_NOT_ELSEWHERE = Can(pipe=False, fast_file=False, keep_alive=False, tune=False, probe=False)
HERE = Place("here", "trainshed.places.here:Here", "this machine", "on this machine", here=True)
RAY = Place(
    "ray", "trainshed.places.ray.hosts:Ray", "Ray", "on Ray", "on a Ray cluster", "options for `--on ray`",
    RAY_FIELDS,
    flags=(
        Flag("--address", "HOST:PORT", "with --on ray: the cluster's head, ray://HOST:PORT for its door for clients, or "
             "auto, this machine's (default: RAY_ADDRESS, else auto)"),
    ),
    can=_NOT_ELSEWHERE.replace(mpi=False, image=False),
)  # fmt: skip
SLURM = Place(
    "slurm", "trainshed.places.slurm.submit:Slurm", "Slurm", "on Slurm", "submit it with sbatch and follow it",
    "options for `--on slurm`", SLURM_FIELDS, open_fields=True,
    flags=(
        Flag("--sbatch", "NAME=VALUE", "with --on slurm: one more option of sbatch, like partition=gpu; --detach submits "
             "and returns", several=True),
    ),
    can=_NOT_ELSEWHERE.replace(groups=False, retries=False, detach=True, tune=True),
    key="SlurmJobId", pattern=r"[0-9]{1,18}", key_file="slurm/number",
)  # fmt: skip
SSH = Place(
    "ssh", "trainshed.places.ssh.backend:Ssh", "ssh", "over ssh", "on the machines of --hosts",
    "options for `--on ssh`", SSH_FIELDS, flags=(Flag("--hosts"),), can=_NOT_ELSEWHERE.replace(isolation=False, rw=False),
    hosts="machines", sign="ssh/hosts.json", own_data="data",
)  # fmt: skip
KUBERNETES = Place(
    "kubernetes", "trainshed.places.kubernetes.on_cluster:Kubernetes", "Kubernetes", "on Kubernetes",
    "as pods of a cluster", "options for `--on kubernetes` and `trainshed export kubernetes`", KUBERNETES_FIELDS,
    can=_NOT_ELSEWHERE, key="KubernetesJob",
)  # fmt: skip
SAGEMAKER = Place(
    "sagemaker", title="SageMaker", options="options for `trainshed export sagemaker`", fields=SAGEMAKER_FIELDS
)
BUILT_IN = {place.name: place for place in (HERE, SLURM, RAY, SSH, KUBERNETES, SAGEMAKER)}


def known(name: str) -> Place | None:
    """The place of a name, None where there is none. Raises UnknownPlace where a package's record cannot be loaded."""
    return BUILT_IN.get(name) or (_added(name) if _NAME.fullmatch(name) and name not in _ENGINES else None)


def find(name: str) -> Place:
    """The place of a name. Raises UnknownPlace."""
    if (found := known(name)) is None:
        near = did_you_mean(name, names())
        raise UnknownPlace(f"there is no place {name!r} here", hint=near or "is the package that adds it installed?")
    return found


def of_engine(engine: str) -> Place | None:
    """The place that `job.json` names as the engine of a run's hosts; None for a container engine, or none.

    One that no package adds (any more), or whose package is broken, is a place where nothing acts.
    """
    if engine in _ENGINES or not _NAME.fullmatch(engine):
        return None
    try:
        found = known(engine)
    except UnknownPlace:  # who lists runs is not to be kept from the others
        found = None
    return found or Place(engine, title=engine, where=f"on {engine}")


def has_options(name: str) -> bool:
    """Returns whether a job file may have a field of this name, for the place of the name."""
    place = known(name)
    return place is not None and bool(place.options)


def names() -> list[str]:
    """The places that jobs run at, those of other packages included."""
    return sorted({*(place.name for place in BUILT_IN.values() if place.acts), *added_names(GROUP)})


def refused(place: Place, job: Job, apart: Collection[str] = ()) -> list[Problem]:
    """Lists what a job asks for that a place cannot do.

    Args:
        apart: channels that are there already.
    """
    asked = _asked(place.can, job, apart)
    return [Problem("the job", f"{what} {place.where}", field, suggestion=hint) for field, what, hint in asked]


def refuse(place: Place, job: Job) -> None:
    """Raises JobError where a job asks for what a place cannot do."""
    if problems := refused(place, job):
        raise JobError(problems)


def gone_without(place: Place, job: Job) -> list[str]:
    """Lists what a job asks for that a place does without, in words for people."""
    can, said = place.can, []
    if job.image and not can.image:
        said.append(f"{job.image} is not used: {place.where} a job runs with what its hosts have installed")
    if job.retries and not can.retries:
        said.append(f"retries: a job that fails is not started again {place.where}; trainshed resume does that")
    return said


def _asked(can: Can, job: Job, apart: Collection[str]) -> Iterator[tuple[str, str, str]]:
    piped = [one.name for one in job.channels if one.input_mode == "Pipe" and one.name not in apart]
    for name in piped if not can.pipe else ():
        yield f"channels.{name}.input_mode", "Pipe mode does not work", "use File"
    written = [one.name for one in job.channels if one.access == "rw" and one.name not in apart]
    for name in written if not can.rw else ():
        yield f"channels.{name}.access", "rw does not work", "a copy would be written to"
    if job.instance_groups and not can.groups:
        yield "instance_groups", "hosts are of one kind", "submit one job for each kind, or run it with containers"
    if job.network_isolation and not can.isolation:
        yield "network_isolation", "hosts cannot be without a network", "leave it out"
    if job.instances > 1 and job.distribution.traits.uses_mpirun and not can.mpi:
        yield "distribution", "mpirun cannot reach the other hosts", "use torchrun"


def _added(name: str) -> Place | None:
    return load(GROUP, name, _is_place, "place", UnknownPlace)  # type: ignore[no-any-return]


def _is_place(found: object, name: str) -> bool:
    return isinstance(found, Place) and found.name == name
