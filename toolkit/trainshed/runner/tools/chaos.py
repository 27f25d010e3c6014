"""`trainshed chaos`: plays failures on a run that goes on here, at random moments, and tells what they cost.

The run's processes are found by the id that all of them inherit, those in containers too where this user may see them. All
that is done to them is done by the kernel: nothing in the job knows of it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from trainshed.base.units import duration
from trainshed.contract.wire.variables import RUN_ID

from ..state.stored import Stored, load

if TYPE_CHECKING:
    import psutil

PAUSE, SLOW, CUT, FULL = 10.0, 20.0, 15.0, 10.0  # seconds that a failure of the kind lasts
_TURN = 0.05  # seconds that a slowed rank stands still, and runs
_FULL_BYTES = 4096  # no file becomes longer on the full disk
_LOOK = 0.2  # seconds between two looks at a run of which no rank runs
_HOST = "SM_CURRENT_HOST"  # each process of the script has it, `train` has not
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK")
_WARM = "train-warm"  # the interpreter from which ranks are forked


@dataclass(frozen=True)
class Victim:
    """A process of a run. host: which it is on. rank: its number, "" for `train` itself."""

    process: psutil.Process
    host: str
    rank: str = ""

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host}" if self.rank else self.host


@dataclass(frozen=True)
class InjectedFailure:
    """What was played. at: seconds after the run's first rank was seen."""

    at: float
    kind: str
    what: str


@dataclass(frozen=True)
class FailureKind:
    """A kind of failure.

    does: for people.   strikes: which of a run it may strike.   play: does it, and gives it back when it is over.
    obstacle: why it cannot be played on a job, in containers or not, of so many hosts; "" where it can.
    needs_spot: the job has to be one on spot capacity.   outlived_by: fields of a job of which it needs one to go on.
    """

    does: str
    strikes: Callable[[Stored], list[Victim]]
    play: Callable[[Victim, threading.Event], None]
    obstacle: Callable[[bool, int], str] = lambda containers, hosts: ""
    needs_spot: bool = False
    outlived_by: tuple[str, ...] = ()


def _ranks(run: Stored) -> list[Victim]:
    return [one for one in victims(run.id) if one.rank]


def _trains(run: Stored) -> list[Victim]:
    return [one for one in victims(run.id) if not one.rank]


def _runner(run: Stored) -> list[Victim]:
    import psutil

    if runner := load(run.folder).runner:
        with suppress(psutil.NoSuchProcess):  # it has ended since
            return [Victim(psutil.Process(runner), "the job")]
    return []


def _kill(victim: Victim, over: threading.Event) -> None:
    victim.process.kill()


def _pause(victim: Victim, over: threading.Event) -> None:
    with _stopped(victim):
        over.wait(PAUSE)


def _slow(victim: Victim, over: threading.Event) -> None:
    end = time.monotonic() + SLOW
    while time.monotonic() < end and victim.process.is_running() and not over.wait(_TURN):
        with _stopped(victim):
            over.wait(_TURN)


@contextmanager
def _stopped(victim: Victim) -> Iterator[None]:
    victim.process.suspend()
    try:
        yield
    finally:
        victim.process.resume()


def _cut(victim: Victim, over: threading.Event) -> None:
    enter = ["nsenter", "--target", str(victim.process.pid), "--net", "ip", "link", "set", "dev", "eth0"]
    subprocess.run([*enter, "down"], check=True, capture_output=True)
    try:
        over.wait(CUT)
    finally:
        subprocess.run([*enter, "up"], check=victim.process.is_running(), capture_output=True)


def _fill(victim: Victim, over: threading.Event) -> None:
    import psutil

    soft, hard = victim.process.rlimit(psutil.RLIMIT_FSIZE)
    victim.process.rlimit(psutil.RLIMIT_FSIZE, (_FULL_BYTES, hard))
    try:
        over.wait(FULL)
    finally:
        victim.process.rlimit(psutil.RLIMIT_FSIZE, (soft, hard))


def _notice(victim: Victim, over: threading.Event) -> None:
    victim.process.send_signal(signal.SIGUSR2)


def _no_network(containers: bool, hosts: int) -> str:
    """Why a host cannot be cut off."""
    if not containers or hosts < 2:
        return "only containers of a job with several hosts have a network to be cut from"
    missing = [name for name in ("nsenter", "ip") if shutil.which(name) is None]
    if missing:
        return f"this machine has no {missing[0]}"
    return "" if os.geteuid() == 0 else "only root can cut a container's network"


