"""Hosts that come and go while a job runs: before each exchange those that are there agree on who takes part.

All is written once, in a store that all hosts reach (`meeting_place`), and read by all. Meetings have numbers:

    N/here      what each host says that has come                 appended to
    N/list      who exchanges, in one order                       written once, by whoever sees that all are there
    N/done      how many of these have the result                 counted
    N/verdict   go: all of them have it, and take it; or not: they meet again, as N + 1, without those that are lost

An exchange therefore counts for all of the hosts on its list, or for none. A host that does not show signs of life
(`beat/ID`) is lost; when it is back, it is a newcomer.
"""

from __future__ import annotations

import atexit
import json
import socket
import threading
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from trainshed.base.numerals import whole
from trainshed.base.voice import tell

from .between_hosts import LocalStepsError
from .heartbeat import MISSED, Life
from .host_lines import Flight, Line, Stages
from .rendezvous import EXCHANGE, Meeting, Present, alike, may_begin, meeting_of, read_here, read_meeting

T = TypeVar("T")
Work = Callable[[Line, Meeting], Stages[T]]
_ASK = 0.1  # seconds between looks at the store while messages pass
_TRIES = 3  # exchanges that break off although all hosts live


class Members:
    """This host's place among those of a job that come and go.

    Args:
        place: `host:port` of the meeting place, `python -m trainshed.parallel.data.meeting_place`.
        name: of this host, for people; by default that of the machine.
        job: hosts with the same word meet.
        begin: how many hosts begin together.
        least: with how many it goes on, alike on all hosts; it waits for so many, `timeout` at most.
        lost_after: seconds without a sign of life after which a host is left behind.
        timeout: seconds to wait for a host that lives and does not come.

    Raises:
        LocalStepsError: the place cannot be reached.
    """

    def __init__(
        self,
        place: str,
        *,
        name: str | None = None,
        job: str = "job",
        begin: int = 2,
        least: int = 1,
        lost_after: float = 15,
        timeout: float = 1800,
    ) -> None:
        host, _, port = place.rpartition(":")
        if not host or whole(port) is None:
            raise ValueError(f"place = {place!r}: host:port of the meeting place")
        if begin < 1 or least < 1 or lost_after <= 0 or timeout <= 0:
            raise ValueError(f"begin = {begin}, least = {least}, lost_after = {lost_after}, timeout = {timeout}: above 0")
        self.place, self.id, self._job = place, uuid.uuid4().hex, job
        self.name = name or socket.gethostname()
        self._begin, self._least, self._timeout, self._lost_after = begin, least, timeout, lost_after
        try:
            store = dist.TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=timedelta(seconds=30))
        except (RuntimeError, ValueError) as error:
            raise LocalStepsError(self._no_place(error)) from error
        self._store = dist.PrefixStore(job, store)
        self._life = Life(dist.PrefixStore(job, store.clone()), self.id, lost_after / MISSED)  # type: ignore[attr-defined]
        self._groups_store = dist.PrefixStore(job, store.clone())  # type: ignore[attr-defined]
        self._number = 0
        self._last: list[str] = []  # hosts of the last exchange that counts
        self._went = False  # whether the meeting before this one counts
        self._out = False  # this host is no longer of the job
        self._names: dict[str, str] = {}
        self._line: Line | None = None
        self.sent = 0  # bytes that this host has given to others
        atexit.register(self._life.stop)

    def agree(self, why: str, exchange: int, step: int, token: str, plan: str, work: Work[T]) -> tuple[Meeting, T]:
        """Meets the other hosts, and does `work` with them, again with fewer of them if one is lost meanwhile.

        Returns:
            The meeting that all its hosts have got through, and what came of it on this one.

        Raises:
            LocalStepsError: too few hosts, hosts that do not reach each other, or what `work` raises.
        """
        if self._out:
            raise LocalStepsError("this host has left the job: start it again to come back")
        me = Present(self.id, self.name, why, exchange, step, token, f"{plan} {self._least}")
        try:
            return self._through_one(me, work)
        except LocalStepsError:
            self.leave(failed=True)
            raise
        except RuntimeError as error:  # of the store
            self._out = True
            self._life.stop()
            raise LocalStepsError(self._no_place(error)) from error

    def _through_one(self, me: Present, work: Work[T]) -> tuple[Meeting, T]:
        broken: dict[tuple[str, ...], int] = {}
        while True:
            meeting = self._convened(me)
            if meeting is None:
                continue
            self._refuse_other_steps(meeting)
            try:
                came, said = self._tried(meeting, work)
            except BaseException:
                self._abandon()  # without the place this host ends, whatever still passes between hosts
                raise
            if said is None:
                self._tell_changes(meeting)
                return meeting, came[0]
            key = tuple(meeting.ids)
            broken[key] = broken.get(key, 0) + 1
            if broken[key] >= _TRIES:
                raise LocalStepsError(
                    f"hosts {', '.join(meeting.names)} reach the meeting place at {self.place}, but not each other: {said}"
                )

    def leave(self, failed: bool = False) -> None:
        """Goes: the others do not wait for this host any more. A job that all have left is over, unless they failed."""
        self._out = True
        self._life.stop()
        try:
            self._store.set(f"gone/{self.id}", "failed" if failed else "left")
        except RuntimeError:
            return  # without the place the others end anyway

    # --- who is there ---

    def _convened(self, me: Present) -> Meeting | None:
        """The next meeting, once there is a list; None if it went on without this host."""
        if self._number == 0:  # new: the verdicts before the newest one are of no interest
            self._number = int(self._read("newest") or 0)
        while (verdict := self._read(f"{self._number}/verdict")) is not None:
            known = json.loads(verdict)
            self._last, self._went = known["last"], known["go"]
            self._number += 1
        number, began = self._number, time.monotonic()
        self._store.append(f"{number}/here", me.line())  # type: ignore[attr-defined]
        while True:
            here = read_here(self._read(f"{number}/here") or "")
            listed = self._read(f"{number}/list")
            if listed is not None:
                meeting = read_meeting(listed, self._last)
                self._names |= {one.id: one.name for one in here}
                if me.id in meeting.ids:
                    return meeting
                if meeting.hosts[meeting.source].plan != me.plan:
                    self._refuse_other_plans(meeting)
                while self._read(f"{number}/verdict") is None:
                    self._life.watch([*self._last, *meeting.ids])
                    if any(map(self._away, meeting.ids)):
                        self._decide(meeting, False)
                    time.sleep(0.05)
                return None
            self._life.watch([*self._last, *(one.id for one in here)])
            self._propose(number, here, began)
            time.sleep(0.02)

    def _propose(self, number: int, here: list[Present], began: float) -> None:
        """Writes the list, if it is time to."""
        away = {one for one in (*self._last, *(one.id for one in here)) if self._away(one)}
        there = [one for one in here if one.id not in away]
        late = time.monotonic() - began > self._timeout
        if self._last and all(map(self._gone, self._last)) and any(self._gone(one) == "left" for one in self._last):
            raise LocalStepsError(
                f"all hosts of the job {self._job!r} have left, it is over: give a new one another word (job=...)"
            )
        fit = alike(there, self._last)
        known = not self._last or any(one.why == EXCHANGE for one in there)  # which model and settings count
        if known and self.id not in [one.id for one in fit]:
            self._refuse_other_plans(meeting_of(number, "", there, self._last))
        ready = may_begin(fit, self._last, away, self._begin) or (late and bool(self._last))
        if ready and len(fit) >= self._least:
            meeting = meeting_of(number, uuid.uuid4().hex, fit, self._last)
            self._store.compare_set(f"{number}/list", "", meeting.text())
        elif late:
            wanted = self._least if self._last else self._begin
            lost = sorted(self._names.get(one, one[:8]) for one in away)
            raise LocalStepsError(
                f"{len(there)} of {wanted} hosts are there after {self._timeout:g} s: {', '.join(one.name for one in there)}"
                + (f"; lost: {', '.join(lost)}" if lost else "")
            )

    def _refuse_other_plans(self, meeting: Meeting) -> None:
        raise LocalStepsError(
            "this host's model, or its every, bits, outer_rate, outer_momentum or least, are not those of host "
            + meeting.hosts[meeting.source].name
        )

    def _refuse_other_steps(self, meeting: Meeting) -> None:
        steps = {meeting.hosts[at].step: meeting.hosts[at].name for at in meeting.givers}
        if len(steps) > 1:
            each = ", ".join(f"host {name} {step}" for step, name in sorted(steps.items()))
            raise LocalStepsError(
                f"hosts have made unequally many steps: {each}; give each as many batches, and let no host leave out steps "
                "of the optimizer (GradScaler does)"
            )

    def _away(self, one: str) -> bool:
        return one != self.id and (self._life.lost(one) or self._gone(one) is not None)

    def _gone(self, one: str) -> str | None:
        return self._read(f"gone/{one}")

    # --- the exchange ---

    def _tried(self, meeting: Meeting, work: Work[T]) -> tuple[list[T], str | None]:
        """The result, and None; or what broke off."""
        came: list[T] = []
        said = None
        self._life.watch(meeting.ids)
        line = self._joined(meeting)
        if line is None:
            said = "no connection"
        else:
            before, flight = line.sent, Flight(work(line, meeting))
            asked = time.monotonic()
            while not flight.landed and said is None:
                flight.advance()
                if time.monotonic() - asked > _ASK:
                    asked, said = time.monotonic(), self._stopped(meeting)
                if not flight.landed:
                    time.sleep(0.002)
            self.sent += line.sent - before
            if flight.landed:
                try:
                    came, said = [flight.land()], None
                except LocalStepsError:
                    raise
                except RuntimeError as error:
                    said = str(error).splitlines()[0][:300]
        if said is None:
            done = self._store.add(f"{meeting.number}/done", 1)
            if done == len(meeting.hosts):
                self._decide(meeting, True)
            while (verdict := self._read(f"{meeting.number}/verdict")) is None:
                if any(map(self._life.lost, meeting.ids)):
                    self._decide(meeting, False)
                time.sleep(0.01)
            said = None if json.loads(verdict)["go"] else "a host was lost"
        else:
            self._decide(meeting, False)
        if said is not None:
            self._abandon()
        return came, said

    def _abandon(self) -> None:
        """Leaves the line, on which messages may wait for a host that is lost."""
        if self._line is not None:
            self._line.abandon()
            self._line = None

    def _stopped(self, meeting: Meeting) -> str | None:
        """Why an exchange that has begun cannot end."""
        lost = [one.name for one in meeting.hosts if self._away(one.id)]
        if lost:
            return f"host {', '.join(lost)} is lost"
        return "it broke off on another host" if self._read(f"{meeting.number}/verdict") is not None else None

    def _decide(self, meeting: Meeting, go: bool) -> None:
        """Writes whether an exchange counts, unless that is written already."""
        verdict = json.dumps({"go": go, "last": meeting.ids if go else self._last})
        self._store.compare_set(f"{meeting.number}/verdict", "", verdict)
        self._store.set("newest", str(meeting.number))

    def _joined(self, meeting: Meeting) -> Line | None:
        """A line among the meeting's hosts; that of the meeting before, if these had it and it counts, which all of them
        know alike: a host must not wait for others on a line that they have left. None if one is lost."""
        if self._line is not None and self._went and self._last == meeting.ids:
            return self._line
        self._abandon()
        made: list[Any] = []
        store = dist.PrefixStore(f"{meeting.number}/group", self._groups_store.clone())  # type: ignore[attr-defined]
        place, within = meeting.ids.index(self.id), timedelta(seconds=self._timeout)

        def make() -> None:
            try:
                made.append(dist.ProcessGroupGloo(store, place, len(meeting.hosts), within))
            except RuntimeError as error:
                made.append(error)

        thread = threading.Thread(target=make, daemon=True, name="trainshed meets hosts")
        thread.start()
        while thread.is_alive():
            if self._stopped(meeting) is not None:
                return None
            thread.join(_ASK)
        if isinstance(made[0], RuntimeError):
            return None
        line = Line(made[0], place, len(meeting.hosts))
        self._line = line
        return line

    # --- what is said ---

    def _tell_changes(self, meeting: Meeting) -> None:
        lost = sorted(self._names.get(one, one[:8]) for one in self._last if one not in meeting.ids)
        come = sorted(one.name for one in meeting.hosts if one.id not in self._last)
        self._names |= {one.id: one.name for one in meeting.hosts}
        if self._last and meeting.hosts[meeting.source].id not in self._last:
            source = meeting.hosts[meeting.source]
            tell(f"local steps: no host of the last exchange is there: going on from the model of host {source.name}")
        if not self._last:
            tell(f"local steps: {len(meeting.hosts)} hosts begin: {', '.join(meeting.names)}")
        elif lost or come:
            what = [*([f"without {', '.join(lost)}"] if lost else []), *([f"with {', '.join(come)}"] if come else [])]
            tell(f"local steps: {len(meeting.hosts)} hosts go on, {' and '.join(what)}: {', '.join(meeting.names)}")

    def _no_place(self, error: Exception) -> str:
        first = (str(error).splitlines() or [""])[0][:300]
        return f"the meeting place at {self.place} cannot be reached, without which hosts do not find each other: {first}"

    def _read(self, key: str) -> str | None:
        return self._store.get(key).decode() if self._store.check([key]) else None
