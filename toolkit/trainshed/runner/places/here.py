"""This machine: hosts are containers where the job names an image, else processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..job.job import Job
from .base import Backend, Hosts


class Here(Hosts):
    """This machine."""

    def backend(self, job: Job, environ: Mapping[str, str], say: Callable[[str], None]) -> Backend:
        """Containers or processes."""
        if job.image:
            from .containers import Containers

            return Containers(job, environ, say)
        from .processes import Processes

        return Processes(job, environ, say)
