"""One module for each distribution: each turns a `Launch` into a launch plan, and starts nothing."""

from __future__ import annotations

from . import script

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..roster.roster import Roster
    from ..supervisor.launch_plan import LaunchPlan
    from ..supervisor.watcher import Watcher
    from .launch import Launch


def _torchrun(launch: Launch) -> LaunchPlan:
    from . import torchrun  # loaded on demand, as are the next ones: every start pays for what is imported above

    return torchrun.plan(launch)


def _horovod(launch: Launch) -> LaunchPlan:
    from . import horovod

    return horovod.plan(launch)


def _mpi(launch: Launch) -> LaunchPlan:
    from . import horovod, mpi

    return mpi.plan(horovod.with_names(launch))  # the platform's way to start Horovod is MPI


def _pipeline(launch: Launch) -> LaunchPlan:
    from . import pipeline

    return pipeline.plan(launch)


def _xla(launch: Launch) -> LaunchPlan:
    from . import xla

    return xla.plan(launch)


def _tensorflow(launch: Launch) -> LaunchPlan:
    from . import frameworks

    return frameworks.tensorflow(launch)


def _jax(launch: Launch) -> LaunchPlan:
    from . import frameworks

    return frameworks.jax(launch)


def _parameter_server(launch: Launch) -> LaunchPlan:
    from . import parameter_server

    return parameter_server.plan(launch)


def _ray(launch: Launch) -> LaunchPlan:
    from . import ray_cluster

    return ray_cluster.plan(launch)


LAUNCHERS: dict[str, Callable[[Launch], LaunchPlan]] = {
    "script": script.plan,
    "torchrun": _torchrun,
    "horovod": _horovod,
    "mpi": _mpi,
    "pipeline": _pipeline,
    "xla": _xla,
    "tensorflow": _tensorflow,
    "jax": _jax,
    "parameter_server": _parameter_server,
    "ray": _ray,
}


def moved(plan: LaunchPlan, term: int, address: str, leads: bool, hosts: int) -> LaunchPlan:
    """The plan of an elastic job under another leader: see `torchrun.moved`. hosts: of the whole job."""
    from . import torchrun

    return torchrun.moved(plan, term, address, leads=leads, most=hosts - term)


def watchers(plan: LaunchPlan, roster: Roster, say: Callable[[str], None]) -> list[Watcher]:
    """The launcher's own watchers of the run, if it has any. The plan's scratch folder must exist."""
    if plan.launcher == "parameter_server":
        from .parameter_server.servers_watcher import ServersWatcher

        return [ServersWatcher(len(roster.names), plan.grace_seconds, roster)]
    if plan.launcher == "ray":
        from .ray_cluster.ray_watcher import RayWatcher

        return [RayWatcher(plan, roster)]
    if plan.mpi is None:
        return []
    from .mpi import MpiPlan
    from .mpi.mpi_watcher import MpiWatcher  # sockets are slow to load

    assert isinstance(plan.mpi, MpiPlan)
    return [MpiWatcher(plan.mpi, roster, say)]
