"""The distribution `local_pool`: copies of the script, each of which is told its number and how many there are."""

from __future__ import annotations

from trainshed.container.launchers import DistributionTraits, Launch, Launcher, LaunchPlan, ProcessSpec


def plan(launch: Launch) -> LaunchPlan:
    """This host's copies."""
    first = launch.cluster.rank * launch.cluster.processes_per_host
    return LaunchPlan(
        processes=tuple(_copy(launch, first + number) for number in range(launch.cluster.processes_per_host)),
        grace_seconds=launch.job.settings.grace_seconds,
        notes=launch.notes,
        launcher="local_pool",
    )


def _copy(launch: Launch, rank: int) -> ProcessSpec:
    return ProcessSpec(
        argv=(*launch.program.command, *launch.arguments),
        env={**launch.environment, "RANK": str(rank), "WORLD_SIZE": str(launch.cluster.world_size)},
        cwd=launch.program.folder,
        label=launch.label(rank),
        log=launch.log_file(rank),
        rank=rank,
    )


launcher = Launcher(DistributionTraits("local_pool"), plan)
