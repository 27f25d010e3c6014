"""Hosts that come and go between exchanges, without a restart of the others."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ranks
from member_hosts import Hosts, same, served

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def place() -> Iterator[str]:
    """The address of a meeting place."""
    with served() as one:
        yield one.address
        one.end()


@pytest.fixture
def hosts(tmp_path: Path, place: str) -> Iterator[Hosts]:
    with Hosts(tmp_path, place) as found:
        yield found


def lost_and_new(folder: Path, place: str, how: str) -> list[Any]:
    """Three hosts, the third of which goes after step 4, or in the exchange after 8; a fourth comes to that after 12."""
    folder.mkdir()
    with Hosts(folder, place) as hosts:
        hosts.start("a", "awaits d")
        hosts.start("b", "awaits d")
        hosts.start("c", how)
        hosts.await_step(11, "a", "b")
        hosts.start("d")
        return [hosts.found(name) for name in "abd"]


@pytest.mark.exact
@pytest.mark.safety
def test_hosts_that_lose_one_in_an_exchange_go_on_as_if_it_had_said_goodbye(tmp_path: Path, place: str) -> None:
    told = lost_and_new(tmp_path / "leaves", place, "leaves")
    assert [one["error"] for one in told] == [""] * 3
    for how in ("killed", "killed after"):  # before, or after it has the sum
        found = lost_and_new(tmp_path / how.replace(" ", "-"), place, how)
        assert [one["error"] for one in found] == [""] * 3
        for one, other in zip(found, told, strict=True):
            assert one["agreed"].keys() == other["agreed"].keys()
            assert all(same(tensors, other["agreed"][step]) for step, tensors in one["agreed"].items()), how
        a, b, d = found
        assert list(a["agreed"]) == list(b["agreed"]) == [4, 8, 12, 16] and list(d["agreed"]) == [16]
        assert all(same(tensors, b["agreed"][step]) for step, tensors in a["agreed"].items())
        assert same(a["agreed"][16], d["agreed"][16])
        assert "local steps: 3 hosts begin: a, b, c" in a["said"]
        assert "local steps: 2 hosts go on, without c: a, b" in a["said"]
        assert "local steps: 3 hosts go on, with d: a, b, d" in a["said"]


@pytest.mark.exact
@pytest.mark.safety
@pytest.mark.parametrize("how", ["stopped", "stopped after"])
def test_a_host_that_stood_still_while_others_went_on_gets_their_model(hosts: Hosts, how: str) -> None:
    hosts.start("a", "awaits c")
    hosts.start("b", "awaits c")
    hosts.start("c", how)
    hosts.await_step(11, "a", "b")
    hosts.awaken("c")
    a, b, c = (hosts.found(name) for name in "abc")
    assert a["error"] == b["error"] == c["error"] == ""
    assert list(a["agreed"]) == list(b["agreed"]) == [4, 8, 12, 16] and list(c["agreed"]) == [4, 12, 16]
    assert all(same(tensors, b["agreed"][step]) for step, tensors in a["agreed"].items())
    assert all(same(tensors, a["agreed"][step]) for step, tensors in c["agreed"].items())
    assert "local steps: 2 hosts go on, without c: a, b" in a["said"]
    assert "local steps: 3 hosts go on, with c: a, b, c" in a["said"]
    assert (
        "local steps: this host was at step 8 without the others: it goes on from step 12 with their model; its own "
        "steps since step 4 are left out"
    ) in c["said"]


@pytest.mark.exact
@pytest.mark.safety
def test_hosts_end_while_one_stands_still_and_a_job_whose_hosts_were_all_lost_begins_anew(hosts: Hosts) -> None:
    for name, how in (("a", ""), ("b", ""), ("c", "stopped")):
        hosts.start(name, how, last=8)
    a, b = hosts.found("a"), hosts.found("b")  # each has put down all it held by then
    assert a["error"] == b["error"] == "" and same(a["agreed"][8], b["agreed"][8])

    for name in "no":
        hosts.start(name, "killed", begin=2, job="lost")
    assert [hosts.gone(name) for name in "no"] == [-signal.SIGKILL] * 2
    for name in "pq":
        hosts.start(name, begin=2, last=4, job="lost")
    p, q = hosts.found("p"), hosts.found("q")
    assert p["error"] == q["error"] == "" and same(p["agreed"][4], q["agreed"][4])
    assert "local steps: no host of the last exchange is there: going on from the model of host p" in p["said"]
    assert "local steps: 2 hosts go on, without n, o and with p, q: p, q" in p["said"]


def test_what_hosts_cannot_do_together_is_said(hosts: Hosts) -> None:
    hosts.start("e", "nan", begin=2, last=12)
    hosts.start("f", begin=2, last=12)
    wrong, other = hosts.found("e"), hosts.found("f")
    assert wrong["error"] == (
        "LocalStepsError: this host's model has values that are not finite after step 8: the others go on without it; "
        "the last model that it has agreed on is that of step 4"
    )
    assert other["error"] == "" and list(other["agreed"]) == [4, 8, 12]
    assert "local steps: 1 hosts go on, without e: f" in other["said"]

    hosts.start("g", "no join")
    hosts.start("h")
    assert hosts.found("g")["error"] == "LocalStepsError: call join() before the first step: it meets the other hosts"
    assert hosts.found("h")["error"].endswith("have left, it is over: give a new one another word (job=...)")


@pytest.mark.spine
def test_a_host_of_another_model_is_refused_and_does_not_count(hosts: Hosts) -> None:
    hosts.start("i", begin=2, last=4)
    hosts.start("j", "other", begin=2, last=4)
    assert hosts.found("j")["error"] == (
        "LocalStepsError: this host's model, or its every, bits, outer_rate, outer_momentum or least, are not those of "
        "host i"
    )
    hosts.start("k", begin=2, last=4)
    i, k = hosts.found("i"), hosts.found("k")
    assert i["error"] == k["error"] == "" and same(i["agreed"][4], k["agreed"][4])
    assert "local steps: 2 hosts begin: i, k" in i["said"]


def test_fewer_hosts_than_are_asked_for_do_not_go_on(hosts: Hosts) -> None:
    hosts.start("l", "few", begin=2, last=8)
    hosts.start("m", "leaves few", begin=2, last=8)
    left, gone = hosts.found("l"), hosts.found("m")
    assert gone["error"] == "" and list(left["agreed"]) == [4]
    assert left["error"] == "LocalStepsError: 1 of 2 hosts are there after 5 s: l; lost: m"


def test_what_such_hosts_cannot_have_is_refused(place: str) -> None:
    at_once = "hosts that come and go (members) exchange all at once: without hosts, fragments, overlap, mix"
    expected = [at_once] * 3 + ["hosts that come and go (members) have one rank each, not 2"]
    assert ranks.run(2, "member_workers:refused", place) == [expected] * 2
