"""Pods of one job on Kubernetes: Kubeflow's TrainJob and PyTorchJob, JobSet, and Indexed Jobs.

| who | count | index | first pod |
|---|---|---|---|
| TrainJob (Trainer v2), PyTorchJob with elastic policy | PET_NNODES | PET_NODE_RANK | PET_MASTER_ADDR |
| PyTorchJob (training operator) | WORLD_SIZE | RANK | MASTER_ADDR |
| Indexed Job, JobSet | NNODES | JOB_COMPLETION_INDEX | MASTER_ADDR |

An Indexed Job knows its index, not its size: the manifest has to set NNODES and MASTER_ADDR.
"""

from __future__ import annotations

from trainshed.base.errors import JobError, Problem
from trainshed.contract.cluster import Cluster

from .indexed import SchedulerFacts, cluster_of, number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainshed.contract.job import TrainingJob


def evidence(job: TrainingJob, environ: Mapping[str, str]) -> str:
    """Names a pod's variables that are set, "" for none."""
    if environ.get("PET_NODE_RANK") and environ.get("PET_NNODES"):
        return "PET_NNODES and PET_NODE_RANK are set (Kubeflow)"
    if not environ.get("KUBERNETES_SERVICE_HOST"):
        return ""
    if environ.get("JOB_COMPLETION_INDEX") and environ.get("NNODES"):
        return "JOB_COMPLETION_INDEX and NNODES are set (Indexed Job)"
    if environ.get("WORLD_SIZE") and environ.get("RANK") and environ.get("MASTER_ADDR"):
        return "WORLD_SIZE, RANK and MASTER_ADDR are set (PyTorchJob)"
    return ""


def cluster(job: TrainingJob, environ: Mapping[str, str]) -> Cluster:
    """The pods of the job. Raises JobError."""
    if environ.get("PET_NODE_RANK"):
        count, rank, address = "PET_NNODES", "PET_NODE_RANK", environ.get("PET_MASTER_ADDR", "")
        least, colon, most = environ["PET_NNODES"].partition(":")
        if colon and job.settings.engine != "torchrun":
            message = "a range of hosts needs torch's elastic agent; without it, give one number"
            hint = f"or set trainshed_engine to torchrun and trainshed_min_nodes to {least}"
            raise JobError([Problem("variable PET_NNODES", message, value=environ["PET_NNODES"], suggestion=hint)])
        if colon:
            environ = {**environ, "PET_NNODES": most}
        address = address or environ.get("PET_RDZV_ENDPOINT", "").rpartition(":")[0]
    elif environ.get("JOB_COMPLETION_INDEX") and environ.get("NNODES"):
        count, rank, address = "NNODES", "JOB_COMPLETION_INDEX", ""
    else:
        count, rank, address = "WORLD_SIZE", "RANK", ""
    address = address or environ.get("MASTER_ADDR", "")
    return cluster_of(
        SchedulerFacts("kubernetes", number(environ, count), number(environ, rank), address), f"variable {rank}"
    )
