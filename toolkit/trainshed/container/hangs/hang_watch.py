"""Watches whether the ranks of a job make progress; reports where they are when none does, or when asked.

A watcher of the supervisor's loop. Each host watches its own ranks and contributes its part of a report; host 0 (or the
only host) gathers the parts (`gathering`), and stops a job that hangs or lets it go on. Between hosts, over the roster:

    {"type": "hang", "do": "still" | "moved"}        a host's ranks have stood still for the set time, or no longer do
    {"type": "hang", "do": "ask"}                    a host was sent SIGUSR1
    {"type": "hang", "do": "ask", "gave_up": rank}   a collective of a host's rank has timed out
    {"type": "hang", "do": "look", "id": n}          host 0 wants everyone's part
    {"type": "hang", "do": "part", "id": n, "part"}  a host's part
    {"type": "hang", "do": "told", "sentence"}       the report's first sentence

Every job loads this module, so functions import what only a hanging job needs.
"""

from __future__ import annotations

import time

from trainshed.contract.distributions import traits_of
from trainshed.machine.signals import signal

from ..supervisor.watcher import FOREVER, Watcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from trainshed.contract.job import TrainingJob
    from trainshed.contract.outcome import Failure

    from ..roster.roster import Roster
    from ..supervisor.launch_plan import LaunchPlan
    from ..supervisor.watcher import Process, Supervised
    from .contribution import Contribution
    from .gathering import Gatherer
    from .sample import Look, Sample

LOOKS = 8  # in the time after which a job hangs; the first after half of it, so that most jobs are never looked at
POLL_SECONDS = 0.05  # while answers are awaited
LATE_SECONDS = 3.0  # that a failed job waits to hear which rank the others waited for


def stops_on_hang(job: TrainingJob, plan: LaunchPlan) -> bool:
    """Returns whether a hang stops the job: as its settings say; else yes for ranks, no for a single program.

    A single program may be a server, or wait for something outside of the job; one that uses Ray waits for Ray's workers.
    """
    return (job.settings.on_hang or ("stop" if traits_of(plan.launcher).hang_stops else "continue")) == "stop"


