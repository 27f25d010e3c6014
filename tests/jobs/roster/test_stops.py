"""A stop signal to one host at moments when no rank runs there, and hosts that are killed and started again."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.hosts import STOPPED_BEFORE_LAUNCH, Hosts, ended

WAITS = "import time\nprint('working', flush=True)\ntime.sleep(600)\n"


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Callable[[int], Hosts]]:
    """Makes jobs of hosts whose script waits, and ends what they leave."""
    with ended() as made:

        def make(count: int) -> Hosts:
            names = [f"127.0.0.{number + 1}" for number in range(count)]
            made.append(job := Hosts(tmp_path, names, WAITS, {"trainshed_host_timeout_seconds": "250"}))
            return job

        yield make


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
    job.start(0, 1)
    job.wait_for("waiting for")
    job.processes[victim].send_signal(signal.SIGTERM)

    assert_all_say(job, f"Interrupted: {job.names[victim]} was stopped by SIGTERM before the script was started", 143)


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
