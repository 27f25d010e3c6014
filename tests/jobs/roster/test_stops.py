"""A stop signal to one host at moments when no rank runs there, and hosts that are killed and started again."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.hosts import ALOUD, CLOCK, LIMIT, STOPPED_BEFORE_LAUNCH, Hosts, ended

WAITS = "import time\nprint('working', flush=True)\ntime.sleep(600)\n"
# For `Hosts.start`: this host stays until all others have come, however long that takes.
TELLS_FOR_LONG = """
from trainshed.container.roster import messages
messages.STOPPED_TELLING_SECONDS = 200.0
"""
ENDS_WELL = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print('working', flush=True)
time.sleep(600)
"""
# For `Hosts.start`: this host is sent SIGTERM while it uploads what its script, which has ended, has left.
STOPPED_WHILE_IT_UPLOADS = """
import os, signal
from trainshed.container import intermediate
class Uploads:
    pid = 0
    def finish(self, stopped):
        os.kill(os.getpid(), signal.SIGTERM)
    def give_up(self):
        pass
intermediate.start = lambda *_: Uploads()
"""
# For `Hosts.start`: says when this host begins to wait for the end of the others.
TELLS_THAT_IT_WAITS = """
from trainshed.container.roster.connected import ConnectedRoster
leave = ConnectedRoster.leave
def telling(self, report):
    print("waits for the others", flush=True)
    return leave(self, report)
ConnectedRoster.leave = telling
"""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Callable[[int], Hosts]]:
    """Makes jobs of hosts whose script waits, and ends what they leave."""
    with ended() as made:

        def make(count: int) -> Hosts:
            names = [f"127.0.0.{number + 1}" for number in range(count)]
            made.append(job := Hosts(tmp_path, names, WAITS, {"trainshed_host_timeout_seconds": "250"}))
            return job

        yield make


