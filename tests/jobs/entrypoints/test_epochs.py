"""The programs on the loop of `_epochs`: each goes on where it was killed, learns on two ranks what one does, and stops."""

from __future__ import annotations

import hashlib
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import programs
from support.extras import needs
from support.programs import Module, Train
from support.runner_project import Project
from trainshed.algorithms.declaration import read as declared

needs("torch")
pytestmark = pytest.mark.torch

# By program: what demo_data writes for it, the packages it needs, and hyperparameters that make it small.
PROGRAMS: dict[str, tuple[str, tuple[str, ...], dict[str, object]]] = {
    "embeddings": (
        "pairs", ("sentence_transformers",),
        {"hidden_size": 16, "num_attention_heads": 2, "vocab_size": 400, "max_length": 16, "num_hidden_layers": 1,
         "batch_size": 40},
    ),
    "forecasting": (
        "series", ("gluonts",),
        {"time_freq": "M", "prediction_length": 4, "context_length": 6, "num_batches_per_epoch": 3, "num_cells": 8,
         "mini_batch_size": 8, "num_eval_samples": 10, "batch_size": None, "log_interval": None},
    ),
    "recommend": (
        "ratings", ("scipy", "safetensors"),
        {"model": "towers", "hidden_size": 4, "num_factors": 3, "predictor_type": "regressor", "mini_batch_size": 500,
         "batch_size": None},
    ),
    "text_classification": (
        "topics", ("transformers",),
        {"hidden_size": 16, "num_attention_heads": 2, "vocab_size": 400, "max_length": 16, "num_hidden_layers": 1},
    ),
}  # fmt: skip
COMMON = {"epochs": 3, "batch_size": 150, "seed": 3, "log_interval": 1, "device": "cpu"}

ORDINARY = "recommend"  # the quickest; the others have the same loop


def each_program(*marks: pytest.MarkDecorator) -> pytest.MarkDecorator:
    """Runs a test with each program; the ordinary one has these marks, and the others are variants."""
    marked = {one: marks if one == ORDINARY else pytest.mark.matrix for one in sorted(PROGRAMS)}
    return pytest.mark.parametrize("name", [pytest.param(one, marks=its) for one, its in marked.items()], indirect=True)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    for package in PROGRAMS[request.param][1]:
        pytest.importorskip(package)
    return str(request.param)


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory, module: Module) -> Callable[[str], Path]:
    """The demo data of a program. Not to be written to."""
    made: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            getattr(module("demo_data"), f"write_{PROGRAMS[name][0]}")(made[name])
        return made[name]

    return of


def arguments(name: str, data: Path, root: Path, **changed: object) -> list[str]:
    given: dict[str, object] = {channel.name: channel for channel in sorted(data.iterdir())}
    given |= {"model_dir": root / "model", "output_data_dir": root / "output", **COMMON, **PROGRAMS[name][2], **changed}
    return [part for key, value in given.items() if value is not None for part in (f"--{key}", str(value))]


@pytest.fixture
def run(
    name: str, module: Module, demo: Any, outside_a_job: None, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> Train:  # fmt: skip
    """Trains in this process, in a folder of its own; gives what was printed."""

    def train(folder: str, **changed: object) -> str:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments(name, demo(name), tmp_path / folder, **changed)])
        module(name).main()
        return capsys.readouterr().out

    return train


def learnt(output: str) -> list[str]:
    """The lines of measurements, but for speed."""
    return [line for line in output.splitlines() if line.startswith("metric") and "_per_second" not in line]


