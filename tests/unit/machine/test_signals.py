"""Stop signals of this process: noted, raised once, handed on; none is lost between two that take them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from support.paths import TOOLKIT
from trainshed.machine.signals import HELD_SIGNALS, Interrupted, SignalPipe, Stops


def test_a_stop_is_noted_and_raises_nothing() -> None:
    with Stops() as stops:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    assert stops.number == signal.SIGTERM


def test_a_stop_that_came_before_a_raising_block_ends_it_at_its_start() -> None:
    with Stops() as stops:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(Interrupted, match="stopped by SIGINT while it dug"), stops.raising("while it dug"):
            pytest.fail("the block was entered")


def test_only_the_first_stop_raises_so_that_the_way_out_is_undisturbed() -> None:
    with Stops() as stops:
        with pytest.raises(Interrupted), stops.raising("before"):
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                signal.raise_signal(signal.SIGTERM)
                out = "undisturbed"
        signal.raise_signal(signal.SIGTERM)
    assert out == "undisturbed"


def test_stops_that_nobody_took_from_the_pipe_go_to_those_who_handled_them_before() -> None:
    with Stops() as stops:
        pipe = SignalPipe()
        signal.raise_signal(signal.SIGTERM)
        pipe.close()
        assert stops.number == signal.SIGTERM


def test_a_stop_that_the_reader_hands_on_goes_there_too() -> None:
    with Stops() as stops:
        pipe = SignalPipe()
        signal.raise_signal(signal.SIGTERM)
        for number in pipe.take():
            pipe.hand_on(number)
        assert stops.number == 0
        pipe.close()
        assert stops.number == signal.SIGTERM


def test_a_pipe_without_handlers_below_swallows_what_came_too_late() -> None:
    before = [signal.getsignal(number) for number in HELD_SIGNALS]
    pipe = SignalPipe()
    signal.raise_signal(signal.SIGTERM)
    pipe.close()
    assert [signal.getsignal(number) for number in HELD_SIGNALS] == before


def test_a_held_stop_arrives_when_stops_are_taken() -> None:
    program = (
        "import os, signal\nfrom trainshed.machine.signals import Stops, hold_stops\n"
        "hold_stops()\nos.kill(os.getpid(), signal.SIGTERM)\nprint('alive')\n"
        "with Stops() as stops:\n    print(stops.number)\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(TOOLKIT)}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True)
    assert done.stdout.split() == ["alive", "15"], done.stderr


def test_a_stop_after_the_end_does_not_change_how_it_ended() -> None:
    program = (
        "import os, signal\n"
        "from trainshed.machine.signals import Stops, hold_stops\n"
        "hold_stops()\n"
        "with Stops():\n    pass\n"
        "signal.raise_signal(signal.SIGTERM)\n"
        "os._exit(3)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(TOOLKIT)}, check=False)

    assert done.returncode == 3
