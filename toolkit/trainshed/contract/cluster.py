"""The hosts of a job and their hardware, as records; `container.cluster` makes them."""

from __future__ import annotations

from trainshed.base.record import Record


class Hardware(Record):
    """This host's hardware. cpus: as many as the cgroup and the affinity mask allow, rounded up."""

    cpus: int = 1
    gpus: int = 0
    neurons: int = 0
    memory_bytes: int = 0  # the cgroup's limit or the machine's memory
    shm_bytes: int = 0
    description: str = ""


class Cluster(Record):
    """The hosts of the job, in the same order on each of them, and this host's position.

    hosts: the hosts that take part in the distribution; the first one is the master.
    rank: this host's index in `hosts` (node rank).
    processes_per_host: ranks on each host.
    address, port: where rank 0 of the ranks listens.
    interface: network interface that routes to the other hosts, "" on a single host.
    scheduler: what placed the job. evidence: how that is known.
    """

    hosts: tuple[str, ...]
    current_host: str
    rank: int = 0
    processes_per_host: int = 1
    address: str = "127.0.0.1"
    port: int = 7777
    interface: str = ""
    scheduler: str = "single"
    evidence: str = ""
    hardware: Hardware = Hardware()
    participates: bool = True  # False: this host's instance group is outside the distribution

    @property
    def world_size(self) -> int:
        """Number of ranks in the whole job."""
        return len(self.hosts) * self.processes_per_host

    @property
    def master(self) -> str:
        """The host of rank 0."""
        return self.hosts[0]
