"""Nodes of a Slurm job step that starts `train` once a node: `srun --ntasks-per-node=1 train`."""

from __future__ import annotations

import re

from trainshed.base.errors import JobError, Problem
from trainshed.contract.cluster import Cluster
from trainshed.machine.hostlist import expand

from .indexed import SchedulerFacts, cluster_of, number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainshed.contract.job import TrainingJob


def evidence(job: TrainingJob, environ: Mapping[str, str]) -> str:
    """Names the step of Slurm that this is a task of, "" for none. (A batch script runs on one node only.)"""
    if environ.get("SLURM_STEP_ID", "").isdigit() and environ.get("SLURM_NODEID") and environ.get("SLURM_STEP_NODELIST"):
        return f"this is step {environ.get('SLURM_JOB_ID')}.{environ['SLURM_STEP_ID']} of Slurm"
    return ""


def cluster(job: TrainingJob, environ: Mapping[str, str]) -> Cluster:
    """The nodes of the step, in Slurm's order. Raises JobError."""
    hosts = expand(environ["SLURM_STEP_NODELIST"])
    tasks = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE") or "1"
    if re.fullmatch(r"1(\(x\d+\))?", tasks) is None:
        message = "train starts the ranks itself: start it once on each node"
        raise JobError([Problem("Slurm step", message, "tasks per node", tasks, "srun --ntasks-per-node=1 train")])
    rank = number(environ, "SLURM_NODEID")
    return cluster_of(SchedulerFacts("slurm", len(hosts), rank, hosts[0], hosts), "variable SLURM_NODEID")
