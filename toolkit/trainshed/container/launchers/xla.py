"""torch_xla: one process on each host, which starts one process for each chip itself (`trainshed.compiler.mp_fn`).

Several processes on a CPU would silently train separate models: `container.compiler.choice` refuses them.
"""

from __future__ import annotations

from trainshed.contract.distributions import TRAITS

from ..supervisor.launch_plan import LaunchPlan
from . import script
from .launch import Launcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .launch import Launch


def plan(launch: Launch) -> LaunchPlan:
    """A single process, which is this host's rank."""
    made = script.plan(launch)
    (spec,) = made.processes
    several = len(launch.cluster.hosts) > 1
    named = spec.replace(rank=launch.cluster.rank, label=launch.label(launch.cluster.rank) if several else "")
    return made.replace(processes=(named,), launcher="xla", scratch=launch.scratch)


LAUNCHER = Launcher(TRAITS["xla"], plan)
