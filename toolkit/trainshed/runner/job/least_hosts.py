"""With how many of its hosts a job goes on: fewer than all only with torch's elastic agent."""

from __future__ import annotations

from trainshed.contract.settings import read_settings
from trainshed.contract.wire.variables import PREFIX, of_setting

from .job import Job

_SETTINGS = ("engine", "min_nodes")


def least_hosts(job: Job) -> int:
    """How many hosts are enough when others are lost, 0 where all are needed.

    The hosts of such a job agree among themselves how it ends, also without one that cannot say so any more.
    """
    reserved = {f"{PREFIX.lower()}{name}": job.hyperparameters.get(f"{PREFIX.lower()}{name}") for name in _SETTINGS}
    variables = {
        of_setting(name): job.environment[of_setting(name)] for name in _SETTINGS if of_setting(name) in job.environment
    }
    settings = read_settings(reserved, "", variables, [])
    least = settings.min_nodes if settings.engine == "torchrun" else 0
    return least if 0 < least < len(job.hosts) else 0
