"""The job's port at a restart: the same, unless something still listens there.

`train` ends whatever a script leaves running, so that as a rule nothing does. What was started in its name elsewhere (by
a daemon, in another container on the host's network) may live on and hold a port, and ranks that wanted it would fail at
once, or meet it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .supervisor.launch_plan import LaunchPlan

CANDIDATES = 8
LEAST_STEP = 16  # between two candidates: others may take the ports after the job's, such as the roster
LAST_PORT = 65_535
PORT_TAKEN = "port {old} is taken on {where}, so port {new} takes its place"


def candidates(plan: LaunchPlan) -> tuple[int, ...]:
    """The ports that the job may use next, the present one first. The same on all hosts; () where no rank listens."""
    if not plan.port:
        return ()
    step = max(LEAST_STEP, plan.span + 2)
    ports = (plan.port + step * number for number in range(CANDIDATES))
    return tuple(port for port in ports if port + plan.span <= LAST_PORT)


def free(plan: LaunchPlan) -> tuple[int, ...]:
    """Those of the candidates with which no port is taken that processes of this host are to listen on."""
    ports = candidates(plan)
    return tuple(port for port in ports if all(_is_free(port + offset) for offset in plan.listens))


def _is_free(port: int) -> bool:
    import socket  # slow to load

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: connections that are over do not matter
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
