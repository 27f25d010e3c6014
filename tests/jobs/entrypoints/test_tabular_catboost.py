"""tabular.py with CatBoost: the same promises as with XGBoost. They run where `pip install catboost` was done (269 MB)."""

from __future__ import annotations

import json
import math
import os
import signal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jobs.entrypoints.tables import LINE, channels, colours, measured, rows, write_csv
from support import programs
from support.extras import needs
from support.lazy import Lazy

needs("catboost", "xgboost")
numpy: Any = Lazy("numpy")
pytestmark = pytest.mark.matrix
PROGRAM = "tabular.py"
CAT = ("--library", "catboost")


def test_the_same_as_catboosts_own_training(tmp_path: Path, tables: Path) -> None:
    import catboost

    given = {"learning_rate": 0.2, "depth": 4, "l2_leaf_reg": 2.0, "random_strength": 0.5, "iterations": 9}
    arguments = [part for name, value in given.items() for part in (f"--{name}", str(value))]
    output = programs.run(PROGRAM, *channels(tables), *CAT, *arguments, cwd=tmp_path)

    features, target = rows()
    settings = {**given, "random_seed": 0, "thread_count": 1, "verbose": False, "allow_writing_files": False}
    theirs = catboost.CatBoostRegressor(**settings).fit(features.astype("f4"), target.astype("f4"))
    ours = catboost.CatBoost().load_model(str(tmp_path / "model" / "model.cbm"))
    unseen, truth = (part[:300] for part in rows(1))
    assert numpy.allclose(ours.predict(unseen), theirs.predict(unseen), rtol=1e-12)
    error = math.sqrt(numpy.mean((ours.predict(unseen) - truth) ** 2))
    assert measured(output)[-1]["validation-rmse"] == pytest.approx(error, rel=1e-4)
    said = json.loads((tmp_path / "model" / "model.json").read_text())
    assert (said["library"], said["trained"]["rounds"]) == ("catboost", 9)
    assert "<svg" in (tmp_path / "output" / "feature_importance.svg").read_text()


@pytest.mark.exact
@pytest.mark.parametrize("how", [[], ["--bootstrap_type", "Bernoulli", "--subsample", "0.5", "--rsm", "0.6"]])
def test_killed_and_resumed_it_ends_as_if_nothing_had_been(tmp_path: Path, tables: Path, how: list[str]) -> None:
    arguments = [*channels(tables), *CAT, "--num_round", "120", "--checkpoint_rounds", "7", *how]
    (tmp_path / "whole").mkdir()
    whole = programs.run(PROGRAM, *arguments, cwd=tmp_path / "whole")
    kept = {"SM_CHECKPOINT_DIR": str(tmp_path / "checkpoints")}
    (tmp_path / "checkpoints").mkdir()
    with programs.started(PROGRAM, *arguments, cwd=tmp_path, **kept) as job:
        job.wait_for(r"^\[16\]\t")
        for process in job.processes:
            os.kill(process.pid, signal.SIGKILL)
        job.finish()
    with programs.started(PROGRAM, *arguments, cwd=tmp_path, **kept) as job:
        resumed = job.succeed()

    first = int(LINE.findall(resumed)[0][0])
    assert first >= 14 and first % 7 == 0 and "verified" in job.errors[0]
    assert measured(resumed) == measured(whole)[first:]
    assert answers(tmp_path / "model") == answers(tmp_path / "whole" / "model")
    again = programs.run(PROGRAM, *arguments, cwd=tmp_path, **kept)
    assert measured(again) == measured(whole)[119 - 119 % 7 :]


def answers(model: Path) -> list[float]:
    import catboost

    return catboost.CatBoost().load_model(str(model / "model.cbm")).predict(rows(1)[0]).tolist()


@pytest.mark.exact
def test_a_stopped_job_goes_on_to_the_same_end(tmp_path: Path, tables: Path) -> None:
    arguments = [*channels(tables), *CAT, "--num_round", "300"]
    (tmp_path / "whole").mkdir()
    whole = programs.run(PROGRAM, *arguments, cwd=tmp_path / "whole")
    kept = {"SM_CHECKPOINT_DIR": str(tmp_path / "checkpoints")}
    (tmp_path / "checkpoints").mkdir()
    with programs.started(PROGRAM, *arguments, cwd=tmp_path, **kept) as job:
        job.wait_for(r"^\[5\]\t")
        job.processes[0].send_signal(signal.SIGTERM)
        stopped = job.succeed()
    resumed = programs.run(PROGRAM, *arguments, cwd=tmp_path, **kept)
    assert measured(stopped) + measured(resumed) == measured(whole)
    assert answers(tmp_path / "model") == answers(tmp_path / "whole" / "model")


