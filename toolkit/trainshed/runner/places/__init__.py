"""Where hosts run. Each backend starts one child process a host, and knows how to stop, kill and clear away."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..job.job import Job
from .base import Backend

__all__ = ["Backend", "choose"]


def choose(job: Job, environ: Mapping[str, str], say: Callable[[str], None]) -> Backend:
    """Containers where the job names an image, else processes of this machine."""
    if job.image:
        from .containers import Containers

        return Containers(job, environ, say)
    from .processes import Processes

    return Processes(job, environ, say)
