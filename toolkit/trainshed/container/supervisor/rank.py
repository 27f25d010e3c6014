"""A started process of the plan: its streams, its log, and what is known of its end."""

from __future__ import annotations

import os

from trainshed.contract.wire.secret_names import environment_secrets, secret_bytes
from trainshed.machine.streams import Console, LogFile, RankPipe

from .launch_plan import ProcessResult, ProcessSpec
from .spawn import spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .watcher import Start, Watcher


class Rank:
    """A rank or a helper.

    returncode: exit status, -n where signal n killed it; None while it lives.
    ended: when it ended, in seconds since the start of the run.
    stopped: whether it ended after all ranks had been asked to stop.
    dismissed: whether its end does not matter: a helper's that has done its work, or that of a rank instead of a lost one.

    Raises:
        StartError: the process could not be started.
    """

    def __init__(self, spec: ProcessSpec, out: Console, err: Console, start: Start = spawn) -> None:
        self.spec = spec
        self.log = LogFile(spec.log)
        self.pid, out_fd, err_fd = start(spec)
        hidden = secret_bytes(environment_secrets(spec.env))
        self.out = RankPipe(out_fd, out, self.log, spec.label, hidden=hidden)
        self.err = RankPipe(err_fd, err, self.log, spec.label, hidden=hidden)
        self.returncode: int | None = None
        self.ended = 0.0
        self.stopped = False
        self.dismissed = False

    def tell(self, listeners: Sequence[Watcher]) -> None:
        """Lets watchers know what it prints from now on."""

        def printed(lines: bytes) -> None:
            for listener in listeners:
                listener.printed(self, lines)

        if listeners:
            self.out.listener = self.err.listener = printed

    @property
    def alive(self) -> bool:
        """Tells whether it has not ended."""
        return self.returncode is None

    @property
    def counts(self) -> bool:
        """Tells whether its end is part of the outcome: a helper's only where it failed the ranks."""
        return not self.dismissed and (not self.spec.helper or (self.returncode != 0 and not self.stopped))

    @property
    def name(self) -> str:
        """For messages to other hosts: `rank 3`, `mpirun`, `its script`."""
        return self.spec.helper or (f"rank {self.spec.rank}" if self.spec.label else "its script")

    def end(self, returncode: int, now: float, stopped: bool) -> None:
        """Notes that the process has been reaped."""
        self.returncode = returncode
        self.ended = now
        self.stopped = stopped

    def dismiss(self) -> None:
        """Ignores its end and what it prints from now on."""
        self.dismissed = True
        for stream in (self.out, self.err):
            stream.console = Console(-1)

    def result(self) -> ProcessResult:
        """How it ended, for the report."""
        assert self.returncode is not None
        errors, output = self.err.last_bytes(), self.out.last_bytes()
        return ProcessResult(
            spec=self.spec,
            returncode=self.returncode,
            ended=self.ended,
            tail=errors if errors.strip() else output,
            output_tail=output,
            traceback_at=self.err.traceback_at,
            stopped=self.stopped,
        )


def send(pid: int, number: int, *, group: bool) -> None:
    """Sends a signal to a process, or to the process group that it leads; does nothing where that has ended."""
    try:
        if group:
            os.killpg(pid, number)  # every rank leads a process group
        else:
            os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass
