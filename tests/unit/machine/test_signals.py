"""Stop signals of this process: noted, raised once, handed on; none is lost between two that take them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

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


# What a handler of `train` does may interrupt any import: here none succeeds any more.
WITHOUT_IMPORTS = """\
import sys
from trainshed.container.training import HostTraining
from trainshed.machine.signals import Interrupted, Stops, signal

class Forbidding:
    def find_spec(self, name, path=None, target=None):
        raise ImportError("imported in a handler: " + name)

for name in set(sys.modules) & {"signal", "enum", "re"}:
    del sys.modules[name]
class Loaded(HostTraining):
    def _result(self, scratch):
        sys.meta_path.insert(0, Forbidding())
        signal.raise_signal(signal.SIGUSR1)
        try:
            with self._stops.raising("before it dug"):
                signal.raise_signal(signal.SIGHUP)
        except Interrupted as stop:
            sys.meta_path.pop(0)
            print(stop, flush=True)
            raise
"""


def test_handlers_of_train_import_nothing(tmp_path: Path) -> None:
    base = tmp_path / "ml"
    base.mkdir()
    code = (
        WITHOUT_IMPORTS + f"import os\nsys.exit(Loaded({{**os.environ, 'SAGEMAKER_BASE_DIR': {str(base)!r}}}).execute())\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(TOOLKIT)!r})\n{code}"],
        capture_output=True,
        text=True,
    )
    assert "stopped by SIGHUP before it dug" in done.stdout, done.stderr
    assert "there are no stacks to report" in done.stderr
    assert "ImportError" not in done.stderr
