"""On which of its addresses host 0 listens for the others: no more of them than the job needs."""

from __future__ import annotations

import ipaddress
import socket

from trainshed.machine.network import addresses_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.contract.cluster import Cluster

EVERYWHERE = ("",)
LOOPBACK = "lo"


def to_listen_on(cluster: Cluster) -> tuple[str, ...]:
    """The addresses of host 0 for the job's hosts; `EVERYWHERE` where it is not certain by which they come.

    Hosts that are processes of one machine meet on loopback. Other hosts come by the first host's name: where this host
    finds under it nothing but addresses of the job's interface, these are enough. A name that stands for loopback (as in
    Debian's /etc/hosts) or for another interface says nothing about what the others find under it.
    """
    found = _resolved(cluster.address)
    if found and all(ipaddress.ip_address(address).is_loopback for address in found):
        meant = cluster.interface == LOOPBACK or _is_address(cluster.hosts[0])
        return tuple(found) if meant else EVERYWHERE
    own = addresses_of(cluster.interface) if cluster.interface else []
    return tuple(own) if found and set(found) <= set(own) else EVERYWHERE


def _resolved(name: str) -> list[str]:
    """The addresses of a host name, without repeats; [] where it has none."""
    try:
        rows = socket.getaddrinfo(name, None, proto=socket.IPPROTO_TCP)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(row[4][0]).partition("%")[0] for row in rows))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
