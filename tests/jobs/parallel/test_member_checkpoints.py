"""Hosts that come and go with checkpoints: they are killed, one or all, or the place where they meet is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ranks
from member_hosts import Hosts, Place, same, served

from support.free_ports import free_ports
from support.lazy import Lazy

torch = Lazy("torch")

pytestmark = [pytest.mark.torch, pytest.mark.exact, pytest.mark.safety]

STEPS = [4, 8, 12, 16]


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with served() as one:
        yield one


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, place: Place) -> dict[int, list[Any]]:
    """What two hosts agree on that nothing happens to, by step."""
    with Hosts(tmp_path_factory.mktemp("whole"), place.address) as hosts:
        for name in "ab":
            hosts.start(name, begin=2)
        a, b = hosts.found("a"), hosts.found("b")
    assert list(a["agreed"]) == STEPS and agrees(b, a["agreed"])
    return dict(a["agreed"])


def agrees(host: dict[str, Any], agreed: dict[int, list[Any]]) -> bool:
    """Whether it ended well, with these models."""
    assert host["error"] == "" and host["agreed"], host
    return all(same(tensors, agreed[step]) for step, tensors in host["agreed"].items())


def both_again(hosts: Hosts) -> tuple[Any, Any]:
    """What two hosts find that are started a second time."""
    for name in "ab":
        hosts.start(name, begin=2, start=2)
    return hosts.found("a", 2), hosts.found("b", 2)


def test_hosts_that_are_all_killed_and_started_again_end_as_if_they_had_not_been(
    tmp_path: Path, place: Place, whole: dict[int, list[Any]]
) -> None:
    with Hosts(tmp_path, place.address) as hosts:
        for name in "ab":
            hosts.start(name, "keeps, killed at 10", begin=2)
        assert [hosts.gone(name) for name in "ab"] == [-signal.SIGKILL] * 2
        for host in both_again(hosts):
            assert host["began"] == 10 and list(host["agreed"]) == [12, 16] and agrees(host, whole)


def test_one_that_is_killed_and_started_again_alone_comes_to_the_others(tmp_path: Path, place: Place) -> None:
    with Hosts(tmp_path, place.address) as hosts:
        hosts.start("a", "awaits c")
        hosts.start("b", "awaits c")
        hosts.start("c", "keeps, killed at 10")
        assert hosts.gone("c") == -signal.SIGKILL
        hosts.await_step(11, "a", "b")
        hosts.start("c", start=2)
        a, b, c = hosts.found("a"), hosts.found("b"), hosts.found("c", 2)
    assert list(a["agreed"]) == STEPS and agrees(b, a["agreed"]) and agrees(c, a["agreed"])
    assert c["began"] == 12 and list(c["agreed"]) == [16]
    assert (
        "local steps: this host was at step 10 without the others: it goes on from step 12 with their model; its own "
        "steps since step 8 are left out"
    ) in c["said"]


def test_a_meeting_place_that_is_killed_and_empty_again_ends_all_hosts_which_go_on_from_their_checkpoints(
    tmp_path: Path, whole: dict[int, list[Any]]
) -> None:
    with served() as first, Hosts(tmp_path, first.address) as hosts:
        for name in "ab":
            hosts.start(name, "keeps, waits at 6", begin=2)
        hosts.await_step(6, "a", "b")
        first.kill()
        with served(first.port):
            hosts.go_on()
            for name in "ab":
                assert ended_without_place(hosts.found(name), first)
            for host in both_again(hosts):
                assert host["began"] == 7 and list(host["agreed"]) == [8, 12, 16] and agrees(host, whole)
                assert "local steps: 2 hosts begin: a, b" in host["said"]


@pytest.mark.parametrize("when", ["", " late"])
def test_a_meeting_place_that_is_killed_in_an_exchange_loses_no_agreement(
    tmp_path: Path, whole: dict[int, list[Any]], when: str
) -> None:
    with served() as first, Hosts(tmp_path, first.address) as hosts:
        for name in "ab":
            hosts.start(name, f"keeps, ends {first.pid}{when}", begin=2)
        ends = [hosts.found(name) for name in "ab"]
        first.kill()
        assert all(ended_without_place(host, first) for host in ends)
        # Of an exchange that counts, one may have heard before the place was gone.
        counted = [host["agreed"] for host in ends if 8 in host["agreed"]]
        assert all(same(agreed[8], whole[8]) for agreed in counted) and (when or not counted)
        with served(first.port):
            a, b = both_again(hosts)
        assert a["agreed"].keys() == b["agreed"].keys() and agrees(b, a["agreed"])
        if not counted:
            assert list(a["agreed"]) == [8, 12, 16] and agrees(a, whole)


def test_a_meeting_place_that_stands_still_for_longer_than_a_host_may_only_delays_them(
    tmp_path: Path, whole: dict[int, list[Any]]
) -> None:
    with served() as place, Hosts(tmp_path, place.address) as hosts:
        for name in "ab":
            hosts.start(name, "keeps, waits at 6", begin=2)
        hosts.await_step(6, "a", "b")
        hosts.go_on()
        place.stand_still(6)
        for name in "ab":
            host = hosts.found(name)
            assert list(host["agreed"]) == STEPS and agrees(host, whole) and "without" not in host["said"]


def test_a_host_whose_meeting_place_is_killed_ends_also_while_another_stands_still_in_the_exchange(tmp_path: Path) -> None:
    with served() as place:
        lines = [
            f"import member_workers as m; print(m.host{(str(tmp_path), name, place.address, how, 2, 16)})"
            for name, how in (("a", ""), ("b", "stopped"))
        ]
        a, b = (
            subprocess.Popen(
                [sys.executable, "-c", line],
                env=ranks.environment(0, 1, free_ports()),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            for line in lines
        )
        try:
            assert os.waitid(os.P_PID, b.pid, os.WSTOPPED) is not None
            place.kill()
            said = a.communicate(timeout=100)[0].decode()
        finally:
            for process in (a, b):
                process.kill()
                process.communicate()
    assert a.returncode == 0 and "'LocalStepsError: the meeting place at" in said, said


def ended_without_place(host: dict[str, Any], place: Place) -> bool:
    """Whether a host has failed with words."""
    said = f"LocalStepsError: the meeting place at {place.address} cannot be reached, without which hosts do not find"
    return str(host["error"]).startswith(said)
