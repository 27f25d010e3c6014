"""Watchers that are loaded when there is something for them."""

from __future__ import annotations

import signal
from typing import Any

from trainshed.container.late import Late
from trainshed.container.supervisor.watcher import FOREVER, Watcher


class Noting(Watcher):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.noted: list[Any] = []

    def turn(self, run: Any) -> None:
        self.noted.append("turn")

    def pause(self) -> float:
        return 7.0

    def busy(self) -> bool:
        return True

    def descriptors(self) -> dict[int, int]:
        return {5: 1}

    def own_processes(self) -> tuple[int, ...]:
        return (42,)

    def printed(self, rank: Any, lines: bytes) -> None:
        self.noted.append(lines)

    def signalled(self, number: int, grace: float) -> None:
        self.noted.append(number)

    def interrupted(self, why: str, number: int) -> None:
        self.noted.append(why)

    def failed(self, why: str) -> None:
        self.noted.append(why)

    def run_over(self) -> None:
        self.noted.append("over")


RANK: Any = None
RUN: Any = None


def test_it_is_not_made_for_nothing() -> None:
    late = Late(Noting, signs=(b"loss",), signals=(signal.SIGUSR1,))
    late.printed(RANK, b"epoch 1\n")
    late.signalled(signal.SIGUSR2, 1.0)
    late.turn(RUN)
    late.run_over()

    assert late.made is None and late.pause() == FOREVER
    assert (late.descriptors(), late.busy(), late.own_processes()) == ({}, False, ())


def test_a_line_that_is_for_it_makes_it_and_it_hears_what_it_has_missed() -> None:
    late = Late(Noting, signs=(b"loss",))
    late.interrupted("stopped by SIGTERM", 15)
    late.printed(RANK, b"loss 1\n")
    late.printed(RANK, b"epoch 2\n")
    late.turn(RUN)
    late.failed("rank 1")
    late.run_over()

    assert isinstance(late.made, Noting)
    assert late.made.noted == ["stopped by SIGTERM", b"loss 1\n", b"epoch 2\n", "turn", "rank 1", "over"]
    assert (late.pause(), late.descriptors(), late.busy(), late.own_processes()) == (7.0, {5: 1}, True, (42,))


def test_a_signal_that_is_for_it_makes_it() -> None:
    late = Late(Noting, signals=(signal.SIGUSR1,))
    late.signalled(signal.SIGUSR1, 1.0)

    assert isinstance(late.made, Noting) and late.made.noted == [signal.SIGUSR1]


def test_so_does_its_time() -> None:
    late = Late(Noting, after=0.0)
    assert late.pause() == 0.0
    late.turn(RUN)

    assert isinstance(late.made, Noting) and late.made.noted == ["turn"]
