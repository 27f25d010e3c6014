"""What happened to a run has a place on its curves."""

from __future__ import annotations

import math
import os
from array import array
from pathlib import Path

from trainshed.contract.wire.findings import Finding
from trainshed.metrics.reading import Curve, Track
from trainshed.studio.pages.curves import RunLine, chart_of
from trainshed.studio.pages.events import Event, events_of
from trainshed.studio.pages.facts import Attempt, HostFacts, RunFacts


def test_restarts_interruptions_rules_and_checkpoints_are_told_in_their_order(tmp_path: Path) -> None:
    record = {"restarts": [{"at": 20.0, "reason": "rank 1 was killed"}, "odd"], "ended": 50.0}
    record |= {"interruption": {"reason": "spot", "step": 7}}
    host = HostFacts("algo-1", "", record, findings=(Finding("LossSpike", "note", "loss was 9", 30.0, 5),))
    twin = host.replace(name="algo-2", findings=())
    stamp = "1970-01-01T00:00:45+00:00"
    status = {"SecondaryStatusTransitions": [{"Status": "Interrupted", "StartTime": stamp, "StatusMessage": "taken"}, 3]}
    (tmp_path / "step-3").mkdir()
    os.utime(tmp_path / "step-3", (10, 10))
    told = events_of(RunFacts("a", (Attempt((host, twin)),), {}, status), str(tmp_path))

    assert told == [
        Event(10.0, "checkpoint", "step-3"),
        Event(20.0, "restart", "rank 1 was killed"),
        Event(30.0, "rule", "LossSpike: loss was 9", 5),
        Event(45.0, "interruption", "taken"),
        Event(50.0, "interruption", "spot (after step 7)"),
    ], "once, though two hosts tell of it"
    assert events_of(RunFacts("a", (), {}), "/no/such/folder") == []


def test_an_event_stands_at_the_step_at_which_the_curve_was() -> None:
    track = Track()
    track.extend([b"1", b"2", b"3"], [b"100", b"110", b"120"], [b"0", b"10", b"20"], [b"", b"", b""])
    line = RunLine("loss", Curve("loss", 0, track), 100.0)
    happened = [Event(109.0, "restart", "a"), Event(999.0, "failure", "b"), Event(119.0, "rule", "c", 4)]
    window = (10, -math.inf, math.inf)

    assert [x for x, _, _ in chart_of("loss", [line], window, happened=happened).events] == [10.0, 20.0, 4.0]
    assert [x for x, _, _ in chart_of("loss", [line], window, "time", happened).events] == [9.0, 899.0, 19.0]
    assert isinstance(track.values, array)
