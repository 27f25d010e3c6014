"""The variables that `accelerate launch --config_file FILE` would give the ranks, for the setting `trainshed_accelerate`.

config_file reads the file and holds it against the job; asking has Accelerate itself, in an interpreter of its own, turn
it into variables (`query_child`). `..accelerate_files` notices such files
that no setting names.
"""

from __future__ import annotations

from trainshed.base.errors import LaunchError
from trainshed.contract.distributions import traits_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..launch import Launch


def with_its_variables(launch: Launch, kind: str) -> Launch:
    """The launch, with the variables of the job's Accelerate or DeepSpeed file in its environment, and notes about it.

    Args:
        kind: the job's distribution.

    Raises:
        LaunchError: the file is absent, wrong, or asks for what this job has not; or Accelerate is not installed.
    """
    from .config_file import read
    from .query import variables_of

    name = launch.job.settings.accelerate
    if "accelerate" not in traits_of(kind).takes:
        raise LaunchError(
            f"trainshed_accelerate = {name} needs the distribution torchrun, and this job's is {kind}",
            hint="leave trainshed_distribution out, or leave trainshed_accelerate out",
        )
    file = read(name, launch.program.folder)
    notes = file.held_against(launch.cluster)
    answer = variables_of(file, launch)
    return launch.replace(
        environment={**launch.environment, **answer.variables}, notes=(*launch.notes, *notes, *answer.notes)
    )
