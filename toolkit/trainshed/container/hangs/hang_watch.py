"""Looks after the ranks of a job: when nothing moves any more, or when asked, one report; then stop or go on.

A watcher of the supervisor's loop that talks to the other hosts over the roster. Host 0 (or the only host) puts the parts
of all hosts together. Between hosts:

    {"type": "hang", "do": "still" | "moved"}        a host's ranks have stood still for the set time, or no longer do
    {"type": "hang", "do": "ask"}                    a host was sent SIGUSR1
    {"type": "hang", "do": "look", "id": n}          host 0 wants everyone's part
    {"type": "hang", "do": "part", "id": n, "part"}  a host's part
    {"type": "hang", "do": "told", "sentence"}       what came of it

This module is loaded by every job, so it leaves all that a good job never needs to the functions that need it.
"""

from __future__ import annotations

import signal
import time

from ..supervisor.watcher import FOREVER, Watcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from trainshed.contract.job import Job
    from trainshed.contract.outcome import Failure

    from ..roster.roster import Roster
    from ..supervisor.launch_plan import LaunchPlan
    from ..supervisor.watcher import Supervised
    from .hang_report import Part
    from .sample import Look, Sample

LOOKS = 8  # in the time after which a job hangs; the first when half of it is over, so that most jobs are never looked at
POLL_SECONDS = 0.05  # while answers are awaited
GATHER_SECONDS = 20.0  # that the other hosts get for their parts


def stops_on_hang(job: Job, plan: LaunchPlan) -> bool:
    """Whether a hang ends the job: its own word, else only where there are ranks, which have no business standing still.

    A single program may be a server, or wait for something outside.
    """
    return (job.settings.on_hang or ("continue" if plan.launcher == "script" else "stop")) == "stop"


class Gathering:
    """Host 0's list of who has sent its part."""

    def __init__(self, number: int, why: str, hosts: list[str], hang: bool) -> None:
        self.number, self.why, self.hang = number, why, hang
        self.waiting = set(hosts)
        self.parts: dict[str, Part] = {}
        self.until = time.monotonic() + GATHER_SECONDS