@pytest.fixture
def silent_index() -> Iterator[str]:
    """A package index that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def assert_all_say(job: Hosts, text: str, status: int) -> None:
    assert set(job.exit_codes()) == {status}, job.all_output()
    for number in job.processes:
        assert job.failure(number).splitlines()[0].startswith(text), job.all_output()
        assert not job.succeeded(number)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_stop_between_the_meeting_of_the_hosts_and_the_start_of_the_ranks_ends_all(
    hosts: Callable[[int], Hosts], victim: int
) -> None:
    job = hosts(3)
    job.start(*({0, 1, 2} - {victim}))
    job.start(victim, code=STOPPED_BEFORE_LAUNCH)

    assert_all_say(job, f"Interrupted: {job.names[victim]} was stopped by SIGTERM", 143)
    assert "working" not in job.output(victim)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_stop_while_the_hosts_wait_for_another_one_ends_those_that_are_there(
    hosts: Callable[[int], Hosts], victim: int
) -> None:
    job = hosts(3)
    job.start(0, 1, code=CLOCK + ALOUD)
    job.wait_for("waiting for")
    job.processes[victim].send_signal(signal.SIGTERM)
    job.processes[1].wait(LIMIT)
    job.turn_clock(0, 60)  # in which the third one could have come

    assert_all_say(job, f"Interrupted: {job.names[victim]} was stopped by SIGTERM before the script was started", 143)


@pytest.mark.parametrize(("victim", "installing"), [(0, (1,)), (1, (0,)), (1, (0, 1)), (0, (0, 1))])
def test_a_stop_while_a_host_installs_what_its_program_needs_ends_all(
    hosts: Callable[[int], Hosts], silent_index: str, victim: int, installing: tuple[int, ...]
) -> None:
    job = hosts(2)
    for number in installing:
        (job.base(number) / "code/requirements.txt").write_text(f"slow @ {silent_index}/slow-1.0-py3-none-any.whl\n")
    job.start(code=ALOUD)
    for number in (0, 1):
        job.wait_for_host(number, "installing requirements.txt" if number in installing else "waiting for")
    job.processes[victim].send_signal(signal.SIGTERM)

    assert_all_say(job, f"Interrupted: {job.names[victim]} was stopped by SIGTERM", 143)


def test_a_host_that_comes_just_after_the_first_one_was_stopped_is_told(hosts: Callable[[int], Hosts]) -> None:
    job = hosts(3)
    job.start(0, code=TELLS_FOR_LONG + ALOUD)
    job.start(1, code=ALOUD)
    job.wait_for("waiting for")
    job.processes[0].send_signal(signal.SIGTERM)
    job.wait_for_host(0, "telling the other hosts")
    job.start(2)

    assert_all_say(job, f"Interrupted: {job.names[0]} was stopped by SIGTERM before the script was started", 143)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_host_that_is_killed_and_started_again_at_once_is_the_cause_everywhere(
    hosts: Callable[[int], Hosts], victim: int
) -> None:
    job = hosts(3)
    job.start()
    job.wait_for("working")
    job.processes[victim].kill()
    job.processes[victim].wait()
    job.start(victim)

    first = " (the first host)" if victim == 0 else ""
    assert_all_say(job, f"ClusterError: {job.names[victim]}{first} was started again while the job ran", 69)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_signal_to_a_host_whose_script_has_ended_ends_all_with_its_status(
    hosts: Callable[[int], Hosts], victim: int
) -> None:
    job = hosts(2)
    (job.base(victim) / "code/train.py").write_text("print('working')\n")
    job.start(code=TELLS_THAT_IT_WAITS)
    job.wait_for("working")
    job.wait_for_host(victim, "waits for the others")
    job.processes[victim].send_signal(signal.SIGINT)

    assert_all_say(job, f"Interrupted: {job.names[victim]}: stopped by SIGINT while it waited", 130)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_stop_between_the_end_of_the_script_and_the_wait_for_the_others_is_told_to_them(
    hosts: Callable[[int], Hosts], victim: int
) -> None:
    job = hosts(2)
    (job.base(victim) / "code/train.py").write_text("print('working')\n")
    job.configure(victim, sagemaker_s3_output="s3://results")
    job.start(1 - victim)
    job.start(victim, code=STOPPED_WHILE_IT_UPLOADS)

    assert_all_say(job, f"Interrupted: {job.names[victim]}: stopped by SIGTERM", 143)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_job_is_stopped_on_all_hosts_if_one_ended_by_itself_and_another_was_stopped(
    hosts: Callable[[int], Hosts], victim: int
) -> None:
    job = hosts(2)
    (job.base(1 - victim) / "code/train.py").write_text("print('working')\n")
    (job.base(victim) / "code/train.py").write_text(ENDS_WELL)
    job.start(code=TELLS_THAT_IT_WAITS)
    job.wait_for("working")
    job.wait_for_host(1 - victim, "waits for the others")
    job.processes[victim].send_signal(signal.SIGTERM)

    assert job.exit_codes() == [0, 0], job.all_output()
    for number in (0, 1):
        assert not job.succeeded(number) and not job.failure(number), job.all_output()
        assert "Reporting training STOPPED" in job.output(number)
        record = json.loads((job.base(number) / f"output/data/run/{job.names[number]}.json").read_text())
        assert record["state"] == "Stopped"
    assert f"{job.names[victim]}: stopped by SIGTERM; the script on this host had ended before" in job.output(1 - victim)


def test_a_second_host_of_one_name_is_refused_with_both_addresses_and_the_job_goes_on(
    hosts: Callable[[int], Hosts],
) -> None:
    job = hosts(2)
    job.start()
    job.wait_for("working")
    first = job.processes[1]
    job.start(1)

    assert job.processes[1].wait(timeout=250) == 69
    assert job.failure(1).startswith("ClusterError: two hosts call themselves 127.0.0.2: one at 127.0.0.1, one at 127.0.0.1")
    assert first.poll() is None and job.processes[0].poll() is None
    first.kill()
    first.wait()
