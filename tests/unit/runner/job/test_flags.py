"""The command line of `trainshed run`."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command_line import job_of, options_of, parser_of
from trainshed.base.errors import JobError


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("a=1.10", "1.10"),
        ("a=1e5", "1e5"),
        ("a=x=y", "x=y"),
        ("a=", ""),
        ("a=True", "True"),
        ('a="07"', "07"),
        ("a=[1, 2.50]", "[1, 2.50]"),
        ("a=-3", "-3"),
        ("a=-0", "-0"),
        ("a=[broken", "[broken"),
    ],
)
def test_a_hyperparameter_keeps_its_spelling(pair: str, value: str) -> None:
    assert str(job_of(["train.py", "--hp", pair], {}).hyperparameters["a"]) == value


def test_json_values_have_their_types() -> None:
    pairs = ["flag=true", "none=null", "count=3", 'map={"x": [1]}']
    flags = [part for pair in pairs for part in ("--hyperparameter", pair)]
    assert job_of(["train.py", *flags], {}).hyperparameters == {"flag": True, "none": None, "count": 3, "map": {"x": [1]}}


def test_a_variable_without_a_value_is_the_callers() -> None:
    made = job_of(["train.py", "--env", "MINE", "--env", "B=x=y"], {"MINE": "secret"})
    assert made.environment == {"MINE": "secret", "B": "x=y"}


@pytest.mark.parametrize("flag", ["--hp", "--channel", "--env", "--metric"])
def test_a_pair_without_a_value_is_a_problem(flag: str) -> None:
    with pytest.raises(JobError) as caught:
        job_of(["train.py", flag, "lonely"], {})
    assert "= lonely: must be NAME=VALUE" in str(caught.value)


def test_a_flag_that_does_not_exist_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        job_of(["train.py", "--instanses", "2"], {})
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert "does not take '--instanses' (did you mean '--instances'?)" in error
    assert len(error.splitlines()) == 1


def test_flags_are_never_guessed_from_their_beginning() -> None:
    with pytest.raises(SystemExit):
        job_of(["train.py", "--instance", "2"], {})


def test_a_dry_run_is_asked_for_beside_the_job() -> None:
    assert options_of("run", ["train.py", "--dry-run"]).dry_run is True
    assert options_of("run", ["train.py"]).dry_run is False


def test_a_missing_job_file_is_one_line() -> None:
    with pytest.raises(JobError) as caught:
        job_of(["nothing.yaml"], {})
    assert "nothing.yaml: cannot be read: No such file or directory" in str(caught.value)


def test_every_flag_has_a_line_of_help() -> None:
    assert all(action.help for action in parser_of("run")._actions)
