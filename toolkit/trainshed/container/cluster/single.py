"""A job on this machine alone, without any description of a cluster."""

from __future__ import annotations

from trainshed.contract.cluster import Cluster

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainshed.contract.job import TrainingJob


def evidence(job: TrainingJob, environ: Mapping[str, str]) -> str:
    """Always applies: this is the last resort."""
    return "nothing names other hosts"


def cluster(job: TrainingJob, environ: Mapping[str, str]) -> Cluster:
    """One host."""
    host = job.resources.current_host
    return Cluster(hosts=(host,), current_host=host, scheduler="single")
