"""What is to be run, and what came of it: the two records between the launchers, the supervisor and the report."""

from __future__ import annotations

from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.contract.wire.compile_plan import CompilePlan


class ProcessSpec(Record):
    """One process to start.

    argv: the command line; argv[0] is an absolute path or is looked up in the environment's PATH.
    env: its whole environment.
    cwd: its working directory.
    label: tag of its log lines when there are several processes, e.g. `algo-1:3`.
    log: file that keeps every byte it prints; "" for a tool of ours (pip), on whose lines logins in URLs are blanked.
    rank: its rank in the job, None where it has none.
    signal_group: whether a stop signal goes to its whole process group. Shells do not pass signals on, so the group it
        is; Python programs get it alone, because their data-loader workers would die of it before a checkpoint is made.
    helper: name of a process that serves the ranks without being one, e.g. `mpirun`; it outlives them, and gets none of
        their signals.
    cpus: the only CPUs that it may run on, () for no such limit.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    label: str = ""
    log: str = ""
    rank: int | None = None
    signal_group: bool = False
    helper: str = ""
    cpus: tuple[int, ...] = ()


class LaunchPlan(Record):
    """Everything needed to start the job's processes on this host; made without touching any process.

    grace_seconds: from a stop signal to SIGKILL.
    max_seconds: longest time that all of it may take, 0 for no limit.
    notes: what to tell the user about how this plan came about (shown by `--dry-run` and at the start).
    launcher: the distribution that made it.
    scratch: the folder for this run's small files, "" where nothing needs it.
    notice_file: where the processes look for notices of interruption (`contract.wire.notice`).
    rank: what every rank is made from where the ranks are started on another program's word (mpirun's).
    agent_events: file in which torch's elastic agent notes its restarts, "" without it.
    compiler: which compiler the ranks use and why (shown by `--dry-run`), "" where nobody asks for one.
    compile: what the ranks are told about it, None where nothing is compiled.
    says: lines for the start of the job.
    mpi: what MPI's watcher is made from (`launchers.mpi.MpiPlan`), None for other launchers.
    """

    processes: tuple[ProcessSpec, ...]
    grace_seconds: float = 110.0
    max_seconds: float = 0.0
    notes: tuple[str, ...] = ()
    launcher: str = "script"
    scratch: str = ""
    notice_file: str = ""
    rank: ProcessSpec | None = None
    agent_events: str = ""
    mpi: Record | None = None
    compiler: str = ""
    compile: CompilePlan | None = None
    says: tuple[str, ...] = ()

    @property
    def shown(self) -> tuple[ProcessSpec, ...]:
        """Every kind of process that this host will run, for showing the plan."""
        return self.processes if self.rank is None else (*self.processes, self.rank)


class ProcessResult(Record):
    """How one process ended.

    returncode: exit status, -n where signal n killed it (as `subprocess` says it).
    ended: seconds since the start of the run.
    tail: the last bytes it wrote to stderr, or to stdout where stderr stayed empty.
    traceback_at: when the last Python traceback began to arrive, seconds since the start; None without one.
    stopped: whether it ended after we had asked it to.
    """

    spec: ProcessSpec
    returncode: int
    ended: float
    tail: bytes = b""
    output_tail: bytes = b""
    traceback_at: float | None = None
    stopped: bool = False

    @property
    def signal(self) -> int:
        """The signal that killed it, 0 if it exited."""
        return -self.returncode if self.returncode < 0 else 0


class Outcome(Record):
    """How the run ended, as the supervisor saw it.

    results: one for each rank, in their order, and one for each helper that failed them.
    stop_signal: the first stop signal that the supervisor itself was sent, 0 for none.
    stop_at: when, in seconds since the start.
    stopped_by: why another host of the job had us stop, "" if none did.
    killed: how many processes had to be sent SIGKILL after the grace.
    left_behind: how many processes the script had left running when its ranks had ended.
    seconds: wall time of the run.
    timed_out: whether the plan's time ran out.
    log_problem: why a log file is missing or ends early, "" if none does.
    """

    results: tuple[ProcessResult, ...]
    stop_signal: int = 0
    stop_at: float = 0.0
    stopped_by: str = ""
    killed: int = 0
    left_behind: int = 0
    seconds: float = 0.0
    timed_out: bool = False
    log_problem: str = ""

    @property
    def failed(self) -> tuple[ProcessResult, ...]:
        """The processes that did not exit with 0."""
        return tuple(result for result in self.results if result.returncode != 0)


class StartError(Exception):
    """A process could not be started; `stage` is `cwd`, `exec` or `fork`, `error` the OSError."""

    def __init__(self, spec: ProcessSpec, stage: str, error: OSError) -> None:
        super().__init__(f"cannot start {spec.argv[0]}: {error.strerror}")
        self.spec, self.stage, self.error = spec, stage, error
