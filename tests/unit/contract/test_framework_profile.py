"""What a job's profilerconfig.json asks of the framework's profiler, in the words of Amazon's SDK."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trainshed.contract.framework_profile import TracedSteps, framework_profile


@pytest.mark.parametrize(
    ("config", "steps"),
    [
        ('{"StartStep": 5, "NumSteps": 3}', TracedSteps(5, 3)),
        ('{"startstep": "0"}', TracedSteps(0, 1)),
        ('{"NumSteps": 2, "StartStep": null}', TracedSteps(0, 2)),
        ({"StartStep": 7}, TracedSteps(7, 1)),
        ("{}", None),
        (" {} ", None),
        ("", None),
        (None, None),
    ],
)
@pytest.mark.parametrize("name", ["DetailedProfilingConfig", "detailedprofilingconfig"])
def test_a_range_of_steps_is_read(name: str, config: Any, steps: TracedSteps | None) -> None:
    assert framework_profile({name: config, "LocalPath": "/p", "ProfilerEnabled": "true"}) == (steps, "")


@pytest.mark.parametrize(
    "config",
    [
        *("{", "[]", "7", "null", "[" * 9999, 7, [1], True),
        '{"StartTimeInSecSinceEpoch": 1790000000, "Duration": 5}',
        *({"StartStep": value} for value in (-1, "x", [1], float("inf"))),
        *({"NumSteps": value} for value in (0, -1, 1001, "9" * 5000)),
    ],
)
def test_what_cannot_be_recorded_is_said(config: Any) -> None:
    steps, said = framework_profile({"DetailedProfilingConfig": config})

    assert steps is None
    assert said == "DetailedProfilingConfig is ignored: it must hold StartStep, from 0, and NumSteps, from 1 to 1000"


def test_other_profilers_are_named_once_and_the_steps_are_recorded_all_the_same() -> None:
    asked = {
        "DetailedProfilingConfig": '{"StartStep": 5}',
        "PythonProfilingConfig": '{"StartStep": 9, "NumSteps": 3, "ProfilerName": "cprofile"}',
        "DataloaderProfilingConfig": '{"StartStep": 7, "MetricsRegex": ".*"}',
        "HorovodProfilingConfig": "{}",
    }

    said = "DataloaderProfilingConfig, PythonProfilingConfig are not supported"
    assert framework_profile(asked) == (TracedSteps(5, 1), said)


def test_the_job_warns_unless_its_profiler_is_off(job_tree: Any) -> None:
    asked = {"PythonProfilingConfig": json.dumps({"StartStep": 9}), "DetailedProfilingConfig": '{"StartStep": 2}'}
    job = job_tree.configure(profiler={"ProfilingParameters": asked}).read()
    off = job_tree.configure(profiler={"ProfilingParameters": {**asked, "ProfilerEnabled": "false"}}).read()

    config = job_tree.base / "input/config/profilerconfig.json"
    assert job.warnings == (f"{config}: PythonProfilingConfig is not supported",)
    assert job.profiler.traced == TracedSteps(2, 1) and job.measures_steps
    assert (off.warnings, off.profiler.traced, off.measures_steps) == ((), None, False)
