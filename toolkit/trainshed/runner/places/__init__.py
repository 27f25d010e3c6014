"""Where hosts run. Each backend starts one child process a host, and knows how to stop, kill and clear away."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..job.job import HERE, RAY, SSH, Job
from .base import Backend

__all__ = ["Backend", "choose"]


def choose(job: Job, environ: Mapping[str, str], say: Callable[[str], None], on: str = HERE) -> Backend:
    """Machines reached by ssh or nodes of Ray if asked for; containers where the job names an image, else processes."""
    if on == RAY:
        from .ray.hosts import RayHosts

        return RayHosts(job, environ, say)
    if on == SSH:
        from .ssh.backend import Machines

        return Machines(job, environ, say)
    if job.image:
        from .containers import Containers

        return Containers(job, environ, say)
    from .processes import Processes

    return Processes(job, environ, say)
