"""tabular.py: the same trees however many ranks, however often interrupted, from every format; words for bad data."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from jobs.entrypoints.tables import LINE, ROWS, channels, measured, rows, write_csv
from support import programs
from support.data_files import frame, tensor_record
from support.extras import needs
from support.lazy import Lazy
from support.runner_project import Project

needs("xgboost")
xgboost: Any = Lazy("xgboost")
numpy: Any = Lazy("numpy")
PROGRAM = "tabular.py"


def trees(folder: Path) -> list[str]:
    return xgboost.Booster(model_file=folder / "model" / "xgboost-model").get_dump(dump_format="json")


@pytest.mark.spine
def test_a_model_that_xgboost_loads_and_predicts_with(tmp_path: Path, tables: Path) -> None:
    output = programs.run(PROGRAM, *channels(tables), "--num_round", "20", cwd=tmp_path)

    booster = xgboost.Booster(model_file=tmp_path / "model" / "xgboost-model")
    features, target = (part[:300] for part in rows(1))
    error = numpy.sqrt(numpy.mean((booster.predict(xgboost.DMatrix(features)) - target) ** 2))
    assert booster.num_boosted_rounds() == 20
    assert measured(output)[-1]["validation-rmse"] == pytest.approx(error, rel=1e-4)
    assert error < 0.8 * numpy.std(target)
    said = json.loads((tmp_path / "model" / ".about.json").read_text())
    assert (said["program"], said["hyperparameters"], said["trained"]["rounds"]) == ("tabular", {"num_round": 20}, 20)
    assert said["metrics"]["validation_rmse"] == pytest.approx(error, rel=1e-4)
    assert "<svg" in (tmp_path / "output" / "feature_importance.svg").read_text()


def test_the_same_as_xgboosts_own_train(tmp_path: Path, tables: Path) -> None:
    given = {"max_depth": 4, "eta": 0.2, "lambda": 2, "min_child_weight": 3}
    arguments = [part for name, value in given.items() for part in (f"--{name}", str(value))]
    programs.run(PROGRAM, *channels(tables), "--num_round", "8", *arguments, cwd=tmp_path)

    features, target = rows()
    theirs = xgboost.train(
        {**given, "nthread": 1}, xgboost.QuantileDMatrix(features.astype("f4"), target.astype("f4")), 8
    ).get_dump(dump_format="json")
    assert trees(tmp_path) == theirs


def test_three_ranks_measure_what_one_does(tmp_path: Path, tables: Path) -> None:
    arguments = (*channels(tables), "--num_round", "12", "--objective", "reg:pseudohubererror", "--num_parallel_tree", "2")
    (tmp_path / "one").mkdir()
    one = measured(programs.run(PROGRAM, *arguments, cwd=tmp_path / "one"))
    three = measured(programs.run(PROGRAM, *arguments, cwd=tmp_path, ranks=3))

    assert len(one) == len(three) == 12
    for alone, together in zip(one, three, strict=True):
        assert together == pytest.approx(alone, abs=2e-6)


def test_a_request_of_the_platforms_xgboost_runs_here_on_two_hosts_with_rows_of_their_own(
    project: Project, tables: Path
) -> None:
    asked = {"max_depth": "5", "eta": "0.2", "silent": "0", "objective": "reg:linear", "num_round": "5"}
    channels = {name: (tables / name, "csv") for name in ("train", "validation")}
    how: dict[str, Any] = {"account": "683313688378", "hosts": 2, "sharded": ("train",)}
    request = programs.request_of_the_platform("sagemaker-xgboost:1.7-1", asked, channels, **how)
    project.write({"request.json": request})
    done = project.trainshed("run", "request.json", OMP_NUM_THREADS="1")

    assert done.status == 0, done.output
    assert f"training on {ROWS} rows of 6 features; target: column 1; 2 ranks" in done.output
    shown = project.trainshed("metrics", "show")
    assert re.search(r"validation:rmse +5 ", shown.output), shown.output


HALVES = ["--subsample", "0.5", "--colsample_bynode", "0.5"]
DART = ["--booster", "dart", "--rate_drop", "0.3", *HALVES]


@pytest.mark.exact
@pytest.mark.parametrize(
    ("how", "ranks"),
    [
        pytest.param(HALVES, 1, id="sampled", marks=pytest.mark.spine),
        pytest.param(DART, 1, id="dart", marks=pytest.mark.matrix),
        pytest.param(["--booster", "gblinear"], 1, id="linear", marks=pytest.mark.matrix),
        pytest.param(HALVES, 2, id="two-ranks"),
    ],
)
def test_killed_and_resumed_it_ends_as_if_nothing_had_been(tmp_path: Path, tables: Path, how: list[str], ranks: int) -> None:
    arguments = [*channels(tables), "--num_round", "30", "--checkpoint_rounds", "7", *how]
    (tmp_path / "whole").mkdir()
    whole = programs.run(PROGRAM, *arguments, cwd=tmp_path / "whole", ranks=ranks)
    kept = {"SM_CHECKPOINT_DIR": str(tmp_path / "checkpoints")}
    (tmp_path / "checkpoints").mkdir()
    with programs.started(PROGRAM, *arguments, cwd=tmp_path, ranks=ranks, **kept) as job:
        job.wait_for(r"^\[16\]\t")
        for process in job.processes:
            os.kill(process.pid, signal.SIGKILL)
        job.finish()
    with programs.started(PROGRAM, *arguments, cwd=tmp_path, ranks=ranks, **kept) as job:
        resumed = job.succeed()

    first = int(LINE.findall(resumed)[0][0])
    assert first in (14, 21, 28) and "verified" in job.errors[0]
    assert measured(resumed) == measured(whole)[first:]
    assert trees(tmp_path) == trees(tmp_path / "whole")


def test_a_notice_saves_and_ends_well(tmp_path: Path, tables: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    kept = {"SM_CHECKPOINT_DIR": str(tmp_path / "checkpoints")}
    arguments = [*channels(tables), "--num_round", "100000", *HALVES]
    with programs.started(PROGRAM, *arguments, cwd=tmp_path, **kept) as job:
        job.wait_for(r"^\[25\]\t")
        job.processes[0].terminate()
        job.succeed()
    assert json.loads((tmp_path / "model" / ".about.json").read_text())["trained"]["finished"] is False
    (saved,) = (tmp_path / "checkpoints").glob("checkpoint-*")
    assert int(saved.name.partition("-")[2]) >= 20


def test_more_rounds_go_on_from_a_job_that_ended(tmp_path: Path, tables: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    arguments = (*channels(tables), *HALVES, "--checkpoint_rounds", "4")
    for rounds in ("8", "16"):
        kept = programs.run(
            PROGRAM, *arguments, "--num_round", rounds, cwd=tmp_path, SM_CHECKPOINT_DIR=str(tmp_path / "checkpoints")
        )
    (tmp_path / "whole").mkdir()
    programs.run(PROGRAM, *arguments, "--num_round", "16", cwd=tmp_path / "whole")

    assert int(LINE.findall(kept)[0][0]) > 0
    assert trees(tmp_path) == trees(tmp_path / "whole")


def test_a_request_of_the_platform_measures_ranks_and_survives(tmp_path: Path) -> None:
    draw = numpy.random.default_rng(5)
    x = draw.random((120, 3))
    grade = (x[:, 0] * 3).astype(int)
    lines = [f"{y} qid:{at // 12} 1:{a:.4f} 2:{b:.4f} 8:" for at, (y, (a, b, _)) in enumerate(zip(grade, x, strict=True))]
    (tmp_path / "rank.svm").write_text("\n".join(lines) + "\n")
    ranked = programs.run(
        PROGRAM, "--train", "rank.svm", "--objective", "rank:pairwise", "--eval_metric", "ndcg@3", "--num_round", "5",
        cwd=tmp_path,
    )  # fmt: skip
    assert [path.name for path in (tmp_path / "model").iterdir() if not path.name.startswith(".")] == ["xgboost-model"]
    assert measured(ranked)[-1]["train-ndcg@3"] > 0.95

    (tmp_path / "life.csv").write_text(
        "begin,end,x\n" + "".join(f"{1 + 9 * a},{1 + 9 * a if b > 0.3 else ''},{a}\n" for a, b, _ in x)
    )
    survived = programs.run(
        PROGRAM, "--train", "life.csv", "--objective", "survival:aft", "--target", "begin", "--target_upper", "end",
        "--num_round", "20", cwd=tmp_path,
    )  # fmt: skip
    assert measured(survived)[-1]["train-aft-nloglik"] < measured(survived)[0]["train-aft-nloglik"]

    (tmp_path / "two.csv").write_text("".join(f"{int(a > 0.5)},{a},{b}\n" for a, b, _ in x))
    told = programs.run(
        PROGRAM, "--train", "two.csv", "--validation", "two.csv", "--objective", "binary:logistic", "--num_round", "30",
        "--eval_metric", "f1,logloss", "--_tuning_objective_metric", "validation:accuracy", "--early_stopping_rounds", "3",
        cwd=tmp_path,
    )  # fmt: skip
    assert list(measured(told)[0])[-1] == "validation-accuracy" and len(measured(told)) < 30
    assert measured(told)[-1]["validation-f1"] == 1.0


def test_each_part_of_the_rows_is_held_out_once_a_round(tmp_path: Path, tables: Path) -> None:
    output = programs.run(
        PROGRAM, *channels(tables), "--num_round", "3", "--_kfold", "3", "--_num_cv_round", "2", cwd=tmp_path
    )

    models = sorted(path.name for path in (tmp_path / "model").iterdir() if not path.name.startswith("."))
    assert models == [f"xgboost-model-{at}" for at in range(6)]
    said = numpy.loadtxt(tmp_path / "output" / "predictions.csv", delimiter=",")
    assert len(said) >= ROWS and numpy.corrcoef(said.T)[0, 1] > 0.3
    assert json.loads((tmp_path / "output" / "metrics.json").read_text())["validation_rmse"] == pytest.approx(
        measured(output)[-1]["validation-rmse"], rel=1e-4
    )


def test_it_stops_early_and_keeps_the_best_round(tmp_path: Path, tables: Path) -> None:
    output = programs.run(
        PROGRAM, *channels(tables), "--num_round", "500", "--early_stopping_rounds", "5", "--eta", "0.8", cwd=tmp_path
    )

    values = [one["validation-rmse"] for one in measured(output)]
    best = values.index(min(values))
    assert len(values) == best + 6 < 500
    assert len(trees(tmp_path)) == best + 1
    assert json.loads((tmp_path / "model" / ".about.json").read_text())["metrics"]["validation_rmse"] == pytest.approx(
        min(values), rel=1e-5
    )


def test_texts_are_categories_and_classes(tmp_path: Path) -> None:
    draw = numpy.random.default_rng(3)
    jobs = draw.choice(["clerk", "farmer", "smith"], 400)
    ages = draw.integers(18, 80, 400)
    rich = ["yes" if (job == "smith") != (age > 50) else "no" for job, age in zip(jobs, ages, strict=True)]
    lines = [f"{age},{job},{answer}" for age, job, answer in zip(ages, jobs, rich, strict=True)]
    lines[7] = f"?,{jobs[7]},{rich[7]}"
    (tmp_path / "people.csv").write_text("\n".join(["age,job,rich", *lines]) + "\n")
    output = programs.run(
        PROGRAM, "--train", "people.csv", "--target", "rich", "--objective", "binary:logistic", "--eval_metric", "error",
        "--num_round", "10", "--validation_fraction", "0.2", cwd=tmp_path,
    )  # fmt: skip

    assert measured(output)[-1]["validation-error"] < 0.05
    (tmp_path / "new.csv").write_text("age,job\n30,smith\n30,clerk\n60,smith\n40,pilot\n")
    predicted = programs.run(PROGRAM, "--predict", "new.csv", cwd=tmp_path)
    assert [json.loads(line)["class"] for line in predicted.splitlines()][:3] == ["yes", "no", "no"]


@pytest.mark.parametrize(
    "form", ["parquet", "recordio", *(pytest.param(one, marks=pytest.mark.matrix) for one in ("libsvm", "csv.gz"))]
)
def test_every_format_gives_the_same_trees(tmp_path: Path, tables: Path, form: str) -> None:
    import gzip

    features, target = rows()
    (tmp_path / "train").mkdir()
    path = tmp_path / "train" / f"rows.{form}"
    if form == "libsvm":
        cells = [
            " ".join(f"{index}:{cell!r}" for index, cell in enumerate(row.tolist()) if cell == cell) for row in features
        ]
        path.write_text("".join(f"{label} {line}\n" for label, line in zip(target, cells, strict=True)))
    elif form == "parquet":
        import pyarrow
        from pyarrow import parquet

        names = {"target": target, **{f"f{index}": features[:, index] for index in range(6)}}
        parquet.write_table(pyarrow.table(names), path)
    elif form == "recordio":
        dense = [tensor_record(row.tolist(), label) for row, label in zip(features, target, strict=True)]
        path.write_bytes(b"".join(map(frame, dense)))
    else:
        write_csv(tmp_path / "plain.csv", features, target)
        path.write_bytes(gzip.compress((tmp_path / "plain.csv").read_bytes()))
    (tmp_path / "csv").mkdir()
    programs.run(PROGRAM, "--train", str(tables / "train"), "--num_round", "4", cwd=tmp_path / "csv")
    programs.run(PROGRAM, "--train", str(tmp_path / "train"), "--num_round", "4", cwd=tmp_path)

    assert trees(tmp_path) == trees(tmp_path / "csv")


def test_a_model_is_gone_on_from(tmp_path: Path, tables: Path) -> None:
    (tmp_path / "first").mkdir()
    first = measured(programs.run(PROGRAM, *channels(tables), "--num_round", "5", cwd=tmp_path / "first"))
    before = str(tmp_path / "first" / "model")
    second = measured(programs.run(PROGRAM, *channels(tables), "--num_round", "5", "--previous_model", before, cwd=tmp_path))

    assert len(trees(tmp_path)) == 10 and trees(tmp_path)[:5] == trees(tmp_path / "first")
    assert second[0]["train-rmse"] < first[-1]["train-rmse"]


def test_a_checkpoint_of_other_data_is_refused(tmp_path: Path, tables: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    kept = {"SM_CHECKPOINT_DIR": str(tmp_path / "checkpoints")}
    programs.run(PROGRAM, *channels(tables), "--num_round", "4", "--checkpoint_rounds", "2", cwd=tmp_path, **kept)
    with programs.started(PROGRAM, "--train", str(tables / "validation"), cwd=tmp_path, **kept) as job:
        assert job.finish() == [1]
    assert "is of another training (its training data differ): remove it" in job.errors[0].splitlines()[-1]
