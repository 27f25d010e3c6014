"""One process on each host: the program, unchanged."""

from __future__ import annotations

from trainshed.contract.distributions import TRAITS

from ..supervisor.launch_plan import LaunchPlan, ProcessSpec
from .launch import Launcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .launch import Launch


def plan(launch: Launch) -> LaunchPlan:
    """A single process, without a rank."""
    return LaunchPlan(
        processes=(
            ProcessSpec(
                argv=(*launch.program.command, *launch.arguments),
                env=launch.environment,
                cwd=launch.program.folder,
                log=launch.log_file(launch.cluster.rank),
                signal_group=not launch.program.is_python,
            ),
        ),
        grace_seconds=launch.job.settings.grace_seconds,
        notes=launch.notes,
        launcher="script",
    )


LAUNCHER = Launcher(TRAITS["script"], plan)
