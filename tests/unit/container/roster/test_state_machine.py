"""Random jobs in which random things happen: one verdict, with a cause, and nobody is left running.

A case is made from its seed. `TRAINSHED_TEST_ROSTER=5000` plays so many,
`TRAINSHED_TEST_ROSTER_SEED=17` begins with that one.
"""

from __future__ import annotations

import os
import random

import pytest

from support.roster_network import KEY, Network, Node
from trainshed.container.roster.authentication import Handshake, JobKey
from trainshed.container.roster.link import encode

pytestmark = pytest.mark.safety

CASES = int(os.environ.get("TRAINSHED_TEST_ROSTER", "240"))
FIRST = int(os.environ.get("TRAINSHED_TEST_ROSTER_SEED", "0"))
A_TEST = 20  # cases
QUICK = 120  # cases of `make test`; the others are heavy
PATIENCE = 20.0  # seconds of outage that no job may notice; what is longer may split it
ENDS_AT = 15.0
NONSENSE = (
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"[" * 200_000 + b"\n",
    b'{"type":"hello","rank":1,"token":"\\ud800"}\n',
    b"9" * 100_000,
    b"\x16\x03\x01" + bytes(400),
    Handshake(JobKey(b"x" * 32)).preface(),
    Handshake(KEY).preface() + bytes(92),
    Handshake(KEY).preface() + Handshake(JobKey(b"x" * 32)).claim(1, bytes(16), bytes(16)),
)


class Case:
    """One job with what happens to it.

    harm: whether anything happens that may end it badly.
    split: hosts that may have been away for so long that they name another cause.
    """

    RESTARTS = 0
    LAST = ENDS_AT  # until when anything happens

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.net = Network(self.random.randint(2, 5), seed, ENDS_AT, self.RESTARTS)
        self.harm = False
        self.split: set[int] = set()
        self.breaks = False  # whether connections are closed
        self.away: set[int] = set()  # hosts that are away for a while
        self.told: list[str] = []
        for _ in range(self.random.choice((0, 1, 1, 1, 2, 2, 3))):
            self.random.choice(self.EVENTS)(self, self.random.uniform(0, self.LAST - 1), self._any())
        if self.breaks and self.away:  # who cannot connect again within four seconds is lost
            self.harm = True
            self.split |= self.away

    def _any(self) -> int:
        return self.random.randrange(len(self.net.names))

    def _at(self, when: float, what: str, act: object) -> None:
        self.told.append(f"{when:.1f} s: {what}")
        self.net.at(when, act)

    # --- what may happen ---

    def fate(self, when: float, rank: int) -> None:
        node, fate = self.net.node(rank), self.random.choice(("failed", "interrupted"))
        node.fate, node.ends_at, self.harm = fate, self.net.began + when, True
        self.told.append(f"{when:.1f} s: {node.name} {fate}")

    def kill(self, when: float, rank: int) -> None:
        self.harm = True
        silently = self.random.random() < 0.3
        self._at(when, f"kill {rank}{' silently' * silently}", lambda: self.net.node(rank).kill(silently=silently))

    def kill_and_start_again(self, when: float, rank: int) -> None:
        self.kill(when, rank)
        again = when + self.random.uniform(0, 8)
        self._at(again, f"start {rank} again", lambda: self.net.start(rank))

    def twin(self, when: float, rank: int) -> None:
        self.harm = True  # for a job that has not started
        if rank:
            self._at(when, f"another {rank}", lambda: self.net.start(rank))

    def pause(self, when: float, rank: int) -> None:
        seconds = self.random.choice((1, 5, 15, 30, 45))
        self._away(seconds, {rank} if rank else set(range(len(self.net.names))))
        self._at(when, f"pause {rank} for {seconds} s", lambda: self._stand_still(rank, seconds))

    def _stand_still(self, rank: int, seconds: float) -> None:
        self.net.node(rank).paused_until = self.net.now() + seconds

    def _away(self, seconds: float, ranks: set[int]) -> None:
        self.away |= ranks
        if seconds > PATIENCE - 5:
            self.harm = True
            self.split |= ranks

    def cut(self, when: float, rank: int) -> None:
        rank, seconds = max(1, rank), self.random.choice((1, 5, 15, 30, 1000))
        self._away(seconds, {rank})
        cable = self.net.cables[rank]
        self._at(when, f"cut {rank} for {seconds} s", lambda: setattr(cable, "cut", True))
        if seconds < 1000:
            self.net.at(when + seconds, lambda: setattr(cable, "cut", False))

    def reset(self, when: float, rank: int) -> None:
        cable, self.breaks = self.net.cables[max(1, rank)], True
        self._at(when, f"reset {max(1, rank)}", cable.reset)

    def slow(self, when: float, rank: int) -> None:
        cable, most = self.net.cables[max(1, rank)], self.random.choice((20, 100, 1000))
        if most < 1000:  # not enough for a proof in time, or for the verdict
            self._away(30, {max(1, rank)})
        self._at(when, f"{most} bytes a turn for {max(1, rank)}", lambda: setattr(cable, "most", most))

    def spoil(self, when: float, rank: int) -> None:
        cable, self.breaks = self.net.cables[max(1, rank)], True
        self._at(when, f"spoil bytes of {max(1, rank)}", lambda: setattr(cable, "spoil", self.random.randint(1, 3)))

    def replay(self, when: float, rank: int) -> None:
        cable = self.net.cables[max(1, rank)]
        self._at(when, f"replay {max(1, rank)}", lambda: self.net.dial(b"".join(cable.heard)))

    def strangers(self, when: float, rank: int) -> None:
        count, word = self.random.randint(1, 60), self.random.choice((b"", *NONSENSE))
        self._at(when, f"{count} strangers", lambda: [self.net.dial(word) for _ in range(count)])

    def nonsense_from_a_host(self, when: float, rank: int) -> None:
        """A host of the job, proven, says what nobody should."""
        self.breaks = True
        word = self.random.choice(
            (
                {"type": "letter", "number": "x", "body": 3},
                {"type": "letter", "number": 10**22, "body": []},
                {"type": "ended", "state": 5},
                {"type": "ended", "state": "failed", "failure": {"kind": "x"}, "age": "old"},
                {"type": "failing", "why": [[[]]]},
                {"type": "verdict"},
                {"type": ["stop"]},
                {"rank": None},
            )
        )

        def say() -> None:
            roster = self.net.node(max(1, rank)).roster
            link = getattr(roster, "link", None)
            if link is not None:
                link.send_encoded(
                    self.random.choice((encode(word), b"[" * 5000, b'{"type": "\\ud800"}', b"{}" * 9, b"1" * 5000))
                )

        self._at(when, f"nonsense from {max(1, rank)}", say)

    EVENTS = (
        *(fate, fate, kill, kill_and_start_again, twin, pause, cut, reset, slow, spoil, replay, strangers),
        nonsense_from_a_host,
    )

    # --- what has to hold ---

    def check(self) -> None:
        try:
            self.net.to_the_end(limit=400)
            ended = [node for node in self.net.nodes if node.state == "over"]
            for node in ended:
                failure = node.verdict
                assert failure is None or failure.kind != "Stopped", f"{node.name} has no cause: {failure}"
                assert failure is None or (self.harm and failure.summary), f"{node.name}: {failure}"
            together = [node for node in ended if node.rank not in self.split and node.ran]
            causes = {(node.verdict.kind, node.verdict.host) if node.verdict is not None else None for node in together}
            assert len(causes) <= 1, f"not one cause: {[(node.name, node.verdict) for node in together]}"
            self._check_more(causes, together)
        finally:
            self.net.close()

    def _check_more(self, causes: set[object], together: list[Node]) -> None:
        failed = any(node.fate == "failed" and node.ran and node.state == "over" for node in self.net.nodes)
        if failed and not self.split:
            assert causes != {None} or all(node.fate == "failed" for node in together)