class HangWatch(Watcher):
    """The watcher. `failure` is why the job was stopped, None unless it hung and was not to go on."""

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
        """
        self.host = host
        self.folder = folder
        self.code_folder = code_folder
        self._say = say
        self.roster = roster
        self.seconds = seconds
        self.stop = stop
        self.failure: Failure | None = None
        self.run: Supervised | None = None
        self.running = False  # whether the supervisor's loop is at work; after it only the roster's own
        self.look: Look | None = None
        self.before: list[Sample] | None = None  # the last look's, while nothing has moved since
        self.first_still = 0.0  # when the first of these looks was over
        self.last_moved = self.next_look = 0.0
        self.still = False  # whether this host's ranks have stood still for the set time
        self.dumps: dict[int, str] = {}  # rank -> file that its flight recorder was asked to write
        self.dumps_asked = 0.0  # when, in seconds since the epoch
        self.seen: list[Sample] | None = None  # a look for a report that waits for these files
        self.asked_early = ""  # why a report was asked for before the loop's first turn
        self.wanted: int | None = None  # the number of the part that host 0 wants from us, 0 for a report of our own
        # Of host 0 alone:
        self.gathering: Gathering | None = None
        self.gathered = 0
        self.all_still: set[str] = set()  # the hosts that stand still
        self.reported = False  # a hang that goes on is not reported twice
        roster.on_message = self.heard
        roster.on_wait = self._advance

    def say(self, text: str) -> None:
        """Lines for the user, between the script's."""
        (self.run.say if self.run is not None and self.running else self._say)(text)

    # --- watched by the supervisor ---

    def pause(self) -> float:
        """Seconds until we must have a turn."""
        if self.run is None:
            return 0.0
        if self.look is not None or self.gathering is not None or self.seen is not None:
            return POLL_SECONDS
        return max(0.0, self.next_look - time.monotonic())

    def turn(self, run: Supervised) -> None:
        """Goes on with what is under way, and looks at the ranks when it is time to."""
        if self.run is None:
            self._begin(run)
        self._advance()

    def signalled(self, number: int, grace: float) -> None:
        """SIGUSR1 asks for a report, whatever the state of the job."""
        if number != signal.SIGUSR1:
            return
        if self.roster.leads:
            self._gather(f"asked for on {self.host}", hang=False)
        elif not self.roster.send({"type": "hang", "do": "ask"}):
            self.say("host 0 cannot be reached: a report of this host alone")
            self._contribute(0)

    def run_over(self) -> None:
        """The ranks have ended; other hosts may still hang, and the roster goes on giving us turns."""
        self.running = False

    def _begin(self, run: Supervised) -> None:
        self.run = run
        self.running = True
        self.last_moved = time.monotonic()
        if self.asked_early:
            self._gather(self.asked_early, hang=False)
        elif self.wanted is not None:  # host 0 was quicker
            self._contribute(self.wanted)

    def _advance(self) -> None:
        """One turn, inside the supervisor's loop or outside of it."""
        now = time.monotonic()
        if self.seen is not None and self._dumps_are_there():
            samples, self.seen = self.seen, None
            self._deliver(samples)
        if self.look is not None and self.look.done():
            look, self.look = self.look, None
            self._seen(look.samples(), now)
        if self.seconds and self.running and self.run is not None and not self.run.stopping:
            self._watch(self.run, now)
        else:
            self.next_look = now + FOREVER
        if self.all_still and self.roster.leads and not self.reported and self.failure is None and self.gathering is None:
            present = self._hosts_with_ranks()
            if present and self.all_still.issuperset(present):
                self._gather(f"nothing has moved for {self.seconds:g} s", hang=True)
        if self.gathering is not None and (not self.gathering.waiting or now > self.gathering.until):
            gathering, self.gathering = self.gathering, None
            self._put_together(gathering)

    # --- this host ---

    def _watch(self, run: Supervised, now: float) -> None:
        quiet = min(run.silent(), now - self.last_moved)
        if quiet < self.seconds / 2:
            self.before = None
            self._is_still(False)
            self.next_look = now + self.seconds / 2 - quiet
        elif now >= self.next_look and self.look is None:
            self._start_look(run)

    def _start_look(self, run: Supervised) -> None:
        from .sample import Look

        self.look = Look([rank for rank in run.ranks if not rank.spec.helper], self.host, self.code_folder)
        self.next_look = time.monotonic() + (self.seconds or FOREVER) / LOOKS

    def _seen(self, samples: list[Sample], now: float) -> None:
        """A look is over."""
        from .sample import anything_moved

        assert self.run is not None
        known = self.before
        moved = known is not None and anything_moved(known, samples)
        quiet = min(self.run.silent(), now - self.last_moved)
        if moved:
            self.last_moved = now
        if moved or quiet < self.seconds / 2:
            self._is_still(False)
        # A look that was asked for early is no beginning: the next one would be compared with it too soon.
        self.before = None if moved or quiet < self.seconds / 2 else samples
        if known is None:
            self.first_still = now
        # A machine that was asleep has not been looked at meanwhile: what counts is what was seen.
        seen = now - self.first_still >= self.seconds * (LOOKS // 2 - 1) / LOOKS
        if known is not None and not moved and seen and quiet >= self.seconds > 0:
            self._is_still(True)
        if self.wanted is not None and self.dumps and not self._dumps_are_there():
            self.seen = samples
        elif self.wanted is not None:
            self._deliver(samples)

    def _is_still(self, still: bool) -> None:
        if still == self.still:
            return
        self.still = still
        if self.roster.leads:
            self._note(self.host, still)
        else:
            self.roster.send({"type": "hang", "do": "still" if still else "moved"})

    def _contribute(self, number: int) -> None:
        """Looks now, and delivers what is seen as this host's part."""
        self.wanted = number
        if self.run is not None:
            from ..launchers.flight_recorder import ask_for_dump
            from .recorder import dump_file

            self.dumps_asked = time.time()
            self.dumps = {
                rank.spec.rank: dump_file(rank.spec.env, rank.spec.rank)
                for rank in self.run.ranks
                if rank.alive and rank.spec.rank is not None and ask_for_dump(rank.spec.env, rank.spec.rank)
            }
        if self.look is None and self.run is not None:
            self._start_look(self.run)

    def _dumps_are_there(self) -> bool:
        """Whether the flight recorders have written, or had the time to."""
        from .recorder import DUMP_SECONDS, summary, written_since

        if time.time() - self.dumps_asked > DUMP_SECONDS:
            return True
        # One that is being written cannot be read yet.
        return all(written_since(path, self.dumps_asked) and summary(path) for path in self.dumps.values() if path)

    def _deliver(self, samples: list[Sample]) -> None:
        from .hang_report import part_of, put_together, write
        from .recorder import summary, written_since

        number, self.wanted = self.wanted, None
        moved = not self.still and any(sample.reading is not None for sample in samples)
        known = {rank: summary(path) for rank, path in self.dumps.items() if written_since(path, self.dumps_asked)}
        part = part_of(self.host, samples, moved, len(self.dumps), known)
        self.dumps = {}
        if self.gathering is not None and self.gathering.number == number:
            self._take(part)
            return
        report = put_together(f"{self.host} alone", [part], [])
        path = write(self.folder, self.host, report.text())
        if number == 0:
            self.say("\n".join(report.console(path)))
        else:
            self.roster.send({"type": "hang", "do": "part", "id": number, "part": part.plain()})

    # --- all hosts ---

    def heard(self, host: str, message: dict[str, Any]) -> None:
        """A message of another host that the roster itself does not know."""
        if message.get("type") != "hang":
            return
        do = message.get("do")
        if not self.roster.leads:
            if do == "look" and isinstance(message.get("id"), int):
                self._contribute(message["id"])
            elif do == "told":
                self.say(f"hang report (all of it is on host 0): {message.get('sentence')}")
        elif do == "ask":
            self._gather(f"asked for on {host}", hang=False)
        elif do in ("still", "moved"):
            self._note(host, do == "still")
        elif do == "part" and self.gathering is not None and message.get("id") == self.gathering.number:
            from .hang_report import Part

            try:
                part = Part.of(message["part"])
            except (KeyError, TypeError, ValueError, AttributeError):
                return
            if part.host == host:
                self._take(part)

    def _note(self, host: str, still: bool) -> None:
        """Host 0: who stands still."""
        if still:
            self.all_still.add(host)
        else:
            self.all_still.discard(host)
            self.reported = False

    def _hosts_with_ranks(self) -> list[str]:
        """Host 0: the hosts whose ranks have not ended; empty once the job is stopping."""
        stopping = self.running and self.run is not None and self.run.stopping
        return [] if stopping else self.roster.running()

    def _gather(self, why: str, *, hang: bool) -> None:
        if self.run is None:  # the loop has not had its first turn
            self.asked_early = why
            return
        if self.gathering is not None:
            self.gathering.hang = self.gathering.hang or hang
            return
        self.gathered += 1
        self.gathering = Gathering(self.gathered, why, self.roster.present(), hang)
        self.roster.send({"type": "hang", "do": "look", "id": self.gathered})
        self._contribute(self.gathered)

    def _take(self, part: Part) -> None:
        assert self.gathering is not None
        self.gathering.parts[part.host] = part
        self.gathering.waiting.discard(part.host)

    def _put_together(self, gathering: Gathering) -> None:
        from .hang_report import put_together, write

        hang = gathering.hang and not any(part.moved for part in gathering.parts.values())
        if gathering.hang and not hang and gathering.why.startswith("nothing"):
            return  # something has moved just now
        parts = [gathering.parts[host] for host in self.roster.names if host in gathering.parts]
        report = put_together(gathering.why, parts, sorted(gathering.waiting))
        path = write(self.folder, self.host, report.text())
        self.say("\n".join(report.console(path)))
        self.roster.send({"type": "hang", "do": "told", "sentence": report.verdict.sentence})
        if not hang:
            return
        self.reported = True
        if not self.stop:
            self.say("the job goes on (trainshed_on_hang)")
            return
        assert self.run is not None
        self.failure = report.failure(self.host, path, self.run.now())
        why = f"Hang: {self.failure.summary}"
        self.roster.hang(self.failure)
        if self.running:
            self.run.stop_for_others(why, False, False)
