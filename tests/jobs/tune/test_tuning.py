"""Tuning jobs from start to end: what they find, keep and say."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from support.notice_jobs import service
from support.runner_project import wait_until

from .conftest import GRID, TWO, Tunes

ONE = """\
job: {program: train.py, environment: {NOTES: "%s"}}
search: {kind: KINDS}
objective: minimize loss
strategy: grid
"""


def test_a_grid_finds_the_best_and_leaves_what_makes_it_again(tunes: Tunes) -> None:
    done = tunes.project.trainshed("tune", tunes.file(GRID))

    assert done.status == 0, done.output
    trials = tunes.trials()
    assert [trial["values"] for trial in trials] == [{"rate": r, "kind": k} for r in ("0.1", "0.25", "0.6") for k in "ab"]
    assert {trial["state"] for trial in trials} == {"Completed"}
    assert min(trials, key=lambda trial: trial["value"])["number"] == 3
    assert os.readlink(tunes.folder() / "best") == "trials/0003"
    assert (tunes.folder() / "best/model/rate").read_text() == "0.25"
    assert "best loss 0.335833 (trial 3)" in done.stdout and "trial 3 completed: loss 0.335833" in done.stderr

    again = tunes.project.trainshed("run", "tunes/tune/best.yaml")
    assert again.status == 0 and (tunes.project.run / "model/rate").read_text() == "0.25"


def test_several_objectives_give_a_front_whose_runs_are_linked(tunes: Tunes) -> None:
    script = "import os\nx = float(os.environ['SM_HP_X'])\nprint(f'metric loss={x} speed={min(x, 3)}')\n"
    tunes.project.write({"two.py": script})
    text = "job: {program: two.py}\nsearch: {x: [2, 1, 3, 4]}\nobjective: [minimize loss, maximize speed]\nstrategy: grid\n"
    done = tunes.project.trainshed("tune", tunes.file(text))

    assert done.status == 0, done.output
    front = sorted(os.listdir(tunes.folder() / "front"))
    assert front == ["0001", "0002", "0003"] and os.readlink(tunes.folder() / "best") == "trials/0002"
    assert (tunes.folder() / "front/0003/status.json").exists()
    assert "best loss 1 (trial 2) · 3 on the front" in done.stdout and "trial 3 completed: loss 3, speed 3 in" in done.stderr
    told = json.loads(tunes.project.trainshed("tune", "status", "--json").stdout)["Trainshed"]
    assert told["Front"] == [1, 2, 3] and [one["MetricName"] for one in told["Objectives"]] == ["loss", "speed"]
    page = Path(tunes.project.trainshed("tune", "report").stdout.strip())
    assert re.search(r'"across": ?"loss", ?"up": ?"speed"', (tunes.project.folder / page).read_text())


def test_the_same_command_again_runs_nothing_and_says_the_same(tunes: Tunes) -> None:
    file = tunes.file(TWO)
    first = tunes.project.trainshed("tune", file)
    second = tunes.project.trainshed("tune", file)

    assert second.status == 0 and second.stdout == first.stdout
    assert len(tunes.noted("started")) == 2


FLAKY = """\
import os, sys
x = int(os.environ["SM_HP_X"])
with open(os.environ["NOTES"] + "/started", "a") as file:
    file.write(f"{x}\\n")
if x != 2 and not os.path.exists(os.environ["NOTES"] + "/mended"):
    sys.exit("the data is not there")
