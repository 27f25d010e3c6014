"""How distributions are started: one module each, whose `LAUNCHER` turns a `Launch` into a launch plan, and starts nothing.

`Launch`, `Launcher`, `LaunchPlan`, `ProcessSpec` and `DistributionTraits` are what a package needs that adds a distribution.
"""

from __future__ import annotations

from trainshed.contract.distributions import DistributionTraits, plugged_in, traits_of

from ..supervisor.launch_plan import LaunchPlan, ProcessSpec
from .launch import Launch, Launcher

__all__ = ["DistributionTraits", "Launch", "LaunchPlan", "Launcher", "ProcessSpec", "launcher_of", "moved"]

# The module of each, and the name in it. Only that of the job's distribution is loaded.
LAUNCHERS = {
    "script": ("script", "LAUNCHER"),
    "torchrun": ("torchrun", "LAUNCHER"),
    "horovod": ("horovod", "LAUNCHER"),
    "mpi": ("mpi", "LAUNCHER"),
    "xla": ("xla", "LAUNCHER"),
    "pipeline": ("pipeline", "LAUNCHER"),
    "tensorflow": ("frameworks", "TENSORFLOW"),
    "jax": ("frameworks", "JAX"),
    "parameter_server": ("parameter_server", "LAUNCHER"),
    "ray": ("ray_cluster", "LAUNCHER"),
}


def launcher_of(name: str) -> Launcher:
    """The launcher of a distribution: ours, or that of an installed package. Raises LaunchError where there is none."""
    if name not in LAUNCHERS:
        return plugged_in(traits_of(name).name)  # type: ignore[no-any-return]
    module, attribute = LAUNCHERS[name]
    loaded = __import__(f"{__name__}.{module}", fromlist=[attribute])  # loading importlib for this would cost more
    return getattr(loaded, attribute)  # type: ignore[no-any-return]


def moved(plan: LaunchPlan, term: int, address: str, leads: bool, hosts: int) -> LaunchPlan:
    """The plan of an elastic job under another leader: see `torchrun.moved`. hosts: of the whole job."""
    from . import torchrun

    return torchrun.moved(plan, term, address, leads=leads, most=hosts - term)
