"""How hosts find each other by name where the engine's networks know no names.

Docker's networks have a name server. Podman's have one only if another package is installed (aardvark-dns, or the plugin
dnsname), so there every host gets a fixed address, and all of them in its /etc/hosts.
"""

from __future__ import annotations

import ipaddress
import json

from trainshed.runner.files.run import Run

from .container_command import network_name
from .container_engine import Engine, EngineError

FIRST = 2  # behind the network's own address and its gateway's


def host_addresses(engine: Engine, run: Run) -> dict[str, str]:
    """The addresses that the hosts are to get in their network, by name; {} where the engine sees to names itself.

    Raises:
        EngineError: the network is not as Podman makes one.
    """
    network = network_name(run)
    if not network or not _is_podman(engine):
        return {}
    try:
        (found,) = json.loads(engine.checked("network", "inspect", network))
        # Podman's own answer, and the one that its service gives to Docker's client.
        text = found["subnets"][0]["subnet"] if "subnets" in found else found["IPAM"]["Config"][0]["Subnet"]
        space = ipaddress.ip_network(text)
        return {host.name: str(space[FIRST + number]) for number, host in enumerate(run.hosts)}
    except (ValueError, LookupError, TypeError) as error:
        raise EngineError(f"the network {network} has too few addresses for {len(run.hosts)} hosts: {error}") from error


def _is_podman(engine: Engine) -> bool:
    if engine.kind == "podman":
        return True
    done = engine.run("version", "--format", "{{range .Server.Components}}{{.Name}},{{end}}")
    return "podman" in done.stdout.lower()
