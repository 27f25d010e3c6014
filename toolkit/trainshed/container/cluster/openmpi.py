"""`train` started by an outer mpirun, once on each host (`mpirun -npernode 1 train`, an MPIJob's workers)."""

from __future__ import annotations

from trainshed.base.errors import JobError, Problem
from trainshed.contract.cluster import Cluster

from .indexed import SchedulerFacts, cluster_of, number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainshed.contract.job import TrainingJob


def evidence(job: TrainingJob, environ: Mapping[str, str]) -> str:
    """Names Open MPI's variable where it is set, else ""."""
    return "OMPI_COMM_WORLD_SIZE is set (Open MPI)" if environ.get("OMPI_COMM_WORLD_SIZE") else ""


def cluster(job: TrainingJob, environ: Mapping[str, str]) -> Cluster:
    """One host for each process. Raises JobError."""
    local = environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "1")
    if local != "1":
        message = "train starts the ranks itself: start it once on each host"
        raise JobError([Problem("mpirun", message, "processes on this host", local, "mpirun -npernode 1 train")])
    count, rank = number(environ, "OMPI_COMM_WORLD_SIZE"), number(environ, "OMPI_COMM_WORLD_RANK")
    return cluster_of(
        SchedulerFacts("openmpi", count, rank, environ.get("MASTER_ADDR", "")), "variable OMPI_COMM_WORLD_RANK"
    )
