"""What every launcher starts from."""

from __future__ import annotations

from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.contract.cluster import Cluster
    from trainshed.contract.job import TrainingJob

    from ..program import Program


class Launch(Record):
    """A job on this host, ready to be turned into processes by a launcher.

    arguments: the script's command line.
    environment: the whole environment that all processes of the script share.
    scratch: a folder for small files of this run, removed at its end.
    notes: warnings about the plan, for the user.
    """

    job: TrainingJob
    cluster: Cluster
    program: Program
    arguments: tuple[str, ...]
    environment: dict[str, str]
    scratch: str
    notes: tuple[str, ...] = ()

    def log_file(self, rank: int | str) -> str:
        """Where a rank's output is kept; the host is in the name, since hosts may share the folder."""
        return f"{self.job.paths.logs}/{self.cluster.current_host}.rank{rank}.log"

    def label(self, rank: int) -> str:
        """Tag of a rank's log lines."""
        return f"{self.cluster.current_host}:{rank}"