class AgainAndAgain(Case):
    """A job whose ranks are started again after up to four failures, of which no host has more than three."""

    RESTARTS = 12
    LAST = 45.0

    def fails(self, when: float, rank: int) -> None:
        """In one of the attempts; several hosts may fail in the same one."""
        node, attempt, seconds = self.net.node(rank), self.random.randint(0, 2), self.random.uniform(0, ENDS_AT - 1)
        self.told.append(f"{node.name} fails {seconds:.1f} s after the start of attempt {attempt}")
        node.fates[attempt] = "failed", seconds
        if attempt == 0:
            node.fate, node.ends_at = "failed", self.net.began + seconds

    def stop(self, when: float, rank: int) -> None:
        self.harm = True
        self._at(when, f"stop {rank}", lambda: self.net.node(rank).stop())

    EVENTS = (
        *(
            fails,
            fails,
            fails,
            fails,
            stop,
            Case.kill,
            Case.kill_and_start_again,
            Case.twin,
            Case.pause,
            Case.cut,
            Case.reset,
        ),
        *(Case.slow, Case.spoil, Case.replay, Case.strangers, Case.nonsense_from_a_host),
    )

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        for _ in range(3):
            self.fails(0.0, self._any())

    def _check_more(self, causes: set[object], together: list[Node]) -> None:
        assert not self.net.early, self.net.early
        attempts = {node.attempt for node in self.net.nodes if node.ran and node.state == "over"}
        if not self.harm:
            expected = 0
            while any(expected in node.fates for node in self.net.nodes):
                expected += 1
            assert attempts == {expected}, f"{attempts}, not {expected}"
            assert causes == {None}, causes
        decided = [decision.again for decision in self.net.decided]
        assert decided == sorted(decided, reverse=True), "a restart after the end"


@pytest.mark.safety
@pytest.mark.parametrize("kind", [Case, AgainAndAgain])
@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=[pytest.mark.heavy] if first >= FIRST + QUICK else [])
        for first in range(FIRST, FIRST + CASES, A_TEST)
    ],
)
def test_whatever_happens_there_is_one_verdict_and_nobody_is_left(first: int, kind: type[Case]) -> None:
    for seed in range(first, min(first + A_TEST, FIRST + CASES)):
        case = kind(seed)
        try:
            case.check()
        except BaseException as error:
            story = "\n".join([f"seed {seed}, {len(case.net.names)} hosts", *sorted(case.told)])
            said = "\n".join(f"{node.name} {node.state} {node.said}" for node in case.net.nodes)
            raise AssertionError(f"{error}\n{story}\n{said}") from error
