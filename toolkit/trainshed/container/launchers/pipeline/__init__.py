"""Pipeline parallel ranks: torchrun's or Open MPI's, with the pipeline's settings in their environment.

`trainshed.parallel` takes its settings from `TRAINSHED_PIPELINE`. Amazon's module names are on the path, so that scripts
for its library find ours; transformers takes the flag `sagemaker_mpi_enabled` as the sign to use that library: it is true
only for a job that has `mp_parameters`, which was written for it.
"""

from __future__ import annotations

import json
import os

from trainshed.contract.distributions import TRAITS
from trainshed.contract.wire.pipeline import VARIABLE
from trainshed.contract.wire.variables import PIPELINE_BEGUN

from ...supervisor.launch_plan import LaunchPlan
from .. import torchrun
from ..launch import Launcher
from ..torchrun import with_them

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from trainshed.contract.outcome import Failure

    from ...roster.roster import Roster
    from ...supervisor.watcher import Watcher
    from ..launch import Launch


def plan(launch: Launch) -> LaunchPlan:
    """The plan of torchrun or mpirun, with this distribution's variables added.

    The SDK asks for MPI wherever it asks for Amazon's library. A pipeline does not need it: where the image has no Open
    MPI, our own supervisor starts the ranks of such a job.
    """
    distribution = launch.job.distribution
    environment = {**launch.environment, **variables(launch.environment, distribution.pipeline)}
    if launch.cluster.world_size > 1:
        environment[PIPELINE_BEGUN] = f"{launch.scratch}/pipeline-begun"
    launch = launch.replace(environment=environment)
    engine = launch.job.settings.engine
    if engine == "mpi" or (engine == "trainshed" and distribution.asked_by == "sagemaker_mpi_enabled"):
        from .. import mpi

        if engine == "mpi" or mpi.available(environment):
            return mpi.plan(launch).replace(launcher="pipeline")
        launch = launch.replace(notes=(*launch.notes, "mpirun is not installed: trainshed starts the ranks itself"))
    return torchrun.plan(launch).replace(launcher="pipeline")


def variables(environment: dict[str, str], parameters: dict[str, Any]) -> dict[str, str]:
    """Variables that the ranks get in addition to the job's.

    Args:
        parameters: the pipeline's settings, by name.
    """
    values = {"PYTHONPATH": with_them(environment), VARIABLE: json.dumps(parameters, sort_keys=True)}
    if not environment.get("PYTHONHASHSEED"):
        # Models walk through sets of strings: with seeds of their own the ranks would build or run them in other orders.
        values["PYTHONHASHSEED"] = "0"
    if environment.get("SM_HP_MP_PARAMETERS"):
        framework = json.loads(environment.get("SM_FRAMEWORK_PARAMS") or "{}")
        flagged = {**framework, "sagemaker_mpi_enabled": True}
        values["SM_FRAMEWORK_PARAMS"] = json.dumps(flagged, sort_keys=True, separators=(",", ":"))
    return values


def missed(plan: LaunchPlan) -> Failure | None:
    """Several ranks that never began a pipeline have trained a model each, and have written them into one folder."""
    begun = next((spec.env[PIPELINE_BEGUN] for spec in plan.shown if PIPELINE_BEGUN in spec.env), "")
    if not begun or os.path.exists(begun):
        return None
    from trainshed.base.errors import EXIT_USER
    from trainshed.contract.outcome import Failure

    return Failure(
        kind="UserError",
        summary="the distribution is pipeline, and the script never began one: each rank has trained a model of its own, "
        "all into one folder",
        exit_code=EXIT_USER,
        hint="import trainshed.parallel as pipe, call pipe.init(), and wrap model and optimizer (docs/pipeline.md); a loop "
        "with DDP wants distribution: torchrun, any other one rank",
    )


def _watchers(plan: LaunchPlan, roster: Roster, say: Callable[[str], None]) -> list[Watcher]:
    if plan.mpi is None:
        return []
    from .. import mpi

    return mpi.watchers(plan, roster, say)


LAUNCHER = Launcher(TRAITS["pipeline"], plan, _watchers, missed=missed)
