"""Clusters described by the number of hosts, this host's index, and the address of the first host."""

from __future__ import annotations

from trainshed.base.errors import JobError, Problem
from trainshed.base.numerals import whole
from trainshed.base.record import Record
from trainshed.contract.cluster import Cluster
from trainshed.machine.network import interface_to

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class SchedulerFacts(Record):
    """Facts that a scheduler gives: how many hosts, which one this is, the first one's address, names if it knows them."""

    scheduler: str
    count: int
    rank: int
    address: str
    hosts: tuple[str, ...] = ()


def number(environ: Mapping[str, str], name: str) -> int:
    """A variable as a whole number of at least 0. Raises JobError."""
    text = environ.get(name, "")
    value = whole(text)
    if value is None:
        raise JobError([Problem(f"variable {name}", "must be a whole number", value=text)])
    return value


def cluster_of(counted: SchedulerFacts, source: str) -> Cluster:
    """The cluster; hosts without known names are called host-0, host-1 ... Raises JobError."""
    problems = []
    if not 0 <= counted.rank < max(counted.count, 1):
        message = f"must be below the number of hosts, {counted.count}"
        problems.append(Problem(source, message, value=str(counted.rank)))
    if counted.count > 1 and not counted.address:
        problems.append(Problem("variable MASTER_ADDR", "is not set: it must name the first host"))
    if problems:
        raise JobError(problems)
    hosts = counted.hosts or tuple(f"host-{index}" for index in range(max(counted.count, 1)))
    several = len(hosts) > 1
    return Cluster(
        hosts=hosts,
        current_host=hosts[counted.rank],
        rank=counted.rank,
        address=counted.address if several else "127.0.0.1",
        interface=interface_to("") if several else "",
        scheduler=counted.scheduler,
    )
