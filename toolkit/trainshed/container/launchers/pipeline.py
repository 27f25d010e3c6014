"""Pipeline parallel ranks: torchrun's ranks, with Amazon's module names on the path where the job has `mp_parameters`.

`trainshed.parallel` reads its settings from `SM_HP_MP_PARAMETERS`, as scripts for the closed library do. transformers
takes the flag `sagemaker_mpi_enabled` as the sign to use that library: it is set only for such a job.
"""

from __future__ import annotations

import json
import os

from ..supervisor.plan import LaunchPlan
from . import torchrun

TYPE_CHECKING = False
if TYPE_CHECKING:
    from . import Launch

# The folder whose `smdistributed` stands for Amazon's.
_COMPAT = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "compat")


def plan(launch: Launch) -> LaunchPlan:
    """torchrun's plan, with this distribution's variables."""
    environment = {**launch.environment, **variables(launch.environment)}
    made = torchrun.plan(launch.replace(environment=environment))
    return made.replace(launcher="pipeline")


def variables(environment: dict[str, str]) -> dict[str, str]:
    """What the ranks' environment has on top of the job's."""
    if not environment.get("SM_HP_MP_PARAMETERS"):
        return {}
    framework = json.loads(environment.get("SM_FRAMEWORK_PARAMS") or "{}")
    path = [folder for folder in (environment.get("PYTHONPATH", ""), _COMPAT) if folder]
    return {
        "PYTHONPATH": os.pathsep.join(path),
        "SM_FRAMEWORK_PARAMS": json.dumps(
            {**framework, "sagemaker_mpi_enabled": True}, sort_keys=True, separators=(",", ":")
        ),
    }
