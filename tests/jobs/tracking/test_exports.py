"""`trainshed export csv|tensorboard|mlflow`: what whole runs have measured, as other tools read it."""

from __future__ import annotations

import csv
import io
import math
import os
from pathlib import Path

import pytest

from support.mlflow_told import in_mlflow
from support.runner_project import Project

TRAIN = """\
import os, pathlib
for step in range(1, 4):
    print(f"metric loss={1 / step} step={step}", flush=True)
    print(f"metric acc={step} step={step}", flush=True)
from trainshed import metrics
metrics.log({"odd (name)": float("nan")}, step=1)
metrics.log({"odd (name)": float("inf"), "words": metrics.Text("good")}, step=2)
pathlib.Path(os.environ["SM_MODEL_DIR"], "weights").write_text("7")
"""
JOB = "name: digits\nprogram: train.py\nsource_dir: src\nhyperparameters: {lr: 0.1, api_token: secretsecret}\n"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with the runs `one` and `two`."""
    project = Project(tmp_path_factory.mktemp("measured") / "project")
    project.folder.mkdir()
    project.write({"src/train.py": TRAIN, "job.yaml": JOB})
    for name in ("one", "two"):
        done = project.trainshed("run", "job.yaml", "--output", name, "--tag", f"who={name}")
        assert done.status == 0, done.output
    return project


@pytest.mark.spine
def test_csv_has_every_value_or_a_row_a_step(measured: Project) -> None:
    long = list(csv.DictReader(io.StringIO(measured.trainshed("export", "csv", "./one", "./two").stdout)))
    wide = list(csv.DictReader(io.StringIO(measured.trainshed("export", "csv", "./one", "--wide").stdout)))
    done = measured.trainshed("export", "csv", "./one", "-o", "table.csv")

    assert len(long) == 16 and {row["name"] for row in long} == {"loss", "acc", "odd (name)"}
    assert [(row["step"], row["acc"], float(row["loss"])) for row in wide] == [
        ("1", "1.0", 1.0), ("2", "2.0", 0.5), ("3", "3.0", 1 / 3),
    ]  # fmt: skip
    assert math.isnan(float(wide[0]["odd (name)"])) and wide[1]["odd (name)"] == "inf" and wide[2]["odd (name)"] == ""
    assert done.status == 0 and len((measured.folder / "table.csv").read_text().splitlines()) == 9


def test_event_files_are_replaced_not_doubled(measured: Project) -> None:
    pytest.importorskip("tensorboardX")
    for _ in range(2):
        done = measured.trainshed("export", "tensorboard", "./one", "./two", "-o", "events")
        assert done.status == 0, done.output

    folders = sorted((measured.folder / "events").iterdir())
    assert len(folders) == 2 and [len(list(folder.iterdir())) for folder in folders] == [1, 1]


@pytest.mark.timeout(300)  # MLflow's server starts
@pytest.mark.spine
def test_mlflow_gets_each_run_once_however_often_it_is_exported(measured: Project) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    address = f"sqlite:///{measured.folder}/mlflow.db"
    environment = {"MLFLOW_TRACKING_URI": address}

    first = measured.trainshed("export", "mlflow", "./one", **environment)
    again = measured.trainshed("export", "mlflow", "./one", "./two", "--model", **environment)

    assert first.status == again.status == 0, first.output + again.output
    assert ": 8 values sent, 1 pictures and the like; run " in first.stderr
    assert ": 0 values sent, 1 pictures and the like, 1 files of the model; run " in again.stderr
    one, two = in_mlflow(address)
    assert (one["experiment"], one["status"], two["status"]) == ("digits", "FINISHED", "FINISHED")
    assert one["params"] == {"lr": "0.1", "api_token": "******"} and one["tags"]["who"] == "one"
    assert sorted(one["history"]["loss"]) == [[1, 1.0], [2, 0.5], [3, 1 / 3]]
    (odd,) = [name for name in one["history"] if name.startswith("odd")]
    assert len(one["history"][odd]) == 2 and one["files"] == ["model/weights", "media/words/step-00000002-1.txt"]


@pytest.mark.safety
def test_two_exports_at_once_make_one_run(measured: Project) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    address = f"sqlite:///{measured.folder}/at-once.db"
    warm = measured.trainshed("export", "mlflow", "./two", "--to", address)  # makes the tables

    started = [measured.start("export", "mlflow", "./one", "--to", address) for _ in range(2)]
    said = [process.communicate()[1] for process in started]

    assert warm.status == 0 and [process.returncode for process in started] == [0, 0], said
    assert sorted(text.split(" values sent")[0].split(": ")[-1] for text in said) == ["0", "8"]
    assert len(in_mlflow(address)) == 2


def test_without_a_place_and_with_one_that_mlflow_refuses(measured: Project) -> None:
    pytest.importorskip("mlflow")

    none = measured.trainshed("export", "mlflow", "./one", MLFLOW_TRACKING_URI="")
    folder = measured.trainshed("export", "mlflow", "./one", "--to", os.fspath(measured.folder / "mlruns"))

    assert none.status != 0 and none.stderr.startswith("trainshed: no MLflow is named\n")
    assert folder.status != 0 and "no longer writes to folders" in folder.stderr
    assert not Path(measured.folder, "mlruns").exists(), "neither this nor a database leaves one in the working folder"
