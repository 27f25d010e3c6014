"""A cluster by variables of one's own: a list of hosts, or torchrun's count, rank and master.

TRAINSHED_HOSTS=a,b,c                     every host, the same list everywhere
TRAINSHED_HOST=b                          this one; default: the one whose name is this machine's

NNODES=3 NODE_RANK=1 MASTER_ADDR=a        how many hosts, which one this is, and where the first one is
"""

from __future__ import annotations

from trainshed.base.errors import JobError, Problem, did_you_mean
from trainshed.contract.cluster import Cluster
from trainshed.contract.wire.variables import HOST, HOSTS
from trainshed.machine.network import interface_to

from .hosts import natural_order
from .indexed import SchedulerFacts, cluster_of, number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainshed.contract.job import TrainingJob


def evidence(job: TrainingJob, environ: Mapping[str, str]) -> str:
    """Names the variables that are set, "" for none."""
    if environ.get(HOSTS):
        return f"{HOSTS} lists the hosts"
    if environ.get("NNODES") and environ.get("NODE_RANK"):
        return "NNODES and NODE_RANK are set"
    return ""


def cluster(job: TrainingJob, environ: Mapping[str, str]) -> Cluster:
    """The hosts that the variables name. Raises JobError."""
    if not environ.get(HOSTS):
        count, rank = number(environ, "NNODES"), number(environ, "NODE_RANK")
        return cluster_of(SchedulerFacts("static", count, rank, environ.get("MASTER_ADDR", "")), "variable NODE_RANK")
    hosts = natural_order(host.strip() for host in environ[HOSTS].split(",") if host.strip())
    current = environ.get(HOST) or _own_name(hosts)
    if current not in hosts:
        message = f"is not in {HOSTS} ({', '.join(hosts[:6])})"
        raise JobError([Problem(f"variable {HOST}", message, value=current, suggestion=did_you_mean(current, hosts))])
    several = len(hosts) > 1
    return Cluster(
        hosts=hosts,
        current_host=current,
        rank=hosts.index(current),
        address=hosts[0] if several else "127.0.0.1",
        interface=interface_to("") if several else "",
        scheduler="static",
    )


def _own_name(hosts: tuple[str, ...]) -> str:
    import os

    name = os.uname().nodename
    return next((host for host in hosts if host == name or host.split(".")[0] == name.split(".")[0]), name)
