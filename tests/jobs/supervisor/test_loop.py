"""The loop as a whole, on plans that `train` would never make or that its tests would not see into."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.paths import TOOLKIT
from trainshed.machine import processes

pytestmark = pytest.mark.safety

DRIVER = Path(__file__).with_name("drive.py")
LIMIT = 120


class Driven:
    """A supervisor in a process of its own, run on shell or Python snippets."""

    def __init__(self, folder: Path, *snippets: str, **fields: Any) -> None:
        self.folder = folder
        specs = []
        for number, snippet in enumerate(snippets):
            program = ["/bin/sh", "-c"] if not snippet.startswith("import ") else [sys.executable, "-u", "-c"]
            spec = {"argv": [*program, snippet], "env": {"PATH": "/usr/bin:/bin"}, "cwd": str(folder), "label": f"r{number}"}
            specs.append({**spec, "log": f"{folder}/r{number}.log", "rank": number})
        plan = {"processes": specs, "grace_seconds": 300.0, **fields}
        self.process = self._start(plan)

    def _start(self, plan: dict[str, Any]) -> subprocess.Popen[bytes]:
        (self.folder / "plan.json").write_text(json.dumps(plan))
        return subprocess.Popen(
            [sys.executable, DRIVER, self.folder / "plan.json", self.folder / "result.json"],
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(TOOLKIT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def wait_for(self, name: str) -> None:
        """Until a file appears that a snippet makes."""
        self.wait_until((self.folder / name).exists)

    def wait_until(self, true: Callable[[], bool]) -> None:
        """Until something is true, while the supervisor runs."""
        deadline = time.monotonic() + LIMIT
        while not true():
            assert time.monotonic() < deadline and self.process.poll() is None, "it never came true"
            time.sleep(0.01)

    def result(self) -> dict[str, Any]:
        """What came of it; handlers and files are as they were."""
        self.out, self.err = self.process.communicate(timeout=LIMIT)
        assert self.process.returncode == 0, self.err.decode()
        result = json.loads((self.folder / "result.json").read_text())
        assert result["handlers_restored"] and result["files_closed"]
        return result


def test_all_ranks_succeed_and_the_start_is_told_once(tmp_path: Path) -> None:
    result = Driven(tmp_path, "echo one", "echo two", "true").result()
    assert (result["returncodes"], result["started"], result["said"]) == ([0, 0, 0], 1, [])


def test_a_plan_without_processes_is_over_at_once(tmp_path: Path) -> None:
    assert Driven(tmp_path).result()["returncodes"] == []


def test_one_that_cannot_be_started_stops_those_already_running(tmp_path: Path) -> None:
    driven = Driven.__new__(Driven)
    driven.folder = tmp_path
    common = {"env": {"PATH": "/bin:/usr/bin"}, "cwd": str(tmp_path)}
    plan = {"processes": [{"argv": ["sleep", "600"], **common}, {"argv": ["no-such-program"], **common}]}
    driven.process = driven._start(plan)
    result = driven.result()
    assert (result["start_error"], result["started"]) == ("exec", 0)


# Waits until the process that has written its number to `pid` has been reaped.
GONE = "while [ ! -s pid ] || kill -0 $(cat pid) 2>/dev/null; do sleep 0.01; done"
TELLS_PID = "echo $$ > pid.new; mv pid.new pid"


@pytest.mark.spine
def test_when_one_fails_the_others_are_stopped_by_sigterm(tmp_path: Path) -> None:
    result = Driven(tmp_path, "exit 3", "exec sleep 600", "exec sleep 600").result()
    assert result["returncodes"] == [3, -15, -15]
    assert result["stopped"] == [False, True, True]
    assert result["stop_signal"] == 0


def test_a_rank_that_fails_soon_after_the_first_tells_its_own_reason(tmp_path: Path) -> None:
    result = Driven(tmp_path, f"{TELLS_PID}; exit 1", f"{GONE}; echo reason >&2; exit 5", settles=600).result()
    assert result["returncodes"] == [1, 5]
    assert result["stopped"] == [False, False]
    assert result["tails"][1] == "reason\n"


def test_a_rank_that_succeeds_early_stops_nobody(tmp_path: Path) -> None:
    result = Driven(tmp_path, TELLS_PID, f"{GONE}; exit 0").result()
    assert (result["returncodes"], result["stopped"]) == ([0, 0], [False, False])


def test_the_time_limit_stops_everyone_and_says_so(tmp_path: Path) -> None:
    result = Driven(tmp_path, "exec sleep 600", max_seconds=0.2).result()
    assert (result["returncodes"], result["timed_out"], result["stop_signal"]) == ([-15], True, 0)
    assert result["said"] == ["the time limit of 0.2 s is over: stopping"]


@pytest.mark.spine
def test_after_the_time_limit_the_grace_is_kept_and_then_comes_sigkill(tmp_path: Path) -> None:
    deaf = "trap '' TERM; touch deaf; while :; do sleep 0.05; done"
    gate = [str(tmp_path / "deaf")]
    result = Driven(tmp_path, deaf, max_seconds=0.2, grace_seconds=0.2, gate=gate).result()
    assert (result["returncodes"], result["killed"]) == ([-9], 1)
    assert "r0 did not end in time and is killed" in result["said"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_every_stop_signal_is_passed_on_as_it_is(tmp_path: Path, number: signal.Signals) -> None:
    code = (
        "import signal, sys, time\n"
        "for number in (1, 2, 3, 15): signal.signal(number, lambda n, _: sys.exit(n + 40))\n"
        "open('ready', 'w').close()\n"
        "time.sleep(600)\n"
    )
    driven = Driven(tmp_path, code)
    driven.wait_for("ready")
    driven.process.send_signal(number)
    result = driven.result()
    assert (result["returncodes"], result["stop_signal"]) == ([number + 40], number)


def test_user_signals_go_to_those_who_have_a_handler_and_kill_nobody_else(tmp_path: Path) -> None:
    with_handler = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: open('got', 'w').close())\n"
        "open('ready', 'w').close()\n"
        "while not os.path.exists('got'): time.sleep(0.01)\n"
    )
    without = "while ! [ -e got ]; do sleep 0.01; done"
    driven = Driven(tmp_path, with_handler, without)
    driven.wait_for("ready")
    driven.process.send_signal(signal.SIGUSR1)
    assert driven.result()["returncodes"] == [0, 0]


def test_a_stop_that_comes_while_one_has_already_failed_is_passed_on_at_once(tmp_path: Path) -> None:
    waits = "while [ ! -e ready ]; do sleep 0.01; done"  # for the other one's trap, which the signal is to find
    traps = "trap 'exit 6' TERM; touch ready; while :; do sleep 0.01; done"
    driven = Driven(tmp_path, f"{waits}; echo $$ > pid; exit 3", traps, settles=600)
    driven.wait_for("pid")
    driven.wait_until(lambda: (text := (tmp_path / "pid").read_text()).endswith("\n") and processes._is_zombie(int(text)))
    driven.process.send_signal(signal.SIGTERM)
    assert driven.result()["returncodes"] == [3, 6]


def test_shells_get_the_signal_with_their_whole_group(tmp_path: Path) -> None:
    driven = Driven.__new__(Driven)
    driven.folder = tmp_path
    spec = {"argv": ["sh", "-c", "touch ready; sleep 600; exit 0"], "env": {"PATH": "/bin:/usr/bin"}, "cwd": str(tmp_path)}
    driven.process = driven._start({"processes": [{**spec, "signal_group": True}], "grace_seconds": 300})
    driven.wait_for("ready")
    driven.process.send_signal(signal.SIGTERM)
    result = driven.result()
    assert (result["returncodes"], result["killed"]) == ([-15], 0)


SAVES = """\
import os, signal, sys, time
stops = []
signal.signal(signal.SIGTERM, lambda *_: stops.append(1))
open("ready", "w").close()
while not stops: time.sleep(0.01)
end = time.monotonic() + 30
while os.getppid() == int(sys.argv[1] or 0) and time.monotonic() < end: time.sleep(0.01)  # until the wrapper is dead
open("saved", "w").write(str(len(stops)))
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # timeout hands on what its group had already: it may come while Python ends
sys.exit(int(sys.argv[2]))
"""
WRAPPERS = {  # how the script is started: whether it sees its wrapper die
    "{script}; exit $?": True,
    "bash -c '{inner}; true'; true": True,
    "env A=1 nice sh -c '{inner}; true'; true": True,
    "timeout 500 {alone}": False,
    "sleep 600 & {script}; true": True,
}


@pytest.mark.parametrize("code", [75, 0, 3])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapper_that_dies_of_the_stop_ends_as_the_script_in_it_that_has_saved(
    tmp_path: Path, wrapper: str, code: int
) -> None:
    (tmp_path / "saves.py").write_text(SAVES)
    words = {
        name: f"{sys.executable} saves.py {at} {code}" for name, at in (("script", "$$"), ("inner", "$$"), ("alone", "0"))
    }
    driven = Driven.__new__(Driven)
    driven.folder = tmp_path
    spec = {"argv": ["sh", "-c", wrapper.format(**words)], "env": {"PATH": "/bin:/usr/bin"}, "cwd": str(tmp_path)}
    driven.process = driven._start({"processes": [{**spec, "signal_group": True}], "grace_seconds": 300})
    driven.wait_for("ready")
    driven.process.send_signal(signal.SIGTERM)
    result = driven.result()
    assert (result["returncodes"], result["left_behind"], result["killed"]) == ([code], 0, 0)
    if WRAPPERS[wrapper]:
        assert (tmp_path / "saved").read_text() == "1", "a second signal would end a script that saves"


@pytest.mark.spine
def test_what_is_left_running_is_counted_ended_and_reaped(tmp_path: Path) -> None:
    result = Driven(tmp_path, "sleep 600 & setsid sleep 600 & true").result()
    assert (result["returncodes"], result["left_behind"]) == ([0], 2)


def test_leftovers_that_ignore_the_polite_signal_are_killed(tmp_path: Path) -> None:
    snippet = "sh -c \"trap '' TERM; touch deaf; while :; do sleep 0.05; done\" & while ! [ -e deaf ]; do sleep 0.01; done"
    result = Driven(tmp_path, snippet, grace_seconds=0.2).result()
    assert result["returncodes"] == [0]
    assert result["left_behind"] >= 1


def test_leftovers_that_start_new_ones_while_they_are_ended_are_caught(tmp_path: Path) -> None:
    child = "trap 'setsid sleep 600 & exit' TERM; touch up; while :; do sleep 0.05; done"
    snippet = f'sh -c "{child}" & while ! [ -e up ]; do sleep 0.01; done'
    result = Driven(tmp_path, snippet, grace_seconds=1).result()
    assert result["returncodes"] == [0]


def test_stderr_is_the_tail_and_stdout_where_stderr_is_blank(tmp_path: Path) -> None:
    result = Driven(tmp_path, "echo out; echo err >&2", "echo only; echo >&2").result()
    assert result["tails"] == ["err\n", "only\n"]


def test_a_traceback_is_seen_in_the_stream_of_errors(tmp_path: Path) -> None:
    result = Driven(tmp_path, "import sys\nraise ValueError(1)", "true").result()
    assert result["traceback"] == [True, False]


def test_what_a_rank_prints_last_arrives_though_it_is_more_than_a_pipe_holds(tmp_path: Path) -> None:
    driven = Driven(
        tmp_path, "import sys\nsys.stdout.write('x' * 99 + chr(10)); sys.stdout.write(('y' * 99 + chr(10)) * 50_000)"
    )
    assert driven.result()["returncodes"] == [0]
    assert driven.out.count(b"\n") == 50_001
    assert os.path.getsize(tmp_path / "r0.log") == 50_001 * 100


def test_a_log_that_cannot_be_written_costs_the_log_alone(tmp_path: Path) -> None:
    driven = Driven.__new__(Driven)
    driven.folder = tmp_path
    spec = {"argv": ["echo", "hello"], "env": {"PATH": "/bin:/usr/bin"}, "cwd": str(tmp_path), "log": "/dev/full"}
    driven.process = driven._start({"processes": [spec]})
    result = driven.result()
    assert driven.out == b"hello\n"
    assert "No space left on device" in result["log_problem"]
