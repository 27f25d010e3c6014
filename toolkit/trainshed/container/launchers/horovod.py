"""Ranks of scripts for Horovod: torchrun's, with `horovod.torch` of ours on their path where the real one is absent."""

from __future__ import annotations

import os
import sys

from trainshed.base.errors import LaunchError
from trainshed.contract.distributions import TRAITS

from . import torchrun
from .launch import Launcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..supervisor.launch_plan import LaunchPlan
    from .launch import Launch

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# The folder whose `horovod` stands for the real one.
NAMES = os.path.join(_PACKAGE, "compat", "horovod_api")


def plan(launch: Launch) -> LaunchPlan:
    """The plan of torchrun, for scripts that import `horovod.torch`.

    Raises:
        LaunchError: the real Horovod is installed, which torchrun's ranks would not make one job.
    """
    if found := installed(launch):
        raise LaunchError(
            f"the real Horovod is installed ({found}), which needs MPI: without it each rank would train alone",
            hint="set trainshed_distribution to mpi, or leave horovod out of the image and requirements.txt to use ours",
        )
    return torchrun.plan(with_names(launch)).replace(launcher="horovod")


def with_names(launch: Launch) -> Launch:
    """The launch with our `horovod` at the end of the path, unless the real one is installed."""
    if installed(launch):
        return launch
    path = os.pathsep.join(folder for folder in (launch.environment.get("PYTHONPATH", ""), NAMES) if folder)
    return launch.replace(environment={**launch.environment, "PYTHONPATH": path})


def installed(launch: Launch) -> str:
    """The folder of the real Horovod, "" where there is none."""
    path = launch.environment.get("PYTHONPATH", "").split(os.pathsep)
    folders = (f"{folder}/horovod" for folder in (*path, *sys.path) if folder)
    return next((folder for folder in folders if os.path.isdir(folder)), "")


LAUNCHER = Launcher(TRAITS["horovod"], plan)