class HangWatch(Watcher):
    """This host's watch over its ranks.

    failure: why the job was stopped; None unless it hung and was to be stopped.
    still: whether this host's ranks have stood still for the set time.
    gave_up: ranks of this host in which a collective has timed out.
    late: once that has happened on any host, which ranks were not there, in a sentence; "" until then.
    """

    def __init__(
        self,
        host: str,
        folder: str,
        code_folder: str,
        say: Callable[[str], None],
        roster: Roster,
        *,
        seconds: float,
        stop: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            host: this host's name.
            folder: where reports go.
            code_folder: where the user's code lies.
            say: prints a message for the user outside the supervisor's loop.
            roster: the job's hosts; its messages of type `hang` come here.
            seconds: how long all ranks of the job may stand still, 0 for ever.
            stop: whether a job that hangs is stopped.
            clock: seconds.
        """
        self.host = host
        self.folder = folder
        self.code_folder = code_folder
        self.roster = roster
        self.seconds = seconds
        self.stop = stop
        self.clock = clock
        self.failure: Failure | None = None
        self.still = False
        self.gave_up: frozenset[int | None] = frozenset()
        self.late = ""
        self._late_until = 0.0  # when this host goes on without knowing who is late
        self._say = say
        self._run: Supervised | None = None  # from the loop's first turn on
        self._running = False  # whether the loop is at work; after it the roster gives us turns while it waits
        self._look: Look | None = None
        self._before: list[Sample] | None = None  # the last look's, while nothing has moved since
        self._first_still = 0.0  # when the first of these looks was over
        self._last_moved = 0.0
        self._next_look = 0.0
        self._asked_early = ""  # who asked for a report before the loop's first turn
        self._wanted_early: int | None = None  # the part that host 0 asked for before it
        self._contribution: Contribution | None = None
        self._gatherer: Gatherer | None = None  # of host 0, made when it is first needed
        roster.listen("hang", self.heard)
        roster.on_wait = self._advance

    def say(self, text: str) -> None:
        """Prints a message, between two lines of the script while it runs."""
        (self._run.say if self._run is not None and self._running else self._say)(text)

    # --- in the supervisor's loop ---

    def pause(self) -> float:
        """Seconds until the watch needs a turn."""
        if self._run is None:
            return 0.0
        gathering = self._gatherer is not None and self._gatherer.request is not None
        if self._look is not None or self._contribution is not None or gathering or self.busy():
            return POLL_SECONDS
        return max(0.0, self._next_look - self.clock())

    def turn(self, run: Supervised) -> None:
        """Goes on with what is under way, and looks at the ranks when it is time to."""
        if self._run is None:
            self._begin(run)
        self._advance()

    def signalled(self, number: int, grace: float) -> None:
        """Makes a report for SIGUSR1, whatever the state of the job."""
        if number != signal.SIGUSR1:
            return
        if self.roster.leads:
            self._ask(asked=f"asked for on {self.host}")
        elif not self.roster.send({"type": "hang", "do": "ask"}):
            self.say("host 0 cannot be reached: the hang report is of this host alone")
            self._contribute(0)

    def printed(self, rank: Process, lines: bytes) -> None:
        """Has a report made when a collective times out, while the ranks that did not come are still where they are."""
        if rank.spec.rank is None or (b"imed out" not in lines and b"timeout" not in lines):
            return
        from .timed_out import gave_up

        if not gave_up(lines) or rank.spec.rank in self.gave_up:
            return
        first = not self.gave_up
        self.gave_up |= {rank.spec.rank}
        if first and not self.late:
            self._late_until = self.clock() + LATE_SECONDS
            if self.roster.leads:
                self._ask_who_is_late(self.host, rank.spec.rank)
            else:
                self.roster.send({"type": "hang", "do": "ask", "gave_up": rank.spec.rank})

    def busy(self) -> bool:
        """Returns whether the ranks have ended before it is known which of them was late."""
        return not self.late and self.clock() < self._late_until

    def run_over(self) -> None:
        """The ranks have ended; other hosts may still hang, and the roster goes on giving us turns."""
        self._running = False

    def _begin(self, run: Supervised) -> None:
        self._run = run
        self._running = True
        self._last_moved = self.clock()
        if self._asked_early:
            self._ask(asked=self._asked_early)
        elif self._wanted_early is not None:
            self._contribute(self._wanted_early)

    def _advance(self) -> None:
        """One turn, inside the supervisor's loop or outside of it."""
        now = self.clock()
        if self._look is not None and self._look.done():
            look, self._look = self._look, None
            self._take_look(look.samples(), now)
        if self._contribution is not None and self._contribution.ready():
            contribution, self._contribution = self._contribution, None
            self._deliver(contribution)
        if self.seconds and self._running and self._run is not None and not self._run.stopping:
            self._watch(self._run, now)
        else:
            self._next_look = now + FOREVER
        if self._gatherer is not None:
            self._lead(self._gatherer)

    # --- this host's ranks ---

    def _watch(self, run: Supervised, now: float) -> None:
        quiet = min(run.silent(), now - self._last_moved)
        if quiet < self.seconds / 2:
            self._before = None
            self._set_still(False)
            self._next_look = now + self.seconds / 2 - quiet
        elif now >= self._next_look and self._look is None:
            self._start_look(run)

    def _start_look(self, run: Supervised) -> None:
        from .sample import Look

        self._look = Look([rank for rank in run.ranks if rank.spec.runs_script], self.host, self.code_folder, self.clock)
        self._next_look = self.clock() + (self.seconds or FOREVER) / LOOKS

    def _take_look(self, samples: list[Sample], now: float) -> None:
        """Compares a look with the one before."""
        from .sample import anything_moved

        assert self._run is not None
        before = self._before
        moved = before is not None and anything_moved(before, samples)
        quiet = min(self._run.silent(), now - self._last_moved)
        if moved:
            self._last_moved = now
        if moved or quiet < self.seconds / 2:
            self._set_still(False)
        # A look made early, for a report, is not kept: the next one would be compared with it too soon.
        self._before = None if moved or quiet < self.seconds / 2 else samples
        if before is None:
            self._first_still = now
        # A machine that was suspended was not looked at meanwhile: only time between looks counts.
        seen = now - self._first_still >= self.seconds * (LOOKS // 2 - 1) / LOOKS
        if before is not None and not moved and seen and quiet >= self.seconds > 0:
            self._set_still(True)
        if self._contribution is not None:
            self._contribution.samples = samples

    def _set_still(self, still: bool) -> None:
        if still == self.still:
            return
        self.still = still
        if self.roster.leads:
            self._host0().note(self.host, still)
        else:
            self.roster.send({"type": "hang", "do": "still" if still else "moved"})

    # --- this host's part of a report ---

    def _contribute(self, number: int) -> None:
        """Looks at the ranks now, for this host's part; 0 for a report of this host alone."""
        if self._run is None:
            self._wanted_early = number
            return
        from .contribution import Contribution

        self._contribution = Contribution(number, self._run)
        if self._look is None:
            self._start_look(self._run)

    def _deliver(self, contribution: Contribution) -> None:
        from .hang_report import put_together, write

        part = contribution.part(self.host, self.still, self.gave_up)
        if self._gatherer is not None and self._gatherer.take(contribution.number, part):
            return
        report = put_together(f"{self.host} alone", [part], [])
        path = write(self.folder, self.host, report.text())
        if contribution.number == 0:
            self.say("\n".join(report.console(path)))
        else:
            self.roster.send({"type": "hang", "do": "part", "id": contribution.number, "part": part.plain()})

    # --- all hosts ---

    def heard(self, host: str, message: dict[str, Any]) -> None:
        """A message of another host's watch."""
        do = message.get("do")
        if not self.roster.leads:
            if do == "look" and isinstance(message.get("id"), int):
                self._contribute(message["id"])
            elif do == "told":
                if self.gave_up:
                    self.late = self.late or str(message.get("sentence"))
                self.say(f"hang report (all of it is on host 0): {message.get('sentence')}")
        elif do == "ask" and "gave_up" in message:
            self._ask_who_is_late(host, message["gave_up"])
        elif do == "ask":
            self._ask(asked=f"asked for on {host}")
        elif do in ("still", "moved"):
            self._host0().note(host, do == "still")
        elif do == "part":
            self._host0().take_message(host, message)

    def _host0(self) -> Gatherer:
        from .gathering import Gatherer

        if self._gatherer is None:
            self._gatherer = Gatherer(self.host, self.folder, self.roster, self.clock)
        return self._gatherer

    def _ask(self, *, hang: str = "", asked: str = "", late: str = "") -> None:
        """Host 0: has a report made of all hosts."""
        if self._run is None:
            self._asked_early = asked or late
        elif number := self._host0().ask(hang=hang, asked=asked, late=late):
            self._contribute(number)

    def _ask_who_is_late(self, host: str, rank: object) -> None:
        """Host 0: has a report made because a collective has timed out; only once, others are a consequence."""
        if not self.late:
            who = f"rank {rank} on {host}" if isinstance(rank, int) else host
            self._ask(late=f"a collective timed out in {who}")

    def _lead(self, gatherer: Gatherer) -> None:
        """Host 0: asks for a report when no rank of any host moves, and acts on one that is there."""
        stopping = self._running and self._run is not None and self._run.stopping
        if self.failure is None and not stopping and gatherer.all_stand_still():
            self._ask(hang=f"nothing has moved for {self.seconds:g} s")
        request = gatherer.finished()
        reported = gatherer.report(request) if request is not None else None
        if reported is None:
            return
        report, path, hang = reported
        self.say("\n".join(report.console(path)))
        if request is not None and request.late:
            self.late = report.verdict.sentence
        if hang and self.stop:
            self._stop(report.failure(self.host, path, self._run.now() if self._run is not None else 0.0))
        elif hang:
            self.say("the job goes on (trainshed_on_hang)")

    def _stop(self, failure: Failure) -> None:
        self.failure = failure
        self.roster.hang(failure)
        if self._running and self._run is not None:
            self._run.stop_for_others(f"Hang: {failure.summary}", False, False)
