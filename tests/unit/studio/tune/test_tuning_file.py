"""tune.yaml and the platform's request: what they mean, and what is said of those that are wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainshed.base.errors import JobError
from trainshed.runner.job.places import Can, Place
from trainshed.studio.tune.space import CATEGORICAL, CONTINUOUS, INTEGER, LINEAR, LOG, REVERSE_LOG, Parameter
from trainshed.studio.tune.tuning import ASHA, BEST, GP, GRID, HYPERBAND, IDENTICAL, MAXIMIZE, MEDIAN, MINIMIZE, TuningJob
from trainshed.studio.tune.tuning_file import read_tuning
from trainshed.studio.tune.tuning_folder import described, tuning_of

WHOLE = """\
name: digits
job:
  program: train.py
  hyperparameters: {epochs: 3, rate: 0.5}
  metric_definitions: {val: "val=([0-9.]+)"}
search:
  beta: {low: 0.9, high: 0.999, scale: reverse_log, when: {kind: [adam, lamb]}}
  rate: {low: 1e-5, high: 0.1}
  layers: {low: 2, high: 8}
  drop: {low: 0.0, high: 0.5, step: 0.1}
  kind: [sgd, adam, lamb]
  hidden: {values: [[64], [64, 32], 1.50, true]}
objective: {metric: val, goal: maximize, value: best}
strategy: {kind: bayesian, sampler: gp, seed: 7}
max_jobs: 30
max_parallel_jobs: 2
max_runtime_seconds: 3600
max_billable_seconds: 7200
max_failed_jobs: 3
early_stopping: median
completion: {target: 0.99, not_improving: 10}
"""


def read(tmp_path: Path, text: str, name: str = "tune.yaml") -> TuningJob:
    (tmp_path / "train.py").write_text("")
    (tmp_path / name).write_text(text)
    return read_tuning(str(tmp_path / name), {})


def problems(tmp_path: Path, text: str, name: str = "tune.yaml") -> list[str]:
    with pytest.raises(JobError) as raised:
        read(tmp_path, text, name)
    return [problem.line().rpartition(f"{name}:")[2] for problem in raised.value.problems]


def test_a_whole_file(tmp_path: Path) -> None:
    tuning = read(tmp_path, WHOLE)

    beta, rate, layers, drop = (
        Parameter("beta", CONTINUOUS, 0.9, 0.999, REVERSE_LOG, when=(("kind", ("adam", "lamb")),)),
        Parameter("rate", CONTINUOUS, 1e-5, 0.1, LOG),
        Parameter("layers", INTEGER, 2, 8, LINEAR, "1"),
        Parameter("drop", CONTINUOUS, 0.0, 0.5, LINEAR, "0.1"),
    )
    kind = Parameter("kind", CATEGORICAL, categories=(("sgd", True), ("adam", True), ("lamb", True)))
    hidden = (("[64]", False), ("[64, 32]", False), ("1.50", False), ("true", False))
    assert tuning.space == (rate, layers, drop, kind, beta, Parameter("hidden", CATEGORICAL, categories=hidden))
    assert tuning.name == "digits" and tuning.job.program == "train.py"
    assert (tuning.objective.metric, tuning.objective.goal, tuning.objective.value) == ("val", MAXIMIZE, BEST)
    assert (tuning.strategy.sampler, tuning.strategy.seed, tuning.early.kind) == (GP, 7, MEDIAN)
    limits = tuning.limits
    assert (limits.max_jobs, limits.max_parallel, limits.max_runtime, limits.max_billable) == (30, 2, 3600, 7200)
    assert (limits.max_failed, limits.target, limits.not_improving) == (3, 0.99, 10)


def test_trials_run_where_the_table_of_places_says_that_they_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    added = Place("a_place", "trainshed.places.here:Here", "A", "at A", can=Can(pipe=False))
    monkeypatch.setattr("trainshed.runner.job.places._added", {"a_place": added}.get)
    piped = WHOLE.replace(
        "  program: train.py", f"  program: train.py\n  channels: {{x: {{path: {tmp_path}, input_mode: Pipe}}}}"
    )

    assert read(tmp_path, WHOLE + "on: slurm\n").place == "slurm"
    assert read(tmp_path, WHOLE + "on: a_place\n").place == "a_place"
    assert "on = ssh: must be one of here, slurm" in problems(tmp_path, WHOLE + "on: ssh\n")[0]
    for place, where in (("slurm", "on Slurm"), ("a_place", "at A")):
        assert f"Pipe mode does not work {where} (use File)" in problems(tmp_path, piped + f"on: {place}\n")[0]


def test_what_is_kept_of_it_is_read_again_as_it_was(tmp_path: Path) -> None:
    tuning = read(tmp_path, WHOLE)
    data = json.loads(json.dumps(described(tuning, "f", 1.0)))
    again = tuning_of(data)

    assert described(again, "f", 1.0) == described(tuning, "f", 1.0)
    assert again.space == tuning.space and again.limits == tuning.limits


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("limits.max_parallel", 0), ("limits.max_parallel", "2"), ("limits.target", "x"), ("strategy.kind", "best"),
        ("early.factor", 1), ("space", []), ("space", {}), ("objective", None), ("format", 2), ("job", {}), ("more", 1),
        ("space.0.low", 0.5), ("space.0.kind", "odd"), ("space.2.step", "-1"), ("space.2.step", "x"), ("warm.parents", [1]),
        ("space.3.categories", []), ("notes", "x"),
    ],
)  # fmt: skip
def test_what_somebody_else_wrote_is_refused(tmp_path: Path, path: str, value: Any) -> None:
    data = json.loads(json.dumps(described(read(tmp_path, WHOLE), "f", 1.0)))
    *outer, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    held = data
    for part in outer:
        held = held[part]
    held[last] = value

    with pytest.raises(ValueError):
        tuning_of(data)


def test_a_job_by_its_file_and_the_name_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("program: train.py\nhyperparameters: {a: 1.10}\n")
    tuning = read(tmp_path, "job: job.yaml\nsearch: {x: [1, 2]}\nobjective: minimize loss\nmax_jobs: 2\n", "my tune.yaml")

    assert tuning.name == "my-tune" and str(tuning.job.hyperparameters["a"]) == "1.10"
    assert tuning.objective.goal == MINIMIZE


LEAST = "job: {program: train.py}\nobjective: minimize loss\nmax_jobs: 3\n"
SEARCH = LEAST + "search:\n  x: "


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{low: 1e-3}", "has no high"),
        ("{low: 2.5, high: 1}", "must not be more than high, 1"),
        ("{low: 0.0, high: 1, scale: log}", "needs numbers above 0; low is 0"),
        ("{low: 0.5, high: 1, scale: reverse_log}", "needs continuous numbers from 0 to below 1"),
        ("{low: 1, high: 9, scale: lgo}", "did you mean 'log'?"),
        ("{low: 1, high: 9, sclae: log}", "did you mean 'scale'?"),
        ("{low: 0, high: 1}", "could be meant either way: write `type: continuous` or `type: integer`"),
        ("{low: 1, high: 9.5, type: integer}", "must be a whole number"),
        ("{low: a, high: 9}", "must be a number"),
        ("{low: 1.5, high: .inf}", "must be a number"),
        ("{low: 1, high: 9, step: 0.0}", "must be a number above 0"),
        ("{low: 1, high: 9, step: 2, scale: log}", "is for the scale linear"),
        ("[]", "has no values"),
        ("[a, b, a]", "contains 'a' twice"),
        ('[1, "1"]', "contains '1' twice"),
        ("{values: [a], low: 1}", "cannot be used with the type categorical"),
        ("7", "must be a list of values, or a range"),
        ("{low: 1, high: 2, when: {y: 1}}", "is not another hyperparameter of the search"),
        ("{low: 1, high: 2, when: {x: 1}}", "is not another hyperparameter of the search"),
        ("{low: 1, high: 2, when: {z: adem}}\n  z: [adam, sgd]", "is not a value of z (did you mean 'adam'?)"),
        ("{low: 1, high: 2, when: {z: 0.5}}\n  z: {low: 0.0, high: 1.0}", "is continuous"),
        ("{low: 1, high: 2, when: {z: 1}}\n  z: {low: 1, high: 2, when: {x: 1}}", "depend on each other in a circle: x, z"),
    ],
)
def test_ranges_that_are_wrong(tmp_path: Path, line: str, said: str) -> None:
    (found,) = problems(tmp_path, f"{SEARCH}{line}\n")

    assert said in found and found[0] in "56", "with its line"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("objective: loss\n", "does not say what is good"),
        ("objective: minimise loss\n", "did you mean 'minimize'?"),
        ("objective: minimize\n", "names no metric"),
        ("objective: [minimize loss, maximize acc, maximize loss]\n", "names a metric twice"),
        ("objective: [minimize loss, acc]\n", "does not say what is good"),
        ("objective: []\n", "must be one objective, or a list of at most 4"),
        (
            "objective: [minimize loss, maximize acc]\nearly_stopping: median\n",
            "early_stopping is for one objective; there are 2",
        ),
        ("objective: [minimize loss, maximize acc]\ncompletion: {target: 1}\n", "completion.target is for one objective"),
        ("objective: [minimize loss, maximize acc]\nstrategy: hyperband\n", "hyperband compares one objective; there are 2"),
        ("objectve: minimize loss\n", "did you mean 'objective'?"),
        ("channels: {train: data}\n", "it is a field of the job: put it below `job:`"),
        ("strategy: gird\n", "did you mean 'grid'?"),
        ("strategy: {kind: grid, sampler: gp}\n", "is for the strategy bayesian"),
        ("strategy: population\n", "population needs size, generations and length"),
        ("strategy: {kind: random, size: 8}\n", "is for the strategy population"),
        ("strategy: {kind: population, size: 4, generations: 2, length: x}\n", "sets x itself: take it out of the search"),
        (
            "strategy: {kind: population, size: 4, generations: 2, length: n}\nmax_jobs: 3\n",
            "size and generations say how many",
        ),
        ("strategy: hyperband\n", "early_stopping.max_resource: is missing"),
        ("strategy: hyperband\nearly_stopping: {kind: median, max_resource: 9}\n", "which stops trials itself"),
        ("early_stopping: {kind: median, min_resource: 2}\n", "is for early_stopping: {kind: asha}"),
        ("early_stopping: {kind: asha, min_resource: 4, max_resource: 4}\n", "must be more than min_resource, 4"),
        ("max_jobs: 0\n", "must be a whole number from 1"),
        ("max_parallel_jobs: two\n", "must be a whole number from 1"),
        ("job: {program: train.py, output: there}\n", "each trial has its own folder"),
        ("job: {program: trian.py}\n", "did you mean 'train.py'?"),
        ("job: 7\n", "must be a job file"),
        ("name: a_b\n", "did you mean 'a-b'?"),
        ("search: {}\n", "is empty"),
        ("warm_start: nowhere\n", "there are no tuning jobs"),
        ("warm_start: {parents: [a, b, c, d, e, f]}\n", "a list of at most 5 words"),
    ],
)
def test_fields_that_are_wrong(tmp_path: Path, text: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = text.partition(":")[0]
    whole = "".join(
        line + "\n"
        for line in (LEAST + "search: {x: [1, 2]}").splitlines()
        if not line.startswith(f"{name}:") and not (name == "objectve" and line.startswith("objective"))
    )
    found = problems(tmp_path, whole + text)

    assert any(said in line for line in found), found
    assert len(found) <= 2


def test_everything_that_is_wrong_comes_at_once(tmp_path: Path) -> None:
    found = problems(tmp_path, "job: {program: nothing.py, retrys: 1}\nsearch: {x: {low: 1}}\nstrategy: best\nnope: 1\n")

    assert len(found) == 7, found  # program, retries, high, strategy, nope, no objective, no max_jobs


@pytest.mark.parametrize(
    ("search", "said"),
    [("{x: {low: 1e-3, high: 1e-1}}", "x has no countable values"), ("{x: {low: 1, high: 20000}}", "no countable values")],
)
def test_a_grid_has_to_be_countable(tmp_path: Path, search: str, said: str) -> None:
    text = f"job: {{program: train.py}}\nobjective: minimize loss\nstrategy: grid\nsearch: {search}\n"

    assert said in problems(tmp_path, text)[0]


def test_a_grid_knows_how_many_trials_there_are(tmp_path: Path) -> None:
    text = "job: {program: train.py}\nobjective: minimize loss\nstrategy: grid\nsearch: {x: [1, 2], y: {low: 1, high: 3}}\n"

    assert read(tmp_path, text).limits.max_jobs == 6
    few = read(tmp_path, text + "max_jobs: 4\n")
    assert few.limits.max_jobs == 4 and few.notes == ("max_jobs: the first 4 of 6 combinations are tried",)


def test_hyperband_has_its_brackets(tmp_path: Path) -> None:
    early = read(
        tmp_path, SEARCH + "[1, 2]\nstrategy: hyperband\nearly_stopping: {max_resource: 27, resource: epoch}\n"
    ).early

    assert (early.kind, early.least, early.most, early.factor, early.brackets, early.resource) == (
        ASHA,
        1,
        27,
        3,
        4,
        "epoch",
    )


# --- the platform's request ------------------------------------------------------------------------------------------

REQUEST: dict[str, Any] = {
    "HyperParameterTuningJobName": "digits-2026",
    "HyperParameterTuningJobConfig": {
        "Strategy": "Bayesian",
        "HyperParameterTuningJobObjective": {"Type": "Maximize", "MetricName": "val:acc"},
        "ResourceLimits": {"MaxNumberOfTrainingJobs": 20, "MaxParallelTrainingJobs": 2, "MaxRuntimeInSeconds": 3600},
        "ParameterRanges": {
            "IntegerParameterRanges": [{"Name": "layers", "MinValue": "1", "MaxValue": "8", "ScalingType": "Linear"}],
            "ContinuousParameterRanges": [
                {"Name": "lr", "MinValue": "1e-5", "MaxValue": "0.1", "ScalingType": "Logarithmic"},
                {"Name": "momentum", "MinValue": "0.5", "MaxValue": "0.99", "ScalingType": "ReverseLogarithmic"},
                {"Name": "wd", "MinValue": "0", "MaxValue": "1"},
            ],
            "CategoricalParameterRanges": [{"Name": "batch", "Values": ["32", "64"]}],
        },
        "TrainingJobEarlyStoppingType": "Auto",
        "TuningJobCompletionCriteria": {
            "TargetObjectiveMetricValue": 0.99,
            "BestObjectiveNotImproving": {"MaxNumberOfTrainingJobsNotImproving": 5},
        },
        "RandomSeed": 3,
    },
    "TrainingJobDefinition": {
        "StaticHyperParameters": {"epochs": "10", "sagemaker_program": '"train.py"'},
        "AlgorithmSpecification": {
            "TrainingImage": "digits:1",
            "TrainingInputMode": "File",
            "MetricDefinitions": [{"Name": "val:acc", "Regex": "acc=([0-9.]+)"}],
        },
        "RoleArn": "arn:aws:iam::000000000000:role/any",
        "OutputDataConfig": {"S3OutputPath": "s3://bucket/out"},
        "ResourceConfig": {"InstanceType": "ml.m5.xlarge", "InstanceCount": 1, "VolumeSizeInGB": 10},
        "StoppingCondition": {"MaxRuntimeInSeconds": 600},
    },
    "Tags": [{"Key": "team", "Value": "ada"}],
}


def request(tmp_path: Path, **config: Any) -> str:
    return json.dumps({**REQUEST, "HyperParameterTuningJobConfig": {**REQUEST["HyperParameterTuningJobConfig"], **config}})


def test_the_request_is_one_of_the_platforms() -> None:
    session = pytest.importorskip("botocore.session")
    from botocore.validate import ParamValidator

    model = session.get_session().get_service_model("sagemaker")
    shape = model.operation_model("CreateHyperParameterTuningJob").input_shape

    assert ParamValidator().validate(REQUEST, shape).generate_report() == ""


def test_a_request_is_a_tuning_file(tmp_path: Path) -> None:
    tuning = read(tmp_path, json.dumps(REQUEST), "request.json")

    assert tuning.space == (
        Parameter("layers", INTEGER, 1, 8, LINEAR, "1"),
        Parameter("lr", CONTINUOUS, 1e-5, 0.1, LOG),
        Parameter("momentum", CONTINUOUS, 0.5, 0.99, REVERSE_LOG),
        Parameter("wd", CONTINUOUS, 0, 1, LINEAR),
        Parameter("batch", CATEGORICAL, categories=(("32", True), ("64", True))),
    )
    assert tuning.raw and tuning.name == "digits-2026" and tuning.job.image == "digits:1"
    assert (tuning.objective.metric, tuning.objective.goal) == ("val:acc", MAXIMIZE)
    assert (tuning.strategy.kind, tuning.strategy.seed, tuning.early.kind) == ("bayesian", 3, MEDIAN)
    limits = tuning.limits
    assert (limits.max_jobs, limits.max_parallel, limits.max_runtime, limits.target, limits.not_improving) == (
        *(20, 2, 3600),
        *(0.99, 5),
    )
    assert tuning.job.hyperparameters["epochs"] == "10" and tuning.job.max_runtime_seconds == 600
    assert tuning.job.tags == {"team": "ada"} and tuning.warm.kind == IDENTICAL


def test_a_request_for_hyperband_and_for_a_grid(tmp_path: Path) -> None:
    band = {"HyperbandStrategyConfig": {"MinResource": 1, "MaxResource": 9}}
    text = request(tmp_path, Strategy="Hyperband", StrategyConfig=band, TrainingJobEarlyStoppingType="Off")
    early = read(tmp_path, text, "request.json").early
    ranges = {"CategoricalParameterRanges": [{"Name": "batch", "Values": ["32", "64"]}]}
    few = {"MaxParallelTrainingJobs": 1}
    grid = read(tmp_path, request(tmp_path, Strategy="Grid", ParameterRanges=ranges, ResourceLimits=few), "request.json")

    assert (early.kind, early.least, early.most, early.resource, early.brackets) == (ASHA, 1, 9, "epoch", 3)
    assert grid.strategy.kind == GRID and grid.limits.max_jobs == 2 and HYPERBAND


def test_what_is_wrong_in_a_request_comes_at_once(tmp_path: Path) -> None:
    text = request(
        tmp_path,
        Stratgy="Random",
        Strategy="Best",
        ParameterRanges={
            "ContinuousParameterRanges": [
                {"Name": "lr", "MinValue": "low", "MaxValue": "1"},
                {"Name": "lr", "MinVale": "1"},
            ],
            "CategoricalParameterRanges": [{"Name": "epochs", "Values": ["1"]}],
            "AutoParameters": [{"Name": "a", "ValueHint": "1"}],
        },
    )
    found = "\n".join(problems(tmp_path, text, "request.json"))

    for said in (
        "did you mean 'Strategy'?",
        "must be one of Bayesian, Random, Grid, Hyperband",
        "must be a number",
        "did you mean 'MinValue'?",
        "lr has two ranges",
        "epochs is searched and static at once",
        "lets the service choose the ranges",
    ):
        assert said in found, found


def test_who_is_told_of_the_tuning_job_is_kept_with_it(tmp_path: Path) -> None:
    tuning = read(tmp_path, WHOLE + "notify: {me: https://example.com/hook, ops: {kind: slack, to_env: HOOK, on: [end]}}\n")

    assert [(way.name, way.kind, way.on) for way in tuning.notify] == [("me", "webhook", ()), ("ops", "slack", ("end",))]
    assert tuning.job.notify == () and tuning_of(json.loads(json.dumps(described(tuning, "", 0.0)))).notify == tuning.notify
    assert any("needs one of" in one for one in problems(tmp_path, WHOLE + "notify: {me: {kind: slack}}\n"))
