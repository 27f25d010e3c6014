"""A cluster described by `resourceconfig.json`, or by SM_HOSTS and SM_CURRENT_HOST: SageMaker, local modes, our runner."""

from __future__ import annotations

from trainshed.contract.cluster import Cluster

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainshed.contract.job import TrainingJob


def evidence(job: TrainingJob, environ: Mapping[str, str]) -> str:
    """Says that the job lists its hosts; "" if it does not."""
    return f"the job lists {len(job.resources.hosts)} host(s)" if job.resources.given else ""


def cluster(job: TrainingJob, environ: Mapping[str, str]) -> Cluster:
    """The hosts of the distribution's instance groups (all hosts without groups), in natural order.

    The platform sorts `hosts` by letter (algo-10 before algo-2) and the hosts of a group not at all, so the order is
    made here, the same on every host.
    """
    resources = job.resources
    members = [host for group in job.distribution.groups for host in resources.group_hosts(group)]
    hosts = tuple(dict.fromkeys(members or resources.hosts))
    if len(hosts) > 1:
        from .hosts import natural_order

        hosts = natural_order(hosts)
    current = resources.current_host
    if current not in hosts:
        return Cluster(hosts=(current,), current_host=current, scheduler="sagemaker", participates=False)
    several = len(hosts) > 1
    interface = ""
    if several:
        from trainshed.machine.network import interface_to

        interface = interface_to(resources.network_interface_name)
    return Cluster(
        hosts=hosts,
        current_host=current,
        rank=hosts.index(current),
        # By loopback on a single host: its name need not resolve, and often does not.
        address=hosts[0] if several else "127.0.0.1",
        interface=interface,
        scheduler="sagemaker",
    )