def files(folder: Path) -> dict[str, str]:
    """Hashes of a model's files, but for what says with which folders it was made."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "model.json"
    }


@pytest.mark.exact
@each_program(pytest.mark.spine)
def test_a_job_that_was_killed_goes_on_to_the_very_bytes_of_one_that_was_not(
    name: str, run: Train, demo: Callable[[str], Path], tmp_path: Path
) -> None:
    checkpoints = tmp_path / "checkpoints"
    changed = {"checkpoint_dir": checkpoints, "checkpoint_steps": 1}
    with programs.started(
        f"{name}.py", *arguments(name, demo(name), tmp_path / "killed", **changed), cwd=tmp_path
    ) as killed:
        killed.wait_for("^metric train_loss=.* epoch=2 ")
        killed.processes[0].send_signal(signal.SIGKILL)
        assert killed.finish() == [-signal.SIGKILL]
    assert not (tmp_path / "killed/model/model.json").exists()

    resumed, straight = run("killed", **changed), run("straight")

    assert 3 <= len(learnt(resumed)) < len(learnt(straight))
    assert learnt(resumed) == learnt(straight)[-len(learnt(resumed)) :]
    assert files(tmp_path / "killed/model") == files(tmp_path / "straight/model")
    facts = json.loads((tmp_path / "killed/model/model.json").read_text())
    assert (facts["program"], facts["finished"]) == (name, True) and facts["metrics"]["train_loss"] > 0

    again = run("again", **changed)
    assert "metric train_loss" not in again and files(tmp_path / "again/model") == files(tmp_path / "straight/model")
    with pytest.raises(Exception, match=r"is of another training \(seed was 3, is 4\).*: remove it"):
        run("other", **changed, seed=4)


@each_program()
def test_two_ranks_learn_what_one_does_and_stop_on_notice(
    name: str, run: Train, demo: Callable[[str], Path], tmp_path: Path
) -> None:
    given: dict[str, object] = {
        "dropout": 0,
        "dropout_rate": 0,
        "epochs": 1000,
        "lr_schedule": "constant",
        "warmup_ratio": 0,
    }
    given = {key: value for key, value in given.items() if key in hyperparameters_of(name)}
    with programs.started(
        f"{name}.py", *arguments(name, demo(name), tmp_path / "two", **given), cwd=tmp_path, ranks=2
    ) as two:
        two.wait_for("^metric train_loss=.* epoch=2 ")
        two.processes[1].send_signal(signal.SIGTERM)
        output = two.succeed()
    stopped = json.loads((tmp_path / "two/output/metrics.json").read_text())
    assert not stopped["finished"] and stopped["world_size"] == 2
    assert json.loads((tmp_path / "two/model/model.json").read_text())["steps"] == stopped["steps"]

    one = run("one", **{**given, "epochs": 1})
    for measure in ("train_loss", "validation_loss"):
        first = [value for value, _ in programs.metrics(one, measure)]
        assert [value for value, _ in programs.metrics(output, measure)][: len(first)] == pytest.approx(first, rel=2e-3)


def hyperparameters_of(name: str) -> set[str]:
    return set(declared(str(programs.ENTRYPOINTS / f"{name}.algorithm.yaml")).hyperparameters)


@pytest.mark.parametrize("name", ["text_classification"], indirect=True)
def test_a_loss_that_is_no_number_is_said_and_no_model_is_written(name: str, run: Train, tmp_path: Path) -> None:
    given = {"max_grad_norm": 0, "warmup_ratio": 0, "lr_schedule": "constant", "epochs": 300, "learning_rate": 1000}
    given = {key: value for key, value in given.items() if key in hyperparameters_of(name)}
    with pytest.raises(Exception, match=r"no(t a)? finite numbers? (at|after) step \d+: lower learning_rate"):
        run("ruined", **given)
    assert not (tmp_path / "ruined/model").exists()


@pytest.mark.safety
@pytest.mark.parametrize("name", ["text_classification"], indirect=True)
def test_weights_that_a_step_has_ruined_are_in_no_checkpoint(name: str, run: Train, tmp_path: Path) -> None:
    settings = {"checkpoint_steps": 1, "warmup_ratio": 0, "learning_rate": 1000, "weight_decay": 1e37}
    with pytest.raises(Exception, match=r"is not a finite number after step 1: lower learning_rate"):
        run("ruined", checkpoint_dir=tmp_path / "checkpoints", epochs=1, **settings)
    assert not list((tmp_path / "checkpoints").glob("step-*"))


@each_program()
def test_a_job_needs_its_name_and_channels_alone(name: str, project: Project, demo: Callable[[str], Path]) -> None:
    channels = [f"--channel={channel.name}={channel}" for channel in sorted(demo(name).iterdir())]
    small = [part for key, value in PROGRAMS[name][2].items() if value is not None for part in ("--hp", f"{key}={value}")]
    done = project.trainshed("run", name, *channels, "--hp", "epochs=1", *small, OMP_NUM_THREADS="1")
    assert done.status == 0 and "Traceback" not in done.output, done.output
    assert json.loads((project.run / "algo-1/model/model.json").read_text())["program"] == name
