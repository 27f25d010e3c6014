"""Pipelines from start to end: what runs, what is reused, what is said."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from support.obstacles import fill, small_disk
from support.runner_project import wait_until

from .conftest import CHAIN, Pipelines


def test_a_chain_runs_once_and_then_only_what_has_changed(pipelines: Pipelines) -> None:
    file = pipelines.file()
    done = pipelines("steps", "run", file)

    assert done.status == 0, done.output
    assert pipelines.noted("started") == ["prepare", "train", "evaluate"]
    assert "good is true" in done.stderr and "keep: digits:1, champion" in done.stderr
    told = json.loads(pipelines("models", "show", "digits@champion", "--json").stdout)
    assert told["facts"]["metrics"] == {"total": 4.0}, "of evaluate: 2 of train's metric, and 2 of its model"
    assert told["facts"]["run"]["name"] == "chain-train-1" and told["facts"]["licence"] == "mit"
    assert (
        "chain-train-1" in pipelines("ps", "--all").stdout
        and "metric total=2.0" in pipelines("logs", "chain-train-1").stdout
    )
    assert (pipelines.folder() / "picture.svg").read_text().count("<rect") == 6

    again = pipelines("steps", "run", file)
    assert again.status == 0 and len(pipelines.noted("started")) == 3
    assert pipelines.states() == {
        "prepare": "reused", "train": "reused", "evaluate": "reused", "good": "Completed", "keep": "reused",
    }  # fmt: skip

    other = pipelines("steps", "run", file, "--param", "more=2")
    assert other.status == 0 and pipelines.noted("started")[3:] == ["train", "evaluate"]
    assert "prepare is done already" in other.stderr and "keep: digits:2" in other.stderr

    worse = pipelines("steps", "run", file, "--param", "more=2", "--param", "least=9")
    assert worse.status == 0 and "good is false" in worse.stderr and pipelines.states()["keep"] == "Skipped"
    assert len(pipelines.noted("started")) == 5

    pipelines.project.write({"code/step.py": (pipelines.project.folder / "code/step.py").read_text() + "# another\n"})
    pipelines("steps", "run", file, "--param", "more=2")
    assert pipelines.noted("started")[5:] == ["prepare", "train", "evaluate"], "all of them have this code"

    count = len(pipelines.noted("started"))
    pipelines("steps", "run", file, "--param", "more=2", "--from", "evaluate")
    assert pipelines.noted("started")[count:] == ["evaluate"]
    (pipelines.folder() / "runs/evaluate-4/model/total").write_text("7")
    done = pipelines("steps", "run", file, "--param", "more=2")
    assert "evaluate runs again: its model was changed since" in done.stderr


@pytest.mark.spine
def test_a_step_that_fails_stops_what_needs_it_and_the_same_command_goes_on_from_there(pipelines: Pipelines) -> None:
    file = pipelines.file()
    (pipelines.notes / "fail-train").touch()
    done = pipelines("steps", "run", file)

    assert done.status == 1 and "train failed" in done.stderr and "cannot do this" in done.stderr
    assert pipelines.states() == {
        "prepare": "Completed", "train": "Failed", "evaluate": "Waiting", "good": "Waiting", "keep": "Waiting",
    }  # fmt: skip
    (pipelines.notes / "fail-train").unlink()
    assert pipelines("steps", "run", file).status == 0
    assert pipelines.noted("started") == ["prepare", "train", "train", "evaluate"]


@pytest.mark.safety
@pytest.mark.spine
def test_a_conductor_that_is_killed_loses_nothing_and_nothing_runs_twice(pipelines: Pipelines) -> None:
    file = pipelines.file()
    (pipelines.notes / "hold-train").touch()
    first = pipelines.project.start("steps", "run", file, **pipelines.environment)
    wait_until(lambda: pipelines.noted("started") == ["prepare", "train"], "train has started")
    first.kill()
    first.wait()
    assert pipelines.states()["train"] == "InProgress"

    second = pipelines.project.start("steps", "run", file, **pipelines.environment)
    log = pipelines.folder() / "conductor.log"
    wait_until(lambda: "train runs: it is watched again" in log.read_text(), "train is watched again")
    third = pipelines("steps", "run", file)
    assert third.status == 1 and "is being run already, by process" in third.stderr
    (pipelines.notes / "hold-train").unlink()
    assert second.wait() == 0

    assert pipelines.noted("started") == pipelines.noted("ended") == ["prepare", "train", "evaluate"]


@pytest.mark.safety
def test_a_runner_that_is_killed_is_started_again(pipelines: Pipelines) -> None:
    file = pipelines.file(
        CHAIN.replace("hyperparameters: {step: prepare}", "retries: 1\n      hyperparameters: {step: prepare}")
    )
    (pipelines.notes / "hold-prepare").touch()
    process = pipelines.project.start("steps", "run", file, **pipelines.environment)
    wait_until(lambda: pipelines.noted("started") == ["prepare"], "prepare has started")
    os.kill(pipelines.runner("prepare-1"), signal.SIGKILL)
    wait_until(lambda: pipelines.noted("started") == ["prepare", "prepare"], "prepare is started again")
    (pipelines.notes / "hold-prepare").unlink()

    assert process.wait() == 0
    assert pipelines.noted("ended") == ["prepare", "train", "evaluate"]
    assert not (pipelines.folder() / "runs/prepare-2").exists(), "it is the same run"


def test_ctrl_c_stops_with_grace_and_the_same_command_goes_on(pipelines: Pipelines) -> None:
    file = pipelines.file()
    (pipelines.notes / "hold-train").touch()
    process = pipelines.project.start("steps", "run", file, **pipelines.environment)
    wait_until(lambda: pipelines.noted("started") == ["prepare", "train"], "train has started")
    process.send_signal(signal.SIGINT)

    assert process.wait() == 130 and not pipelines.runner("train-1")
    (pipelines.notes / "hold-train").unlink()
    done = pipelines("steps", "run", file)
    assert done.status == 0 and "train goes on where it ended" in done.stderr
    assert pipelines.noted("ended") == ["prepare", "train", "evaluate"]
    assert not (pipelines.folder() / "runs/train-2").exists()


def test_a_stop_from_elsewhere_after_a_kill_stops_the_runs(pipelines: Pipelines) -> None:
    file = pipelines.file()
    (pipelines.notes / "hold-prepare").touch()
    process = pipelines.project.start("steps", "run", file, **pipelines.environment)
    wait_until(lambda: pipelines.noted("started") == ["prepare"], "prepare has started")
    process.kill()
    process.wait()
    done = pipelines("steps", "stop", "chain")

    assert done.status == 0 and "waits to go on" in done.stdout and not pipelines.runner("prepare-1")


PARALLEL = """\
max_parallel: 2
steps:
  one: {run: {program: step.py, environment: {NOTES: "%s"}, hyperparameters: {step: one}}}
  two: {run: {program: step.py, environment: {NOTES: "%s"}, hyperparameters: {step: two}}}
  both: {after: [one, two], run: {program: step.py, environment: {NOTES: "%s"}, hyperparameters: {step: both}}}
