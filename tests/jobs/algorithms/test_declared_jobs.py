"""Jobs whose program declares itself: what is wrong is said before anything is installed or started."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.hosts import TOOLKIT
from trainshed.algorithms import ENDING
from trainshed.cli import main

DECLARED = "hyperparameters: {rounds: {type: integer, range: [1, null]}}\nchannels: {train: {required: true}}\n"


def train(base: Path) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": "/usr/bin:/bin", "SAGEMAKER_BASE_DIR": str(base), "PYTHONPATH": str(TOOLKIT), "TMPDIR": str(base)}
    command = [sys.executable, "-m", "trainshed.container.main"]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A job folder with a program that declares itself and has a requirement that does not exist."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text("print('trained')")
    (tmp_path / f"code/train{ENDING}").write_text(DECLARED)
    (tmp_path / "code/requirements.txt").write_text("./there-is-no-such-package\n")
    (tmp_path / "input/config").mkdir(parents=True)
    (tmp_path / "input/config/hyperparameters.json").write_text('{"round": "3", "rounds": "none"}')
    return tmp_path


@pytest.mark.spine
def test_all_problems_are_in_the_failure_file_and_nothing_is_installed(base: Path) -> None:
    done = train(base)

    assert done.returncode == 2
    failure = (base / "output/failure").read_text()
    assert failure.startswith("JobError: 3 problems in the job: hyperparameters.json: round")
    assert "2. hyperparameters.json: rounds: 'none' is not a whole number from 1" in failure
    assert "3. inputdataconfig.json: train: the channel is missing" in failure
    assert "there-is-no-such-package" not in done.stdout + done.stderr


def test_a_damaged_declaration_is_the_failure(base: Path) -> None:
    (base / f"code/train{ENDING}").write_text("hyperparameters: [")

    assert train(base).returncode == 2
    assert f"train{ENDING}: is not valid YAML" in (base / "output/failure").read_text().splitlines()[0]


def test_a_job_that_is_as_declared_runs(base: Path) -> None:
    (base / "code/requirements.txt").unlink()
    (base / "input/data/train").mkdir(parents=True)
    (base / "input/config/hyperparameters.json").write_text('{"rounds": "3", "sagemaker_program": "train.py"}')
    (base / "input/config/inputdataconfig.json").write_text('{"train": {"TrainingInputMode": "File"}}')

    done = train(base)
    assert (done.returncode, "trained" in done.stdout) == (0, True)


def test_trainshed_run_says_it_with_the_line_of_the_job_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('trained')")
    (tmp_path / f"train{ENDING}").write_text(DECLARED)
    (tmp_path / "job.yaml").write_text("program: train.py\nhyperparameters:\n  lr: 3\n  rounds: 0\nchannels:\n  trian: .\n")

    assert main(["run", "job.yaml"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[1:] == [
        "  1. job.yaml:3: hyperparameters.lr = 3: is not a hyperparameter of train",
        "  2. job.yaml:4: hyperparameters.rounds: '0' is not a whole number from 1",
        "  3. job.yaml:6: channels.trian: no channel of this name is read; train reads train (did you mean 'train'?)",
        "  4. job.yaml:6: channels.train: the channel is missing",
    ]
    assert list(tmp_path.glob("runs/*")) == []


def test_ready_programs_are_listed_and_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"mine{ENDING}").write_text("description: my own\nneeds: [there_is_no_such_module]\n" + DECLARED)

    assert main(["algorithms"]) == 0
    listed = capsys.readouterr().out
    assert re.search(r"^mine +my own  \(needs there_is_no_such_module, not installed here\)$", listed, re.MULTILINE)
    assert "language_model" in listed
    assert main(["describe", "mine"]) == 0
    told = capsys.readouterr().out
    assert "  train  required" in told and "whole number from 1" in told


@pytest.mark.spine
def test_a_ready_program_runs_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("print('trained by', __file__)")
    (tmp_path / f"mine{ENDING}").write_text("")
    (tmp_path / "else").mkdir()
    monkeypatch.setenv("TRAINSHED_ENTRYPOINTS", str(tmp_path))
    monkeypatch.chdir(tmp_path / "else")

    assert main(["run", "mine", "--output", "out"]) == 0
    assert "trained by" in capfd.readouterr().out
    assert main(["run", "min"]) == 2
    assert "(did you mean 'mine'?)" in capfd.readouterr().err
