"""A search whose ranges are those that the job's program recommends."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainshed.base.errors import JobError
from trainshed.studio.tune.space import CATEGORICAL, CONTINUOUS, INTEGER, LINEAR, LOG, Parameter
from trainshed.studio.tune.tuning import TuningJob
from trainshed.studio.tune.tuning_file import read_tuning

DECLARED = """
hyperparameters:
  rounds: {type: integer, tunable: {range: [10, 1000], scale: log}}
  learning_rate: {type: number, required: true, tunable: {range: [0, 0.5]}}
  booster: {type: categorical, choices: [tree, linear], tunable: true}
  fast: {type: boolean, tunable: true}
  seed: {type: integer}
"""
ROUNDS = Parameter("rounds", INTEGER, 10, 1000, LOG)
RATE = Parameter("learning_rate", CONTINUOUS, 0.0, 0.5, LINEAR)


def read(tmp_path: Path, search: str, declared: str = DECLARED, job: str = "program: boost.py") -> TuningJob:
    (tmp_path / "boost.py").write_text("")
    if declared:
        (tmp_path / "boost.algorithm.yaml").write_text(declared)
    path = tmp_path / "tune.yaml"
    path.write_text(f"job: {{{job}}}\nobjective: minimize loss\nmax_jobs: 3\nsearch: {search}\n")
    return read_tuning(str(path), {})


def said(tmp_path: Path, search: str, declared: str = DECLARED, job: str = "program: boost.py") -> list[str]:
    with pytest.raises(JobError) as raised:
        read(tmp_path, search, declared, job)
    return [problem.line().rpartition("tune.yaml:")[2] for problem in raised.value.problems]


def test_auto_is_all_that_the_program_recommends(tmp_path: Path) -> None:
    found = read(tmp_path, "auto").space

    assert found[:2] == (ROUNDS, RATE)
    assert [(one.name, one.kind) for one in found[2:]] == [("booster", CATEGORICAL), ("fast", CATEGORICAL)]
    assert [[value for value, _ in one.categories] for one in found[2:]] == [["tree", "linear"], ["true", "false"]]


def test_auto_leaves_what_the_job_fixes(tmp_path: Path) -> None:
    found = read(tmp_path, "auto", job="program: boost.py, hyperparameters: {learning-rate: 0.1, booster: tree}").space

    assert [one.name for one in found] == ["rounds", "fast"]


def test_one_hyperparameter_may_be_auto_and_another_written_out(tmp_path: Path) -> None:
    space = read(tmp_path, "{learning_rate: auto, rounds: {low: 1, high: 3}}").space

    assert space == (RATE, Parameter("rounds", INTEGER, 1, 3, LINEAR, "1"))


def test_a_name_may_be_written_with_hyphens(tmp_path: Path) -> None:
    (rate,) = read(tmp_path, "{learning-rate: auto}").space

    assert (rate.name, rate.high) == ("learning-rate", 0.5)


@pytest.mark.parametrize(
    ("search", "problem"),
    [
        ("{learning_rate: auto, roundz: auto}", "search.roundz: is not a hyperparameter of boost (did you mean 'rounds'?)"),
        ("{learning_rate: auto, epochs: {low: 1, high: 3}}", "search.epochs: is not a hyperparameter of boost"),
        ("{learning_rate: auto, seed: auto}", "search.seed = auto: boost recommends no range for it: write one like"),
        ("{rounds: auto}", "hyperparameters.learning_rate: is missing: a number"),
        ("{learning_rate: atuo}", "must be a list of values, or a range"),
    ],
)
def test_what_the_program_does_not_take_or_recommend(tmp_path: Path, search: str, problem: str) -> None:
    (line,) = said(tmp_path, search)

    assert problem in line


@pytest.mark.parametrize(
    ("search", "declared", "problem"),
    [
        ("auto", "", "search = auto: the job's program declares no ranges: name hyperparameters and their ranges"),
        ("{x: auto}", "", "search.x = auto: the job's program declares no ranges: write one like"),
        ("auto", "hyperparameters: {seed: {type: integer}}", "boost recommends no range: name hyperparameters"),
    ],
)
def test_a_program_that_recommends_nothing(tmp_path: Path, search: str, declared: str, problem: str) -> None:
    lines = said(tmp_path, search, declared)

    assert problem in lines[0] and len(lines) == 1


def test_what_the_job_gives_is_still_held_against_the_declaration(tmp_path: Path) -> None:
    (line,) = said(tmp_path, "{learning_rate: auto}", job="program: boost.py, hyperparameters: {seed: one}")

    assert "hyperparameters.seed: 'one' is not a whole number" in line


def test_a_program_without_a_declaration_is_searched_as_written(tmp_path: Path) -> None:
    assert read(tmp_path, "{x: [1, 2]}", declared="").space[0].name == "x"