"""


def test_steps_that_do_not_need_each_other_run_beside_each_other(pipelines: Pipelines) -> None:
    file = pipelines.file(PARALLEL)
    for name in ("one", "two"):
        (pipelines.notes / f"hold-{name}").touch()
    process = pipelines.project.start("steps", "run", file, **pipelines.environment)
    wait_until(lambda: sorted(pipelines.noted("started")) == ["one", "two"], "both have started")
    for name in ("one", "two"):
        (pipelines.notes / f"hold-{name}").unlink()

    assert process.wait() == 0 and pipelines.noted("started")[2:] == ["both"]


def test_a_metric_that_was_not_measured_is_the_steps_failure(pipelines: Pipelines) -> None:
    done = pipelines("steps", "run", pipelines.file(CHAIN.replace("evaluate.metrics.total", "evaluate.metrics.totl")))

    assert done.status == 1 and "good failed" in done.stderr and "did you mean 'total'?" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "nothing.yaml"), "cannot be read"),
        (("run", "chain.yaml", "--from", "evaluat"), "did you mean 'evaluate'?"),
        (("run", "chain.yaml", "--param", "lest=3"), "did you mean 'least'?"),
        (("run", "chain.yaml", "--max-parallel", "0"), "from 1 to 100"),
        (("run", "chain.yaml", "--output", "code"), "holds other things"),
        (("status", "chan"), "there are no pipelines"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_starts_nothing(pipelines: Pipelines, words: tuple[str, ...], said: str) -> None:
    pipelines.file()
    done = pipelines("steps", *words)

    assert done.status in (1, 2) and said in done.stderr, done.output
    assert not pipelines.noted("started")


ONE = """\
params: {password: hunter2hunter2}
steps:
  one: {run: {program: step.py, environment: {NOTES: "%s"}, hyperparameters: {step: one}, channels: {data: data}}}
  secret:
    after: one
    condition: ${params.password} > 1
"""


@pytest.mark.safety
def test_a_run_whose_inputs_have_changed_is_stopped_and_another_one_made_whatever_is_killed(pipelines: Pipelines) -> None:
    pipelines.project.write({"data/a": "1"})
    file = pipelines.file(ONE)
    (pipelines.notes / "hold-one").touch()
    first = pipelines.project.start("steps", "run", file, **pipelines.environment)
    wait_until(lambda: pipelines.noted("started") == ["one"], "one has started")
    first.kill()
    first.wait()
    pipelines.project.write({"data/a": "2"})
    second = pipelines.project.start("steps", "run", file, **pipelines.environment)
    log = pipelines.folder() / "conductor.log"
    wait_until(lambda: "its inputs have changed: it is stopped" in log.read_text(), "the change is seen")
    second.kill()
    second.wait()
    (pipelines.notes / "hold-one").unlink()
    done = pipelines("steps", "run", file)

    assert done.status == 1 and "secret failed: compares a text with a number" in done.stderr, done.output
    assert (pipelines.folder() / "runs/one-2/model/total").read_text() == "3.0"
    assert pipelines.states()["one"] == "Completed"
    written = [path.read_text(errors="replace") for path in pipelines.folder().glob("*.*") if path.is_file()]
    assert "hunter2" not in done.output + "".join(written)


@pytest.mark.safety
def test_a_step_that_a_full_disk_has_failed_goes_on_with_the_next_command(pipelines: Pipelines, tmp_path: Path) -> None:
    file, out = pipelines.file(), "--output"
    with small_disk(tmp_path / "disk", 24) as disk:
        (pipelines.notes / "hold-train").touch()
        command = pipelines.project.start("steps", "run", file, out, str(disk / "chain"), **pipelines.environment)
        wait_until(lambda: pipelines.noted("started") == ["prepare", "train"], "the second step")
        fill(disk / "ballast")
        (pipelines.notes / "hold-train").unlink()
        _, stderr = command.communicate()
        assert command.returncode == 1 and "No space left" in stderr and "nothing is lost" in stderr, stderr

        (disk / "ballast").unlink()
        done = pipelines("steps", "run", file, out, str(disk / "chain"))
        assert done.status == 0 and "failed" not in done.stderr, done.output
        assert pipelines.noted("ended") == ["prepare", "train", "evaluate"]
