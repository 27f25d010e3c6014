"""This machine: hosts are containers where the job names an image, else processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trainshed.runner.acting.base import Backend, Hosts
from trainshed.runner.acting.leftovers import Leftovers
from trainshed.runner.job.job import Job


class Here(Hosts):
    """This machine."""

    def backend(self, job: Job, environ: Mapping[str, str], say: Callable[[str], None]) -> Backend:
        """Containers or processes."""
        if job.image:
            from .containers import Containers

            return Containers(job, environ, say)
        from .processes import Processes

        return Processes(job, environ, say)

    def leftovers(self, run_id: str, engine: str | None, environ: Mapping[str, str]) -> Leftovers:
        """Containers, if an engine has its hosts, else processes."""
        if engine is None:
            return super().leftovers(run_id, engine, environ)
        from .cleanup import LeftoverContainers

        return LeftoverContainers(run_id, engine, environ)
