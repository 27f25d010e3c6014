"""Plans and outcomes of processes: the records between the launchers, the supervisor and the report."""

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
    log: file that keeps every byte it prints; "" for tools that we run (pip), whose output has logins in URLs masked.
    rank: its rank in the job; None if it has none.
    signal_group: whether a stop signal goes to its whole process group. True for shells, which do not pass signals on;
        False for Python programs, whose data-loader workers would die of it before a checkpoint is made.
    helper: name of a process that serves the ranks without being one, e.g. `mpirun`; it outlives them and does not get
        their signals. "" for a rank. Helpers that have a rank's number run the script, as workers of a chief do.
    cpus: the only CPUs that it may run on; () for all.
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

    @property
    def runs_script(self) -> bool:
        """Tells whether it is the user's program, and not a tool of ours."""
        return not self.helper or self.rank is not None


class MpiPlan(Record):
    """The plan that MPI's watcher (`launchers.mpi.mpi_watcher`) is made from.

    rank: what each rank is made from; its label and log hold `{rank}`.
    daemon: what Open MPI's daemon is made from, on hosts where mpirun itself does not start the ranks; argv is added.
    hosts: the job's hosts in the agreed order.
    node_rank: this host's index among them.
    own: variables of a rank that this host decides, whatever mpirun says; "" removes one.
    socket: path of the socket where mpirun's agent and the ranks' proxies reach `train`.
    start_seconds: how long all ranks may take to start.
    """

    rank: ProcessSpec
    daemon: ProcessSpec
    hosts: tuple[str, ...]
    node_rank: int
    own: dict[str, str]
    socket: str
    start_seconds: float


class LaunchPlan(Record):
    """Everything needed to start the job's processes on this host; made without starting any process.

    grace_seconds: seconds from a stop signal to SIGKILL.
    max_seconds: time limit of the whole run in seconds; 0 for no limit.
    notes: warnings about how the plan was made (shown by `--dry-run` and at the start).
    launcher: the distribution that made it.
    scratch: the folder for this run's small files; "" if none is needed.
    notice_file: the file in which the processes find notices of interruption (`contract.wire.notice`).
    rank: what every rank is made from if another program (mpirun) asks for the ranks; else None.
    agent_events: file to which torch's elastic agent writes its restarts; "" without the agent.
    compiler: which compiler the ranks use and why (shown by `--dry-run`); "" if none was asked for.
    compile: what the ranks are told about it; None if nothing is compiled.
    says: lines to print at the start of the job.
    later: processes that the launcher's watcher starts on this host in the course of the run.
    start_seconds: how long these may take on all hosts.
    port: the job's port, 0 where no process is to listen on it; span: how many ports from it on the whole job may use.
    listens: those on which processes of this host are to listen, counted from it.
    mpi: what MPI's watcher is made from, None for other launchers.
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
    mpi: MpiPlan | None = None
    compiler: str = ""
    compile: CompilePlan | None = None
    says: tuple[str, ...] = ()
    later: tuple[ProcessSpec, ...] = ()
    start_seconds: float = 0.0
    port: int = 0
    span: int = 1
    listens: tuple[int, ...] = ()

    @property
    def shown(self) -> tuple[ProcessSpec, ...]:
        """Every kind of process that this host will run, for showing the plan."""
        return (*self.processes, *(() if self.rank is None else (self.rank,)), *self.later)


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
    """How the run ended.

    results: one for each rank, in their order, and one for each helper that failed them.
    stop_signal: the first stop signal that `train` itself was sent; 0 for none.
    stop_at: when, in seconds since the start.
    stopped_by: why another host of the job stopped this one; "" if none did.
    killed: how many processes were killed after the grace.
    left_behind: how many processes the script had left running when its ranks had ended.
    seconds: wall time of the run.
    over: when it was over, on this machine's monotonic clock; 0 if nobody looked.
    timed_out: whether the plan's time limit ended the run.
    log_problem: why a log file is missing or ends early; "" if all are whole.
    """

    results: tuple[ProcessResult, ...]
    stop_signal: int = 0
    stop_at: float = 0.0
    stopped_by: str = ""
    killed: int = 0
    left_behind: int = 0
    seconds: float = 0.0
    over: float = 0.0
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
        self.spec = spec
        self.stage = stage
        self.error = error
