"""Reports of whole jobs: there after every end, and never in a job's way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.runner_project import Project

LINES = "for i in 3 2 1; do echo metric loss=0.$i step=$((4 - i)); done\n"


@pytest.mark.parametrize(
    ("rest", "status", "state"),
    [
        ("exit 0\n", 0, "Completed"),
        ("exit 3\n", 3, "Failed"),
        ("kill -TERM $PPID; while :; do sleep 0.05; done\n", 143, "Stopped"),
        ("trap 'exit 0' TERM; kill -TERM $PPID; while :; do sleep 0.05; done\n", 0, "Stopped"),
    ],
)
def test_a_report_is_there_however_a_job_ends(rest: str, status: int, state: str, job_tree: Any) -> None:
    job_tree.code("train.sh", LINES + rest)
    job_tree.configure(hyperparameters={"sagemaker_program": "train.sh", "lr": "0.125"})
    done = job_tree.train()
    path = job_tree.base / "output/data/report.html"

    assert done.status == status, done.output
    assert f"trainshed: report: {path}" in done.stderr
    text = path.read_text()
    assert f">{state}<" in text and "loss" in text and "0.125" in text


@pytest.mark.safety
def test_a_secret_in_a_metrics_name_is_masked_in_the_report(job_tree: Any) -> None:
    line = '{\\"MetricName\\": \\"loss_$MY_API_KEY\\", \\"Value\\": 0.5, \\"Step\\": 1}'
    folder = "$SAGEMAKER_METRICS_DIRECTORY"
    job_tree.code("train.sh", f'mkdir -p "{folder}"; echo "{line}" > "{folder}/1.json"\n')
    job_tree.configure(hyperparameters={"sagemaker_program": "train.sh"})
    done = job_tree.train(MY_API_KEY="canary-in-a-name")

    assert done.status == 0, done.output
    text = (job_tree.base / "output/data/report.html").read_text()
    assert "loss_" in text and "canary" not in text


@pytest.mark.safety
def test_a_scripts_own_report_stays(job_tree: Any) -> None:
    job_tree.code("train.sh", LINES + 'echo mine > "$SM_OUTPUT_DATA_DIR/report.html"\n')
    job_tree.configure(hyperparameters={"sagemaker_program": "train.sh"})
    done = job_tree.train()
    data = job_tree.base / "output/data"

    assert done.status == 0 and f"report: {data}/trainshed-report.html" in done.stderr
    assert (data / "report.html").read_text() == "mine\n"


def test_a_report_that_cannot_be_written_costs_the_report_alone(job_tree: Any) -> None:
    make = 'mkdir -p "$SM_OUTPUT_DATA_DIR/report.html" "$SM_OUTPUT_DATA_DIR/trainshed-report.html"\n'
    job_tree.code("train.sh", LINES + make)
    job_tree.configure(hyperparameters={"sagemaker_program": "train.sh"})
    done = job_tree.train()

    assert done.status == 0 and job_tree.success == ""
    assert "warning: the report was not written: " in done.stderr and done.stderr.count("Traceback") == 0


def test_a_job_without_metrics_has_no_report(job_tree: Any) -> None:
    job_tree.code("train.sh", "echo hello\n")
    job_tree.configure(hyperparameters={"sagemaker_program": "train.sh"})
    done = job_tree.train()

    assert done.status == 0 and "report" not in done.stderr
    assert not list((job_tree.base / "output/data").glob("*report*"))


@pytest.mark.spine
def test_the_command_tells_all_hosts_and_attempts_and_the_summary_names_the_report(project: Project, tmp_path: Path) -> None:
    script = LINES + '[ -e "$SM_CHECKPOINT_DIR/again" ] || { touch "$SM_CHECKPOINT_DIR/again"; exit 5; }\n'
    project.write({"train.sh": script.replace("$SM_CHECKPOINT_DIR", str(tmp_path))})
    mine = {"XDG_STATE_HOME": str(tmp_path / "state")}
    failed = project.trainshed("run", "train.sh", **mine)
    assert failed.status == 5, failed.output
    again = project.trainshed("resume", **mine)
    assert again.status == 0, again.output
    assert f"report     runs/{project.run.name}/algo-1/output/data/report.html" in again.stderr

    done = project.trainshed("report", **mine)
    assert (done.status, done.stdout) == (0, f"{project.run}/report.html\n"), done.output
    text = (project.run / "report.html").read_text()
    assert "algo-1, no. 1" in text and "algo-1, no. 2" in text and ">Completed<" in text
    elsewhere = project.trainshed("report", project.run.name, "-o", str(tmp_path / "new/page.html"), **mine)
    assert elsewhere.status == 0 and (tmp_path / "new/page.html").stat().st_size > 5000
    of_a_host = project.trainshed("report", f"{project.run}/algo-1", **mine)
    assert of_a_host.stdout == f"{project.run}/algo-1/output/data/report.html\n"
    (tmp_path / "mine.html").write_text("mine")
    refused = project.trainshed("report", "-o", str(tmp_path / "mine.html"), **mine)
    assert refused.status != 0 and "is a file that trainshed did not make" in refused.stderr
    removed = project.trainshed("rm", project.run.name, **mine)
    assert removed.status == 0 and not (project.folder / "runs").exists(), removed.output


def test_metrics_of_an_earlier_attempt_are_part_of_the_curve(project: Project, tmp_path: Path) -> None:
    script = f"[ -e {tmp_path}/again ] && s=3 || s=1\necho metric loss=0.$s step=$s; echo metric loss=0.1 step=$((s + 1))\n"
    project.write({"train.sh": f"{script}[ -e {tmp_path}/again ] || {{ touch {tmp_path}/again; exit 5; }}\n"})
    mine = {"XDG_STATE_HOME": str(tmp_path / "state")}
    assert [project.trainshed(command, *more, **mine).status for command, *more in (("run", "train.sh"), ("resume",))] == [
        5,
        0,
    ]
    done = project.trainshed("metrics", "show", "--csv", **mine)

    assert [line.split(",")[2] for line in done.stdout.splitlines()[1:]] == ["1", "2", "3", "4"], done.output
    assert json.loads((project.run / "status.json").read_text())["TrainingJobStatus"] == "Completed"