@pytest.mark.parametrize("objective", ["multi:softprob", "multi:softmax"])
def test_texts_are_categories_and_classes(tmp_path: Path, objective: str) -> None:
    table = colours(tmp_path / "table.csv")
    given = ("--train", str(table), "--target", "kind", "--objective", objective, *CAT)
    output = programs.run(PROGRAM, *given, "--eval_metric", "mlogloss,merror", "--validation_fraction", "0.2", cwd=tmp_path)
    assert measured(output)[-1]["validation-merror"] < 0.1
    (tmp_path / "rows.csv").write_text("colour,size\nred,0\nblue,2\ngreen,-2\nviolet,-2\n,1\n")
    printed = programs.run(PROGRAM, "--predict", "rows.csv", "--model_dir", "model", cwd=tmp_path)
    assert [json.loads(line)["class"] for line in printed.splitlines()][:3] == ["warm", "big", "small"]


def test_it_stops_early_and_keeps_the_best_round(tmp_path: Path, tables: Path) -> None:
    more = ("--num_round", "2000", "--eta", "0.9", "--depth", "8", "--early_stopping_rounds", "5", "--test")
    output = programs.run(PROGRAM, *channels(tables), *CAT, *more, str(tables / "validation"), cwd=tmp_path)
    values = [one["validation-rmse"] for one in measured(output)]
    assert len(values) == values.index(min(values)) + 6
    said = json.loads((tmp_path / "model" / "model.json").read_text())
    assert said["trained"]["rounds"] == values.index(min(values)) + 1
    assert said["metrics"]["test_rmse"] == pytest.approx(said["metrics"]["validation_rmse"], rel=1e-6)


@pytest.mark.parametrize(
    ("objective", "metric"),
    [("reg:absoluteerror", "mae"), ("reg:tweedie", "rmse"), ("count:poisson", "rmse"), ("reg:pseudohubererror", "rmse")],
)
def test_predictions_are_on_the_scale_of_the_target(tmp_path: Path, objective: str, metric: str) -> None:
    draw = numpy.random.default_rng(0)
    features = draw.normal(size=(400, 3)).astype("f4")
    target = numpy.exp(1 + features[:, 0]).round().astype("f4")
    write_csv(tmp_path / "train" / "a.csv", features, target)
    programs.run(PROGRAM, "--train", "train", *CAT, "--objective", objective, "--num_round", "200", cwd=tmp_path)
    write_csv(tmp_path / "rows.csv", features[:, 1:], features[:, 0])
    printed = programs.run(PROGRAM, "--predict", "rows.csv", "--model_dir", "model", cwd=tmp_path)
    found = numpy.array([json.loads(line)["prediction"] for line in printed.splitlines()])
    assert numpy.abs(found - target).mean() < 1


def test_two_ranks_are_refused_with_what_to_use(tmp_path: Path, tables: Path) -> None:
    with programs.started(PROGRAM, *channels(tables), *CAT, cwd=tmp_path, ranks=2) as job:
        assert job.finish() == [1, 1]
    assert "library catboost is for one rank: start one, or set library to xgboost or lightgbm" in job.errors[0]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (["--booster", "dart"], "booster dart is XGBoost's"),
        (["--objective", "reg:gamma"], "objective reg:gamma is not served with CatBoost"),
        (["--gamma", "0.5"], "gamma: CatBoost has no such thing"),
        (["--eval_metric", "ndcg"], "eval_metric ndcg is not served with CatBoost"),
        (["--max_depth", "40"], "max_depth is 40: CatBoost needs 1 to 16"),
        (["--bagging_temperature", "1", "--bootstrap_type", "No"], "CatBoost: Error: .*bootstrap is disabled"),
        (["--library", "xgboost", "--grow_policy", "symmetric"], "grow_policy symmetric is CatBoost's"),
    ],
)
def test_what_is_not_served_is_said(
    program: ModuleType,
    outside_a_job: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tables: Path,
    how: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [PROGRAM, *channels(tables), *CAT, *how])
    with pytest.raises(program.Problem, match=message):
        program.main()
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("target", ["1", "nan", "x"])
def test_a_target_without_anything_to_learn_is_refused(tmp_path: Path, target: str) -> None:
    lines = "".join(f"{target},{value},{value % 3}\n" for value in range(40))
    (tmp_path / "table.csv").write_text(lines)
    with programs.started(PROGRAM, "--train", "table.csv", *CAT, "--num_round", "3", cwd=tmp_path) as job:
        assert job.finish() == [1]
    assert "Traceback" not in job.errors[0] and job.errors[0].strip()