_ANY = ("retries", "max_restarts")
_SPOT = "takes spot capacity away: a notice, the grace, a new start"
KINDS = {
    "kill": FailureKind("kills a rank (SIGKILL)", _ranks, _kill, outlived_by=_ANY),
    "host": FailureKind("kills a host: `train` and all below it", _trains, _kill, outlived_by=("retries",)),
    "pause": FailureKind(f"stops a rank for {PAUSE:.0f} s (SIGSTOP)", _ranks, _pause),
    "slow": FailureKind(f"lets a rank run half of the time, for {SLOW:.0f} s", _ranks, _slow),
    "cut": FailureKind(f"takes a container off the network for {CUT:.0f} s", _trains, _cut, _no_network),
    "disk-full": FailureKind(f"lets a rank write no file beyond 4 kB, for {FULL:.0f} s", _ranks, _fill, outlived_by=_ANY),
    "notice": FailureKind(_SPOT, _runner, _notice, needs_spot=True),
}
SIMPLE = ("kill", "pause", "slow", "notice")  # where nobody says which


class Chaos:
    """Plays failures on a run until it ends; `play` is for a thread of its own.

    Args:
        kinds: names of `KINDS`.
        every: mean seconds between two failures; they come at random, independently of each other.
        lasting: seconds after which no more come.
        say: tells what is played.
    """

    def __init__(
        self, run: Stored, kinds: Iterable[str], every: float, lasting: float, draw: Random, say: Callable[[str], None]
    ) -> None:
        self.run, self.kinds, self.every, self.lasting, self.draw, self.say = run, tuple(kinds), every, lasting, draw, say
        self.played: list[InjectedFailure] = []
        self.over = threading.Event()

    def play(self) -> None:
        """Returns when the run, or the time for failures, is over."""
        if not self._await_ranks():
            return
        began = time.monotonic()
        while not self.over.wait(self.draw.expovariate(1 / self.every)):
            if time.monotonic() - began > self.lasting or not self._await_ranks():
                return
            self._one(self.draw.choice(self.kinds), time.monotonic() - began)

    def _await_ranks(self) -> bool:
        """Waits until a rank runs; False if the run ends before."""
        while not _ranks(self.run):
            if self.over.wait(_LOOK) or not load(self.run.folder).runner:
                return False
        return True

    def _one(self, name: str, at: float) -> None:
        import psutil

        kind = KINDS[name]
        if not (found := kind.strikes(self.run)):
            return
        victim = self.draw.choice(found)
        self.say(f"chaos: {name} {victim}, {duration(at)} after the first rank began")
        self.played.append(InjectedFailure(at, name, str(victim)))
        try:
            kind.play(victim, self.over)
        except psutil.NoSuchProcess:  # it ended by itself meanwhile, or because others of the job did
            return
        except (psutil.Error, OSError, subprocess.CalledProcessError) as error:
            self.say(f"warning: chaos: {name} {victim}: {error}")


def victims(run_id: str) -> list[Victim]:
    """The ranks of a run, and each host's `train`, as far as this user sees them."""
    import psutil

    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter(["environ", "ppid", "name"]) if run_id else ():
        if (process.info["environ"] or {}).get(RUN_ID) == run_id and process.info["name"] != _WARM:
            found[process.pid] = process
    ranks = _topmost(found, lambda process: any(process.info["environ"].get(name) for name in _RANKS))
    ranks = ranks or _topmost(found, lambda process: True)  # of a script that was started alone
    named = [Victim(one, one.info["environ"][_HOST], _number(one.info["environ"])) for one in ranks]
    return [*named, *_hosts(found, {one.process.pid: one.host for one in named})]


def _topmost(found: Mapping[int, psutil.Process], chosen: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
    """Processes of the script that are chosen, without those that one of them has started."""
    mine = {pid: one for pid, one in found.items() if _HOST in one.info["environ"] and chosen(one)}
    return [one for one in mine.values() if one.info["ppid"] not in mine]


def _hosts(found: Mapping[int, psutil.Process], ranks: Mapping[int, str]) -> Iterator[Victim]:
    """Each host's first process that has a rank below it."""
    for process in (one for one in found.values() if one.info["ppid"] not in found):
        below = next((ranks[pid] for pid in _below(process, found) if pid in ranks), "")
        if below and process.pid not in ranks:
            yield Victim(process, below)


def _below(top: psutil.Process, found: Mapping[int, psutil.Process]) -> set[int]:
    """PIDs of what a process has started, and what that has."""
    inside = {top.pid}
    while more := {pid for pid, one in found.items() if one.info["ppid"] in inside} - inside:
        inside |= more
    return inside


def _number(environ: Mapping[str, str]) -> str:
    return next((environ[name] for name in _RANKS if environ.get(name)), "0")