print(f"metric loss={x}")
"""


def test_trials_that_have_failed_are_run_again_on_demand_and_others_are_not(tunes: Tunes) -> None:
    tunes.project.write({"flaky.py": FLAKY})
    values = "job: {program: flaky.py, environment: {NOTES: '%s'}}\nsearch: {x: [3, 2, 1, 4]}\n"
    file = tunes.file(f"{values}objective: minimize loss\nstrategy: grid\nmax_parallel_jobs: 2\n")
    done = tunes.project.trainshed("tune", file)
    assert [trial["state"] for trial in tunes.trials()] == ["Failed", "Completed", "Failed", "Failed"], done.output
    again = tunes.project.trainshed("tune", "--resume")
    assert again.status == 0 and len(tunes.noted("started")) == 4, "without the flag they stay as they are"

    (tunes.notes / "mended").touch()
    done = tunes.project.trainshed("tune", "--resume", "--retry", "failed")

    assert done.status == 0, done.output
    assert "3 trials that have failed are run again" in done.stderr and "had failed: " in done.stderr
    assert [(trial["state"], trial["value"]) for trial in tunes.trials()] == [("Completed", x) for x in (3, 2, 1, 4)]
    assert sorted(tunes.noted("started")) == sorted(["1", "2", "3", "4", "1", "3", "4"])
    assert os.readlink(tunes.folder() / "best") == "trials/0003"
    assert (tunes.folder() / "trials/0001.aside-1/status.json").exists()


def test_all_trials_that_have_failed_are_run_again_where_the_search_was_given_up(tunes: Tunes) -> None:
    tunes.project.write({"flaky.py": FLAKY})
    values = "job: {program: flaky.py, environment: {NOTES: '%s'}}\nsearch: {x: [3, 1, 4]}\n"
    file = tunes.file(f"{values}objective: minimize loss\nstrategy: grid\nmax_failed_jobs: 2\n")
    assert tunes.project.trainshed("tune", file).status == 1 and len(tunes.trials()) == 2
    (tunes.notes / "mended").touch()

    done = tunes.project.trainshed("tune", file, "--retry", "failed")

    assert done.status == 0, done.output
    assert [trial["value"] for trial in tunes.trials()] == [3, 1, 4]


def test_another_tuning_job_in_the_folder_is_refused(tunes: Tunes) -> None:
    tunes.project.trainshed("tune", tunes.file(TWO.replace("0.1, 0.25", "0.1")))
    other = tunes.project.trainshed("tune", tunes.file(TWO.replace("minimize loss", "maximize loss")))

    assert other.status == 1 and "holds another tuning job: search, objective differ" in other.stderr


def test_how_it_stands_in_the_platforms_shape(tunes: Tunes) -> None:
    session = pytest.importorskip("botocore.session")
    model = session.get_session().get_service_model("sagemaker")
    shape = model.operation_model("DescribeHyperParameterTuningJob").output_shape
    tunes.project.trainshed("tune", tunes.file(TWO))
    done = tunes.project.trainshed("tune", "status", "--json")
    told = json.loads(done.stdout)
    ours = told.pop("Trainshed")

    from botocore.validate import ParamValidator

    assert ParamValidator().validate(told, shape).generate_report() == ""
    assert told["HyperParameterTuningJobStatus"] == "Completed"
    assert told["TrainingJobStatusCounters"]["Completed"] == told["ObjectiveStatusCounters"]["Succeeded"] == 2
    best = told["BestTrainingJob"]
    assert best["TrainingJobName"] == "tune-0002" and best["TunedHyperParameters"] == {"rate": "0.25", "kind": "a"}
    assert len(ours["Trials"]) == 2


def test_trials_that_give_no_objective_do_not_end_the_rest(tunes: Tunes) -> None:
    done = tunes.project.trainshed("tune", tunes.file(ONE.replace("KINDS", "[nan, silent, fails, a]")))

    nan, silent, fails, good = tunes.trials()
    assert done.status == 0
    assert [trial["state"] for trial in (nan, silent, fails, good)] == ["Failed", "Failed", "Failed", "Completed"]
    assert nan["reason"] == "loss is NaN" and nan["value"] is None
    assert silent["reason"] == "no 'loss' was seen; it has measured other"
    assert "cannot do this" in fails["reason"]


def test_where_nothing_succeeds_it_is_given_up_with_the_reason(tunes: Tunes) -> None:
    text = ONE.replace("kind: KINDS", "kind: [fails], rate: {low: 1, high: 9}") + "max_failed_jobs: 2\n"
    done = tunes.project.trainshed("tune", tunes.file(text))

    assert done.status == 1 and len(tunes.trials()) == 2
    assert "2 trials have failed and none has succeeded; the last one: UserError" in done.stderr
    assert json.loads((tunes.folder() / "outcome.json").read_text())["status"] == "Failed"

    wrong = tunes.project.trainshed("tune", "--resume", "--hp", "epochs=1")
    assert wrong.status == 2 and "--resume takes the job as it was: --hyperparameter cannot be used" in wrong.stderr
    more = tunes.project.trainshed("tune", "--resume")
    assert more.status == 1 and len(tunes.trials()) == 2, "the limit holds until it is raised"


def test_trials_whose_data_cannot_be_fetched_have_failed_and_are_not_started_for_ever(tunes: Tunes) -> None:
    with service() as served:  # it has nothing: there is no second try, as there would be for one that does not answer
        channel = f"retries: 0, channels: {{train: '{served.endpoint}/data.csv'}}"
        text = ONE.replace("KINDS", "[a]").replace("program: train.py", f"program: train.py, {channel}")
        done = tunes.project.trainshed("tune", tunes.file(text))

    assert done.status == 1 and [trial["state"] for trial in tunes.trials()] == ["Failed"]
    assert f"{served.endpoint}/data.csv" in tunes.trials()[0]["reason"]


def test_an_objective_that_is_good_enough_ends_it_and_what_runs(tunes: Tunes) -> None:
    (tunes.notes / "hold-worse").touch()  # the second trial never ends of its own accord
    text = ONE.replace("KINDS", "[worse, a]") + "max_parallel_jobs: 2\ncompletion: {target: 0.5}\n"
    done = tunes.project.trainshed("tune", tunes.file(text))

    worse, good = tunes.trials()
    assert done.status == 0 and good["state"] == "Completed" and worse["state"] == "Stopped"
    assert worse["reason"] == "loss has reached 0.5" and "over: loss has reached 0.5" in done.stderr


@pytest.mark.parametrize("rule", [pytest.param("median", marks=pytest.mark.spine), "{kind: asha, min_resource: 2}"])
def test_a_trial_that_is_not_worth_its_end_is_stopped(tunes: Tunes, rule: str) -> None:
    (tunes.notes / "hold-worse").touch()
    done = tunes.project.trainshed("tune", tunes.file(ONE.replace("KINDS", "[a, worse]") + f"early_stopping: {rule}\n"))

    good, worse = tunes.trials()
    assert done.status == 0 and good["state"] == "Completed"
    assert worse["state"] == "Stopped" and worse["value"] == 10.0
    assert worse["reason"].startswith(
        "median rule: 10 at " if rule == "median" else "asha: 10 at 2 is not among the best 1 of 2"
    )
    assert json.loads((tunes.folder() / "trials/0002/status.json").read_text())["TrainingJobStatus"] == "Stopped"


@pytest.mark.spine
def test_a_model_of_the_trials_is_asked_for_the_next_ones(tunes: Tunes) -> None:
    pytest.importorskip("optuna")
    text = GRID.replace("[0.1, 0.25, 0.6]", "{low: 0.0, high: 1.0}").replace("strategy: grid\n", "")
    done = tunes.project.trainshed("tune", tunes.file(text + "max_jobs: 12\n"))

    assert done.status == 0, done.output
    assert "bayesian search" in done.stderr and len({trial["values"]["rate"] for trial in tunes.trials()}) == 12
    assert {trial["state"] for trial in tunes.trials()} == {"Completed"}


def test_a_request_of_the_platform_runs(tunes: Tunes) -> None:
    from unit.studio.tune.test_tuning_file import REQUEST

    config: dict[str, Any] = {
        **REQUEST["HyperParameterTuningJobConfig"],
        "Strategy": "Grid",
        "HyperParameterTuningJobObjective": {"Type": "Minimize", "MetricName": "val"},
        "ParameterRanges": {"CategoricalParameterRanges": [{"Name": "rate", "Values": ["0.10", "0.3"]}]},
    }
    definition = {
        **REQUEST["TrainingJobDefinition"],
        "StaticHyperParameters": {"sagemaker_program": "train.py", "epochs": "2"},
        "AlgorithmSpecification": {
            **REQUEST["TrainingJobDefinition"]["AlgorithmSpecification"],
            "MetricDefinitions": [{"Name": "val", "Regex": "loss=([0-9.]+)"}],
        },
        "OutputDataConfig": {"S3OutputPath": ""},
        "Environment": {"NOTES": str(tunes.notes)},
    }
    request = {**REQUEST, "HyperParameterTuningJobConfig": config, "TrainingJobDefinition": definition}
    file = tunes.file(json.dumps(request), "request.json")
    done = tunes.project.trainshed("tune", file, "--no-image", "--source-dir", ".")

    assert done.status == 0, done.output
    (first, second) = tunes.trials("digits-2026")
    assert first["values"] == {"rate": "0.10"} and second["value"] == 0.5
    config_file = tunes.folder("digits-2026") / "trials/0001/algo-1/input/config/hyperparameters.json"
    assert json.loads(config_file.read_text())["rate"] == "0.10", "letter by letter"
    assert json.loads(config_file.read_text())["_tuning_objective_metric"] == "val"


@pytest.mark.safety
@pytest.mark.spine
def test_secrets_by_reference_reach_trials_and_no_file(tunes: Tunes) -> None:
    secret = "hunter2-hunter2"
    tunes.project.write({"src/train.py": 'import os\nprint("metric loss=" + str(len(os.environ["PASS"])))\n'})
    variables = "{PASS: {env: MY_PASS}, DB_PASSWORD: plain-hunter2}"
    text = f"job: {{program: train.py, source_dir: src, environment: {variables}}}\nsearch: {{x: [1, 2]}}\n"
    file = tunes.file(text + "objective: minimize loss\nstrategy: grid\n")
    done = tunes.project.trainshed("tune", file, MY_PASS=secret)

    assert done.status == 0 and tunes.trials()[0]["value"] == len(secret)
    files = [path for path in tunes.folder().rglob("*") if path.is_file()]
    assert [path for path in files if b"hunter2" in path.read_bytes()] == []
    refused = tunes.project.trainshed("tune", "--resume", MY_PASS=secret)
    assert refused.status == 1 and "was not kept: environment.DB_PASSWORD" in refused.stderr
    assert f"trainshed tune {tunes.project.folder}/tune.yaml" in refused.stderr
    assert tunes.project.trainshed("tune", file, "--resume", MY_PASS=secret).status == 0, "the file has it"
    assert tunes.project.trainshed("tune", file).status == 1, "it leads nowhere now, and that is said"


def test_all_trials_run_the_code_as_it_was_at_the_start(tunes: Tunes) -> None:
    (tunes.notes / "hold-a").touch()
    tuner = tunes.project.start("tune", tunes.file(ONE.replace("KINDS", "[a, b]")))
    wait_until(lambda: tunes.noted("started"), "the first trial")
    tunes.project.write({"train.py": "raise SystemExit('edited')\n"})
    (tunes.notes / "hold-a").unlink()

    assert tuner.wait() == 0 and [trial["state"] for trial in tunes.trials()] == ["Completed"] * 2


def test_trials_beside_each_other_share_the_cores(tunes: Tunes, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainshed.machine.cgroup import cpus

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    tunes.project.write({"train.py": 'import os\nprint("metric loss=" + os.environ["OMP_NUM_THREADS"])\n'})
    text = "job: {program: train.py}\nsearch: {x: [1, 2]}\nobjective: minimize loss\nstrategy: grid\nmax_parallel_jobs: 2\n"
    done = tunes.project.trainshed("tune", tunes.file(text))

    assert done.status == 0, done.output
    assert [trial["value"] for trial in tunes.trials()] == [max(1, cpus() // 2)] * 2


@pytest.mark.spine
def test_a_warm_start_tries_the_best_of_another_tuning_job_first(tunes: Tunes) -> None:
    tunes.project.trainshed("tune", tunes.file(TWO, "parent.yaml"))
    text = GRID.replace("[0.1, 0.25, 0.6]", "{low: 0.0, high: 0.5}").replace("grid", "random") + "max_jobs: 2\n"
    warm = "warm_start: {parents: [parent], type: transfer}\n"
    done = tunes.project.trainshed("tune", tunes.file(text + warm))

    assert done.status == 0 and tunes.trials()[0]["values"] == {"rate": "0.25", "kind": "a"}

    other = text.replace("minimize loss", "minimize other") + "warm_start: parent\n"
    refused = tunes.project.trainshed("tune", tunes.file(other, "other.yaml"))
    assert refused.status == 1 and "is not of identical data and algorithm: objective differ" in refused.stderr


def test_a_report_is_a_page_of_its_own(tunes: Tunes) -> None:
    tunes.project.trainshed("tune", tunes.file(TWO))
    done = tunes.project.trainshed("tune", "report")
    page = (tunes.folder() / "report.html").read_text()

    assert done.status == 0 and done.stdout.strip() == str(tunes.folder() / "report.html")
    assert "Parallel coordinates" in page and "0.335833" not in page.split("</style>")[0] and "tune: tuning report" in page
    tunes.project.write({"mine.html": "not yours"})
    refused = tunes.project.trainshed("tune", "report", "--output", "mine.html")
    assert refused.status == 1 and "is not a page of ours" in refused.stderr


def test_what_is_asked_for_is_shown_before_anything_is_started(tunes: Tunes) -> None:
    done = tunes.project.trainshed("tune", tunes.file(GRID), "--dry-run")

    assert done.status == 0 and "the first 6 trials of 6 combinations" in done.stdout
    assert "rate=0.25  kind=b" in done.stdout and not Path(tunes.folder()).exists()
