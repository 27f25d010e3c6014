"""What goes on of a run in containers after its runner was killed: asked of the engine that has them, and of no other."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from trainshed.base.errors import TrainshedError
from trainshed.places import cleanup
from trainshed.runner.acting import acting
from trainshed.runner.acting.leftovers import LeftoverProcesses, Leftovers
from trainshed.runner.files.ending import HostEnd
from trainshed.runner.job.places import HERE

RUN = "a" * 32


class FakeEngine:
    """An engine with one container, which ends when it is stopped."""

    place = "unix:///run/docker.sock"

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.there, self.running = True, True

    def run(self, *words: str, **_: Any) -> SimpleNamespace:
        self.asked.append(words)
        self.running = self.running and words[0] != "stop"
        self.there = self.there and words[0] != "rm"
        state = {"Running": self.running, "ExitCode": 0 if self.running else 137, "OOMKilled": True, "Status": "exited"}
        one = {"Id": "c1", "State": state, "Config": {"Labels": {f"{cleanup.LABEL}.host": "algo-1"}}}
        said = json.dumps([one]) if words[0] == "inspect" else "c1\n" if words[0] == "ps" and self.there else ""
        return SimpleNamespace(stdout=said, stderr="", returncode=0)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    made = FakeEngine()
    monkeypatch.setattr(cleanup, "find_engine", lambda _: made)
    monkeypatch.setattr(cleanup, "await_clients", lambda _: None)  # look at every process of the machine
    monkeypatch.setattr(cleanup, "end_leftovers", lambda _: 0)
    return made


def leftovers(place: str | None) -> Leftovers:
    return acting(HERE).leftovers(RUN, place, {})


def test_containers_are_ended_and_removed(engine: FakeEngine) -> None:
    left = leftovers("")

    assert left.running() == ["algo-1"]
    assert left.end(0, 1) == [HostEnd("algo-1", 137, "its memory limit was reached (--memory)", True)]
    assert ("stop", "-t", "0", "c1") in engine.asked
    assert left.remove() == [] and left.running() == []


def test_how_hosts_ended_is_not_known_where_some_never_ran(engine: FakeEngine) -> None:
    assert leftovers(engine.place).end(0, 2) == []


def test_another_engine_than_the_runs_is_refused(engine: FakeEngine) -> None:
    with pytest.raises(TrainshedError, match=r"the run's containers are in podman, but this command uses unix:"):
        leftovers("podman")


def test_hosts_without_an_engine_are_processes() -> None:
    assert isinstance(leftovers(None), LeftoverProcesses)
