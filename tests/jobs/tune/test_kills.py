"""Tuning jobs that are killed, stopped, started twice, and whose files are damaged: no trial is lost, none runs twice."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path

import pytest

from support.obstacles import fill, small_disk
from support.runner_project import wait_until
from support.runner_scripts import DEAF

from .conftest import GRID, Tunes

pytestmark = pytest.mark.safety

COMBINATIONS = sorted(f"{rate}-{kind}" for rate in (0.1, 0.25, 0.6) for kind in "ab")
HELD = """\
job: {program: train.py, environment: {NOTES: "%s"}, retries: RETRIES}
search: {rate: [0.1, 0.25], kind: [a]}
objective: minimize loss
strategy: grid
max_parallel_jobs: 2
"""


def best(tunes: Tunes) -> str:
    return os.readlink(tunes.folder() / "best")


@pytest.mark.parametrize("seed", range(2))
def test_a_tuner_that_is_killed_again_and_again(tunes: Tunes, seed: int) -> None:
    """Whatever moment it is, counted in files that it and its trials have made: the same command goes on."""
    draw = random.Random(seed)

    def made() -> int:
        return sum(1 for _ in tunes.folder().rglob("*"))

    file = tunes.file(GRID)
    for _ in range(6):
        tuner, enough = tunes.project.start("tune", file), made() + draw.randint(0, 40)
        wait_until(lambda: made() >= enough or tuner.poll() is not None, f"{enough} files")  # noqa: B023
        tuner.kill()
        tuner.wait()
    done = tunes.project.trainshed("tune", file)

    assert done.status == 0, done.output
    assert sorted(tunes.noted("started")) == sorted(tunes.noted("ended")) == COMBINATIONS
    assert best(tunes) == "trials/0003" and [trial["state"] for trial in tunes.trials()] == ["Completed"] * 6


@pytest.mark.spine
def test_what_ran_when_the_tuner_was_killed_is_watched_again(tunes: Tunes) -> None:
    (tunes.notes / "hold-a").touch()
    tuner = tunes.project.start("tune", tunes.file(HELD.replace("RETRIES", "0")))
    wait_until(lambda: len(tunes.noted("started")) == 2, "both trials")
    tuner.kill()
    tuner.wait()
    told = tunes.project.trainshed("tune", "status")
    assert told.stdout.startswith("stopped") and "its tuner was killed; trials 1, 2 go on" in told.stdout

    again = tunes.project.start("tune", "--resume")
    assert again.stderr is not None
    said = [again.stderr.readline() for _ in range(4)]
    (tunes.notes / "hold-a").unlink()

    assert again.wait() == 0 and any("trial 2 runs: it is watched again" in line for line in said)
    assert len(tunes.noted("started")) == 2


@pytest.mark.parametrize(("retries", "states"), [(0, ["Completed", "Failed"]), (1, ["Completed", "Completed"])])
def test_a_trial_that_is_killed_is_tried_again_as_the_job_says(tunes: Tunes, retries: int, states: list[str]) -> None:
    (tunes.notes / "hold-a").touch()
    tuner = tunes.project.start("tune", tunes.file(HELD.replace("RETRIES", str(retries))))
    step = tunes.folder() / "trials/0002/checkpoints/step"
    wait_until(lambda: step.exists() and step.read_text() == "2", "the second trial")
    os.kill(tunes.runner(2), signal.SIGKILL)
    # Held until the tuner has seen it: a program that outlives its runner and ends well has completed.
    seen = "started again" if retries else "Failed"
    wait_until(lambda: len(tunes.noted("started")) == 3 if retries else tunes.trials()[1]["state"] == "Failed", seen)
    (tunes.notes / "hold-a").unlink()

    assert tuner.wait() == 0
    first, second = tunes.trials()
    assert sorted([first["state"], second["state"]]) == states and second["retries"] == retries
    assert len(tunes.noted("started")) == 2 + retries
    if retries:
        assert "first step 3" in (tunes.folder() / "trials/0002/logs/algo-1.log").read_text(), "from its checkpoint"
    else:
        assert second["reason"].startswith("its runner was killed while the job was training")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_tuner_that_is_stopped_stops_its_trials_and_they_go_on_later(tunes: Tunes, number: signal.Signals) -> None:
    (tunes.notes / "hold-a").touch()
    tuner = tunes.project.start("tune", tunes.file(HELD.replace("RETRIES", "0")))
    steps = [tunes.folder() / f"trials/{trial:04d}/checkpoints/step" for trial in (1, 2)]
    wait_until(lambda: all(step.exists() and step.read_text() == "2" for step in steps), "both trials")
    tuner.send_signal(number)

    assert tuner.wait() == 128 + number
    assert not tunes.runner(1) and not tunes.runner(2)
    told = tunes.project.trainshed("tune", "status")
    assert f"stopped by {number.name}; 2 trials wait to go on" in told.stdout

    (tunes.notes / "hold-a").unlink()
    done = tunes.project.trainshed("tune", "--resume", "tune")
    assert done.status == 0 and [trial["state"] for trial in tunes.trials()] == ["Completed"] * 2
    for trial in (1, 2):
        assert "first step 3" in (tunes.folder() / f"trials/{trial:04d}/logs/algo-1.log").read_text()


def test_a_second_stop_signal_kills_trials_that_do_not_listen(tunes: Tunes) -> None:
    tunes.project.write({"train.py": DEAF})
    tuner = tunes.project.start("tune", tunes.file(HELD.replace("RETRIES", "0")))
    logs = [tunes.folder() / f"trials/{trial:04d}/logs/algo-1.log" for trial in (1, 2)]

    def each_says(word: str) -> bool:
        return all(log.exists() and word in log.read_text() for log in logs)

    wait_until(lambda: each_says("running"), "both trials")
    tuner.send_signal(signal.SIGINT)
    wait_until(lambda: each_says("deaf"), "the first signal")
    tuner.send_signal(signal.SIGINT)

    assert tuner.wait() == 130 and not tunes.runner(1) and not tunes.runner(2)
    assert "0 of 2 trials over, 2 waiting to go on" in tunes.project.trainshed("tune", "status").stdout


def test_stop_ends_a_tuner_and_what_a_killed_one_has_left(tunes: Tunes) -> None:
    (tunes.notes / "hold-a").touch()
    file = tunes.file(HELD.replace("RETRIES", "0"))
    tuner = tunes.project.start("tune", file)
    wait_until(lambda: len(tunes.noted("started")) == 2, "both trials")
    assert tunes.project.trainshed("tune", "stop").status == 0
    assert tuner.wait() == 128 + signal.SIGTERM and not tunes.runner(1)

    again = tunes.project.start("tune", file)
    wait_until(lambda: len(tunes.noted("started")) == 4, "both trials again")
    again.kill()
    again.wait()
    assert tunes.project.trainshed("tune", "stop").status == 0
    assert not tunes.runner(1) and not tunes.runner(2)

    (tunes.notes / "hold-a").unlink()
    assert tunes.project.trainshed("tune", file).status == 0
    assert sorted(tunes.noted("ended")) == ["0.1-a", "0.25-a"]


def test_a_second_tuner_is_refused(tunes: Tunes) -> None:
    (tunes.notes / "hold-a").touch()
    file = tunes.file(HELD.replace("RETRIES", "0"))
    tuner = tunes.project.start("tune", file)
    wait_until(lambda: len(tunes.noted("started")) == 2, "both trials")
    second = tunes.project.trainshed("tune", file)

    assert second.status == 1 and f"tunes/tune is being tuned already, by process {tuner.pid}" in second.stderr
    assert tunes.project.trainshed("tune", "status").stdout.startswith("inprogress")
    (tunes.notes / "hold-a").unlink()
    assert tuner.wait() == 0 and len(tunes.noted("started")) == 2


def test_files_that_are_damaged_or_gone_cost_nothing(tunes: Tunes) -> None:
    file = tunes.file(GRID)
    first = tunes.project.trainshed("tune", file)
    trials = tunes.folder() / "trials"
    (trials / "0003.json").write_text('{"number": 3, "val')
    (trials / "0004.json").unlink()
    (trials / "0005.json").write_bytes(os.urandom(64))
    (tunes.folder() / "tune.json").write_text("{")
    refused = tunes.project.trainshed("tune", "--resume")
    again = tunes.project.trainshed("tune", file)

    assert refused.status == 1 and "start the tuning job again by its own file" in refused.stderr
    assert again.status == 0 and "the file of trial 3 is damaged or gone: it is made again from its run" in again.stderr
    assert "tune.json is damaged: it is written anew" in again.stderr
    assert len(tunes.noted("started")) == 6 and best(tunes) == "trials/0003"
    values = [line.split()[:4] for line in again.stdout.splitlines()]
    assert values == [line.split()[:4] for line in first.stdout.splitlines()]


def test_a_full_disk_is_said_and_loses_nothing(tunes: Tunes, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 24) as disk:
        (tunes.notes / "hold-a").touch()
        folder = disk / "tuning"
        file = tunes.file(GRID)
        tuner = tunes.project.start("tune", file, "--output", str(folder))
        wait_until(lambda: len(tunes.noted("started")) == 2, "both trials")
        fill(disk / "ballast")
        (tunes.notes / "hold-a").unlink()
        _, stderr = tuner.communicate()
        assert tuner.returncode == 1 and "No space left" in stderr and "nothing is lost" in stderr, stderr

        (disk / "ballast").unlink()
        done = tunes.project.trainshed("tune", file, "--output", str(folder))
        assert done.status == 0, done.output
        trials = [json.loads(path.read_text()) for path in sorted((folder / "trials").glob("*.json"))]
        assert [trial["number"] for trial in trials] == [1, 2, 3, 4, 5, 6]
        assert {trial["state"] for trial in trials} == {"Completed"}, stderr + done.stderr
        assert os.readlink(folder / "best") == "trials/0003"
