"""Tuning jobs, pipelines of steps, comparisons and questions from Python, as in a notebook."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import trainshed
from support import runner_scripts as scripts
from support.extras import needs
from support.runner_project import TOOLKIT, Project, wait_until
from trainshed.base.errors import JobError, TrainshedError

needs("trainshed.studio")


@pytest.fixture
def folder(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PYTHONPATH", TOOLKIT)
    monkeypatch.setitem(sys.modules, "pandas", None)  # rows, then
    project.write({"count.py": scripts.COUNT, "bad.py": "raise KeyError('no')"})
    monkeypatch.chdir(project.folder)
    return project.folder


def train(lr: float, steps: int = 2) -> None:
    for step in range(steps):
        print(f"metric loss={lr / (step + 1)} step={step}", flush=True)


def judge(loss: float) -> None:
    print(f"metric accuracy={1 - loss}", flush=True)


def test_a_run_has_its_history_its_curves_and_its_report(folder: Path) -> None:
    done = trainshed.run("count.py", hyperparameters={"until": 3}, echo=False)
    assert done.history() == [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 0.5}, {"step": 3, "loss": 0.333333}]
    assert list(done.live()) == [done.metrics]
    shown = done._repr_html_()
    assert (
        shown is not None
        and shown.startswith('<iframe sandbox="allow-scripts" srcdoc=')
        and done.name in shown
        and "unfold();" in shown
    )
    assert trainshed.report(done) == trainshed.report(done.name) == f"{done.folder}/report.html"
    other = trainshed.run("count.py", hyperparameters={"until": 5}, echo=False)
    assert [one.name for one in trainshed.runs(where="loss < 0.25")] == [other.name]
    with pytest.raises(TrainshedError, match="los"):
        trainshed.runs(where="los < 1")
    compared = trainshed.compare(done, other.name)
    assert [row["loss, last"] for row in compared.rows()] == ["0.333333", "0.2"]
    assert "<iframe" in compared._repr_html_() and "loss, last" in repr(compared)


def test_history_is_a_frame_where_pandas_is_installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = trainshed.run("count.py", hyperparameters={"until": 2}, echo=False)
    monkeypatch.delitem(sys.modules, "pandas")
    pandas = pytest.importorskip("pandas")
    frame = done.history()
    assert isinstance(frame, pandas.DataFrame) and list(frame.columns) == ["step", "loss"]


def test_live_metrics_come_while_a_run_goes_on(folder: Path) -> None:
    training = trainshed.run("count.py", wait=False)
    seen: list[dict[str, float]] = []
    for values in training.live():
        seen.append(values)
        if len([one for one in seen if one]) == 2:
            threading.Thread(target=training.stop).start()
    assert not training.running and len(seen) > 2


def test_a_function_is_tuned(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("cloudpickle")
    asked: dict[str, Any] = {"job": train, "search": {"lr": [0.5, 0.1]}, "objective": "minimize loss", "strategy": "grid"}
    tuning = trainshed.tune(**asked, max_jobs=2)
    assert tuning.best is not None and tuning.best.metrics == {"loss": 0.05}
    rows = [{name: row[name] for name in ("trial", "state", "lr", "loss")} for row in tuning.trials()]
    assert rows == [
        {"trial": 1, "state": "Completed", "lr": 0.5, "loss": 0.25},
        {"trial": 2, "state": "Completed", "lr": 0.1, "loss": 0.05},
    ]
    assert tuning.folder == f"{folder}/tunes/train" and tuning.status["HyperParameterTuningJobStatus"] == "Completed"
    assert "<iframe" in tuning._repr_html_() and "best loss 0.05" in repr(tuning)
    assert "trial 2 completed" in capsys.readouterr().out
    assert trainshed.tune(**asked, max_jobs=2, echo=False).trials() == tuning.trials()  # goes on: nothing is left to do
    with pytest.raises(TrainshedError, match="holds another tuning job: search differ"):
        trainshed.tune(**{**asked, "search": {"lr": [1.0]}}, max_jobs=2, echo=False)


def test_a_tuning_file_and_fields_on_top_of_it(folder: Path) -> None:
    Path("job.yaml").write_text("program: count.py\n")
    Path("tune.yaml").write_text("job: job.yaml\nsearch: {until: [2, 4]}\nobjective: minimize loss\nstrategy: grid\n")
    assert [row["until"] for row in trainshed.tune("tune.yaml", max_jobs=1, name="one", echo=False).trials()] == [2]
    with pytest.raises(JobError) as caught:
        trainshed.tune("tune.yaml", job="cuont.py", max_job=1)
    assert len(caught.value.problems) == 2 and not Path("tunes/tune").exists()


def test_a_tuning_job_that_fails_says_why_and_one_that_runs_is_stopped(folder: Path) -> None:
    asked: dict[str, Any] = {"objective": "minimize loss", "strategy": "grid", "echo": False}
    with pytest.raises(TrainshedError, match=r"bad: .*no trial has an objective.*KeyError"):
        trainshed.tune(job="bad.py", search={"a": [1]}, **asked)
    tuning = trainshed.tune(job="count.py", search={"until": [10**9]}, **asked, wait=False)
    wait_until(lambda: "step=3" in "".join(p.read_text() for p in folder.glob("tunes/count/trials/*/logs/*")), "it counts")
    assert tuning.running
    assert not tuning.stop().running and tuning.status["HyperParameterTuningJobStatus"] == "Stopped"


def test_steps_are_made_of_functions(folder: Path) -> None:
    pytest.importorskip("cloudpickle")
    made: dict[str, Any] = {
        "fit": {"run": {"program": train, "hyperparameters": {"lr": "${params.lr}"}}},
        "judge": {"run": {"program": judge, "hyperparameters": {"loss": "${steps.fit.metrics.loss}"}}},
        "good": {"condition": "${steps.judge.metrics.accuracy} > 0.9"},
        "more": {"run": "count.py", "when": "not good"},
    }
    pipeline = trainshed.steps(name="digits", params={"lr": 0.1}, steps=made, echo=False)
    assert [(row["name"], row["state"]) for row in pipeline.steps()] == [
        *((name, "Completed") for name in ("fit", "judge", "good")), ("more", "Skipped"),
    ]  # fmt: skip
    assert pipeline.run("judge").metrics == {"accuracy": 0.95}
    assert "<svg" in pipeline._repr_html_() and "more" in repr(pipeline)
    again = trainshed.steps(name="digits", params={"lr": 0.1}, steps=made, echo=False)
    assert [row["cached"] for row in again.steps()][:2] == [True, True]
    with pytest.raises(TrainshedError, match=r"digits: bad failed.*KeyError: 'no'"):
        trainshed.steps(name="digits", steps={"bad": {"run": "bad.py"}}, echo=False)
    with pytest.raises(TrainshedError, match="there is no step 'x'"):
        pipeline.run("x")
    Path("pipeline.yaml").write_text("params: {lr: 1}\nsteps: {a: {run: {program: bad.py}}}\n")
    with pytest.raises(JobError, match="is not a parameter of the pipeline"):
        trainshed.steps("pipeline.yaml", params={"rate": 1})
    assert not os.path.exists("pipelines/pipeline")


def test_what_is_no_job_and_no_step_is_refused_in_words(folder: Path) -> None:
    asked: dict[str, Any] = {"search": {"a": [1]}, "objective": "minimize loss", "strategy": "grid"}
    with pytest.raises(JobError, match="must be a job file, or the fields of one"):
        trainshed.tune(job=3, **asked)  # type: ignore[arg-type]
    with pytest.raises(JobError, match="steps"):
        trainshed.steps(steps=[1])  # type: ignore[arg-type]
    assert not (folder / "tunes").exists() and not (folder / "pipelines").exists()
