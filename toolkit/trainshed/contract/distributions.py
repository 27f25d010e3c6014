"""The distributions: how the ranks of a job are started. One row each holds all that others ask about one.

What starts them is a `Launcher` (container/launchers). A package adds distributions by entry points of the group
`trainshed.launchers`, each of which names a Launcher (docs/distributions.md).
"""

from __future__ import annotations

from trainshed.base.errors import LaunchError
from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

GROUP = "trainshed.launchers"
DEFAULT = "script"  # of a job that names none
OTHERS = "or one that an installed package adds"  # said after the list of ours
# How many ranks a host has where the job does not say.
NONE = "none"  # one process, which is not a rank
ONE = "one"  # one rank, which uses all devices of its host
DEVICES = "devices"  # one for each GPU or Neuron core; a host without them has one
CPUS = "cpus"  # likewise, but a host without them has one for each CPU, or one where a flag of the platform asks
SEVERAL = "several"  # likewise, but one for each CPU also where a flag asks


class DistributionTraits(Record):
    """The traits of a distribution.

    name: as jobs write it.
    default_ranks: NONE, ONE, DEVICES, CPUS or SEVERAL.
    counted_by: who says how many processes there are, where `processes_per_host` has no meaning; "" where it has.
    takes: fields of a job's `distribution` that are for this one alone.
    uses_agent: whether torch's elastic agent can start its ranks.
    uses_mpirun: whether mpirun starts its ranks.
    needs_torch: whether a Python without torch is worth a warning.
    hang_stops: whether a job that hangs is stopped, where the job does not say.
    can_bind: whether its ranks can be bound to CPUs.
    under_xla: whether torch_xla may start its processes where the compiler needs that.
    compiles: whether it asks for a compiler.
    uncompiled: the distribution that starts its ranks where torch_xla does not; "" for itself.
    flag: the platform's flag that a job file's word stands for; such a word is not a setting of `train`.
    """

    name: str
    default_ranks: str = CPUS
    counted_by: str = ""
    takes: tuple[str, ...] = ()
    uses_agent: bool = False
    uses_mpirun: bool = False
    needs_torch: bool = False
    hang_stops: bool = True
    can_bind: bool = False
    under_xla: bool = False
    compiles: bool = False
    uncompiled: str = ""
    flag: str = ""

    @property
    def has_ranks(self) -> bool:
        """Tells whether its processes are ranks, which listen and meet."""
        return self.default_ranks != NONE

    @property
    def uses_all_devices(self) -> bool:
        """Tells whether one process uses all devices of its host, as those of TensorFlow, JAX and Ray do."""
        return self.default_ranks == ONE


_XLA = DistributionTraits(
    "xla", default_ranks=DEVICES, uses_agent=True, under_xla=True, compiles=True, uncompiled="torchrun"
)
_TABLE = (
    DistributionTraits(DEFAULT, default_ranks=NONE, hang_stops=False, under_xla=True),
    DistributionTraits(
        "torchrun", takes=("accelerate",), uses_agent=True, needs_torch=True, can_bind=True, under_xla=True
    ),
    DistributionTraits("horovod", uses_agent=True, needs_torch=True, can_bind=True),
    DistributionTraits("mpi", uses_mpirun=True),
    _XLA,
    DistributionTraits("pipeline", default_ranks=SEVERAL, takes=("parameters",), uses_agent=True),
    DistributionTraits("tensorflow", default_ranks=ONE, under_xla=True),
    DistributionTraits("jax", default_ranks=ONE, under_xla=True),
    DistributionTraits(
        "parameter_server", default_ranks=ONE, counted_by="roles says how many there are of each",
        takes=("roles", "servers"), under_xla=True,
    ),
    DistributionTraits(
        "ray", default_ranks=ONE, counted_by="the script says how many workers it wants",
        hang_stops=False,  # the script waits for Ray's workers
        under_xla=True,
    ),
    # The platform's own word, whose flag leaves the choice of the compiler to the hardware.
    _XLA.replace(name="pytorchxla", uses_agent=False, flag="sagemaker_pytorch_xla_multi_worker_enabled"),
)  # fmt: skip
# What jobs may write, and are told to, for a name that says less than its distribution does.
WORDS = {"parallel": "pipeline"}
TRAITS = {traits.name: traits for traits in _TABLE}
DISTRIBUTIONS = tuple(traits.name for traits in _TABLE if not traits.flag)


def named(word: str) -> str:
    """The name of the distribution that a job means by a word."""
    return WORDS.get(word, word)


def traits_of(name: str) -> DistributionTraits:
    """The traits of a distribution. Raises LaunchError where it is not there (any more)."""
    if traits := find(name):
        return traits
    raise LaunchError(f"the distribution {name!r} is not one of trainshed's, and no installed package adds it")


def find(name: str) -> DistributionTraits | None:
    """The traits of a distribution of ours, or of one that an installed package adds; None where there is none."""
    if traits := TRAITS.get(name):
        return traits
    return getattr(plugged_in(name), "traits", None)


def plugged_in(name: str) -> Any:
    """The Launcher that an installed package adds under this name; None where none does. Raises LaunchError."""
    from trainshed.base.entry_points import load

    return load(GROUP, name, _is_launcher, "distribution", LaunchError)


def added() -> tuple[str, ...]:
    """The names of the distributions that installed packages add."""
    from trainshed.base.entry_points import names  # few jobs need it

    return names(GROUP)


def _is_launcher(found: object, name: str) -> bool:
    return getattr(getattr(found, "traits", None), "name", None) == name


def owner(field: str) -> str:
    """The distribution that a field of `distribution` is for."""
    return next(traits.name for traits in _TABLE if field in traits.takes)
