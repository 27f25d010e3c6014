"""Pipelines with a step that tunes: its best trial's run is what the others get."""

from __future__ import annotations

import json
import os
import signal

import pytest

from support.runner_project import wait_until

from .conftest import Pipelines

SEARCH = """\
steps:
  prepare:
    run: {program: step.py, environment: {NOTES: "%s"}, hyperparameters: {step: prepare}}
  search:
    tune:
      job:
        program: step.py
        environment: {NOTES: "%s"}
        hyperparameters: {step: search}
        channels:
          data: ${steps.prepare.model}
      search: {add: [1, 5, 3]}
      strategy: grid
      objective: maximize total
  evaluate:
    run:
      program: step.py
      environment: {NOTES: "%s"}
      hyperparameters:
        step: evaluate
        add: ${steps.search.hyperparameters.add}
      channels:
        model: ${steps.search.model}
  keep:
    register: {model: digits, from: search, metrics: evaluate}
"""
TUNE = """\
job: {program: step.py, environment: {NOTES: "%s"}, hyperparameters: {step: search}}
search: {add: {low: 1, high: 9, type: integer}}
strategy: random
max_jobs: 2
objective: maximize total
"""


def test_what_follows_a_search_gets_its_best_trial(pipelines: Pipelines) -> None:
    file = pipelines.file(SEARCH)
    done = pipelines("steps", "run", file)

    assert done.status == 0, done.output
    assert "search completed" in done.stderr and "best total 6 (trial 2)" in done.stderr
    told = json.loads(pipelines("models", "show", "digits", "--json").stdout)
    assert told["facts"]["metrics"] == {"total": 11.0}, "evaluate: 5 of the best trial, and 6 of its model"
    assert told["facts"]["run"]["hyperparameters"]["add"] == "5"
    assert (pipelines.folder() / "runs/search-1/report.html").exists()
    assert "chain-search-1-0002" in pipelines("ps", "--all").stdout
    assert json.loads(pipelines("tune", "status", str(pipelines.folder() / "runs/search-1"), "--json").stdout)

    assert pipelines("steps", "run", file).status == 0
    assert set(pipelines.states().values()) == {"reused"} and pipelines.noted("started").count("search") == 3

    file = pipelines.file(SEARCH.replace("[1, 5, 3]", "[1, 5, 3, 7]"))
    done = pipelines("steps", "run", file)
    assert "prepare is done already" in done.stderr and "keep: digits:2" in done.stderr
    assert pipelines.noted("started").count("search") == 7

    (pipelines.folder() / "runs/search-2/best/model/total").write_text("9")
    done = pipelines("steps", "run", file)
    assert "search runs again: its model was changed since" in done.stderr


@pytest.mark.spine
def test_a_tuning_file_takes_the_trials_beside_each_other_that_it_asks_for(pipelines: Pipelines) -> None:
    pipelines.file(TUNE, "tune.yaml")
    file = pipelines.file("steps:\n  search: {tune: tune.yaml}\n")
    done = pipelines("steps", "run", file)

    assert done.status == 0 and pipelines.noted("ended") == ["search", "search"], done.output


@pytest.mark.safety
def test_a_conductor_and_a_tuner_that_are_killed_lose_no_trial(pipelines: Pipelines) -> None:
    file = pipelines.file(SEARCH)
    (pipelines.notes / "hold-search").touch()
    first = pipelines.project.start("steps", "run", file, **pipelines.environment)
    wait_until(lambda: pipelines.noted("started") == ["prepare", "search"], "a trial has started")
    assert "0 of 3 trials over, 1 running" in pipelines("steps", "status").stdout
    first.kill()
    first.wait()
    os.kill(pipelines.tuner("search-1"), signal.SIGKILL)

    second = pipelines.project.start("steps", "run", file, **pipelines.environment)
    log = pipelines.folder() / "conductor.log"
    wait_until(lambda: "its tuner was killed: another one goes on" in log.read_text(), "another tuner has started")
    wait_until(lambda: pipelines.tuner("search-1") > 0, "it works")
    second.kill()
    second.wait()
    third = pipelines.project.start("steps", "run", file, **pipelines.environment)
    wait_until(lambda: "search runs: it is watched again" in log.read_text(), "the tuner is watched again")
    (pipelines.notes / "hold-search").unlink()

    assert third.wait() == 0
    assert pipelines.noted("started") == pipelines.noted("ended") == ["prepare", *3 * ["search"], "evaluate"]


def test_ctrl_c_stops_the_trials_and_the_same_command_goes_on(pipelines: Pipelines) -> None:
    file = pipelines.file(SEARCH)
    (pipelines.notes / "hold-search").touch()
    process = pipelines.project.start("steps", "run", file, **pipelines.environment)
    wait_until(lambda: pipelines.noted("started") == ["prepare", "search"], "a trial has started")
    process.send_signal(signal.SIGINT)

    assert process.wait() == 130 and not pipelines.tuner("search-1")
    assert "waits to go on" in pipelines("steps", "status").stdout
    (pipelines.notes / "hold-search").unlink()
    done = pipelines("steps", "run", file)
    assert done.status == 0 and "search goes on where it ended" in done.stderr
    assert pipelines.noted("ended") == ["prepare", *3 * ["search"], "evaluate"]


@pytest.mark.safety
def test_a_stop_from_elsewhere_after_a_kill_stops_tuner_and_trials(pipelines: Pipelines) -> None:
    file = pipelines.file(SEARCH)
    (pipelines.notes / "hold-search").touch()
    process = pipelines.project.start("steps", "run", file, **pipelines.environment)
    wait_until(lambda: pipelines.noted("started") == ["prepare", "search"], "a trial has started")
    process.kill()
    process.wait()
    done = pipelines("steps", "stop")

    assert done.status == 0 and "waits to go on" in done.stdout and not pipelines.tuner("search-1")
    assert not pipelines.runner("search-1/trials/0001")


def test_a_tuning_without_a_success_is_the_steps_failure_and_says_why(pipelines: Pipelines) -> None:
    file = pipelines.file(SEARCH)
    (pipelines.notes / "fail-search").touch()
    done = pipelines("steps", "run", file)

    assert done.status == 1 and "search failed" in done.stderr and "the last one: " in done.stderr, done.output
    assert "cannot do this" in done.stderr and pipelines.states()["evaluate"] == "Waiting"
    (pipelines.notes / "fail-search").unlink()
    assert pipelines("steps", "run", file).status == 0 and (pipelines.folder() / "runs/search-2/best").exists()


def test_what_is_wrong_with_a_search_is_said_before_anything_starts(pipelines: Pipelines) -> None:
    wrong = SEARCH.replace("search: {add: [1, 5, 3]}", "search: {add: {low: 5, high: 1}}")
    done = pipelines("steps", "run", pipelines.file(wrong))

    assert done.status == 2 and "chain.yaml:12: steps.search.tune.search.add" in done.stderr, done.output
    assert not pipelines.folder().exists()
