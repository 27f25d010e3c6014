"""A trial's job: its values as the script gets them, and its part of the machine."""

from __future__ import annotations

import pytest

from trainshed.places import gpus
from trainshed.runner.job.job import DistributionSpec, Job, Resources
from trainshed.runner.job.nodes import RawText
from trainshed.runner.state.stored import Stored
from trainshed.studio.tune import trial_runs
from trainshed.studio.tune.space import CATEGORICAL, CONTINUOUS, INTEGER, Parameter
from trainshed.studio.tune.trial import Trial
from trainshed.studio.tune.trial_runs import ended, environ_of, job_of_trial, job_with
from trainshed.studio.tune.tuning import Limits, Objective, TuningJob
from trainshed.studio.tune.tuning_folder import TuningFolder

SPACE = (
    Parameter("lr", CONTINUOUS, 0.0, 1.0),
    Parameter("n", INTEGER, 1, 9, step="1"),
    Parameter("kind", CATEGORICAL, categories=(("8", True), ("1.50", False), ("[1, 2]", False))),
)
FOLDER = TuningFolder("/tunes/t")


def tuning(job: Job, parallel: int = 4, raw: bool = False) -> TuningJob:
    return TuningJob("t", job, SPACE, Objective("loss"), limits=Limits(max_parallel=parallel), raw=raw)


def trial(slot: int = 0, number: int = 7) -> Trial:
    return Trial(number, {"lr": "0.5", "n": "3", "kind": "8"}, slot=slot)


def test_values_reach_the_script_as_they_were_written() -> None:
    job = tuning(Job("t", hyperparameters={"lr": 0.1, "epochs": 3}))

    made = job_with(job, {"lr": "0.5", "n": "3", "kind": "8"}).hyperparameters
    assert made == {"epochs": 3, "lr": 0.5, "n": 3, "kind": "8"} and list(made) == ["epochs", "lr", "n", "kind"]
    assert str(job_with(job, {"kind": "1.50"}).hyperparameters["kind"]) == "1.50"
    assert job_with(job, {"kind": "[1, 2]"}).hyperparameters["kind"] == [1, 2]
    assert "lr" not in job_with(job, {"n": "3"}).hyperparameters, "what is not active is not there, with no other value"


def test_a_requests_values_are_texts() -> None:
    made = job_with(tuning(Job("t"), raw=True), trial().values).hyperparameters

    assert made == {"lr": "0.5", "n": "3", "kind": "8"} and all(isinstance(text, RawText) for text in made.values())


def test_each_trial_has_its_own_checkpoints_and_folder() -> None:
    job = Job("t", checkpoints="/ck", checkpoint_copy_to="s3://b/ck/")
    made = job_of_trial(tuning(job), trial(), FOLDER, {})

    assert (made.output, made.full_name) == ("/tunes/t/trials/0007", "t-0007")
    assert (made.checkpoints, made.checkpoint_copy_to) == ("/ck/t-0007", "s3://b/ck/t-0007")
    assert made.hyperparameters["_tuning_objective_metric"] == "loss" and made.tags == {"tuning": "t"}


def test_a_failed_trial_tells_the_hint_of_its_run() -> None:
    reason = "UserError: a.py ended with 2: unrecognized arguments: -x 3\n  at a.py:3\nhint: write add_argument('-x', '--x')"
    run = Stored("/tunes/t/trials/0007", {"TrainingJobStatus": "Failed", "FailureReason": reason}, {})

    assert ended(trial(), run, (), "").reason == f"{reason.splitlines()[0]}; hint: write add_argument('-x', '--x')"
    run = Stored("/tunes/t/trials/0007", {"TrainingJobStatus": "Failed", "FailureReason": "lost"}, {})
    assert ended(trial(), run, (), "").reason == "lost"


def test_cores_are_shared_and_what_the_job_says_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_runs, "cpus", lambda: 16)

    def made(job: Job, parallel: int = 4, **environ: str) -> Job:
        return job_of_trial(tuning(job, parallel), trial(), FOLDER, environ)

    assert made(Job("t")).environment == {"OMP_NUM_THREADS": "4"}
    assert made(Job("t"), parallel=1).environment == {}
    assert made(Job("t"), OMP_NUM_THREADS="9").environment == {}
    assert made(Job("t", environment={"OMP_NUM_THREADS": "9"})).environment == {"OMP_NUM_THREADS": "9"}
    ranks = made(Job("t", distribution=DistributionSpec("torchrun")))
    assert ranks.distribution.processes_per_host == 4 and ranks.environment == {"OMP_NUM_THREADS": "1"}
    assert made(Job("t", image="i", instances=2)).resources.cpus == 2
    assert made(Job("t", image="i", resources=Resources(cpus=3))).resources.cpus == 3


@pytest.mark.parametrize(
    ("job", "parts"),
    [
        (Job("t"), ["0,1", "2,3", "4,5", "6,7"]),
        (Job("t", resources=Resources(gpus=1)), ["0", "1", "2", "3"]),
        (Job("t", instances=2, resources=Resources(gpus=1)), ["0,1", "2,3", "4,5", "6,7"]),
        (Job("t", resources=Resources(gpus=3)), ["0,1,2", "3,4,5", "6,7,0", "1,2,3"]),
    ],
)
def test_gpus_are_shared(monkeypatch: pytest.MonkeyPatch, job: Job, parts: list[str]) -> None:
    monkeypatch.setattr(gpus, "present", lambda environ: tuple("01234567"))

    assert [environ_of(tuning(job), trial(slot), {})["CUDA_VISIBLE_DEVICES"] for slot in range(4)] == parts


def test_without_gpus_or_beside_nobody_the_variable_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "present", lambda environ: ())
    assert environ_of(tuning(Job("t")), trial(), {"A": "b"}) == {"A": "b"}
    monkeypatch.setattr(gpus, "present", lambda environ: ("0",))
    assert environ_of(tuning(Job("t"), parallel=1), trial(), {}) == {}
