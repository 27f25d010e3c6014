"""The input of every launcher, and what a launcher consists of."""

from __future__ import annotations

from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from trainshed.base.check import Check
    from trainshed.contract.cluster import Cluster
    from trainshed.contract.distributions import DistributionTraits
    from trainshed.contract.job import TrainingJob
    from trainshed.contract.outcome import Failure

    from ..program import Program
    from ..roster.roster import Roster
    from ..supervisor.launch_plan import LaunchPlan
    from ..supervisor.watcher import Watcher


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
        """The path of a rank's log; the host is in the name, since hosts may share the folder."""
        return f"{self.job.paths.logs}/{self.cluster.current_host}.rank{rank}.log"

    def label(self, rank: int) -> str:
        """Tag of a rank's log lines."""
        return f"{self.cluster.current_host}:{rank}"


class Launcher(Record):
    """How the ranks of a distribution are started.

    traits: what others ask about the distribution.
    plan: makes this host's processes, and starts none. Raises LaunchError where the job cannot be started so.
    watchers: the watchers of a run that are the launcher's own. The plan's scratch folder exists.
    check: what `trainshed doctor` says of a plan; [] for the usual line.
    missed: what a distribution's ranks have not done although all ended well: a failure; None where nothing is wrong.
    describe: what `train --dry-run` says of the processes on this host; "" for the usual words.
    """

    traits: DistributionTraits
    plan: Callable[[Launch], LaunchPlan]
    watchers: Callable[[LaunchPlan, Roster, Callable[[str], None]], list[Watcher]] = staticmethod(lambda *_: [])
    check: Callable[[LaunchPlan], list[Check]] = staticmethod(lambda _: [])
    describe: Callable[[Cluster, LaunchPlan], str] = staticmethod(lambda *_: "")
    missed: Callable[[LaunchPlan], Failure | None] = staticmethod(lambda _: None)
