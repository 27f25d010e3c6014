"""clustering, anomaly, pca and knn: what scikit-learn finds, from requests of the platform, or words for what is wrong."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import random
from pathlib import Path
from typing import Any

import pytest

from jobs.entrypoints.mutants import file_of, mutated, table
from support import programs
from support.data_files import frame, tensor_record
from support.extras import needs
from support.lazy import Lazy
from support.programs import Train
from support.runner_project import Project

needs("sklearn", "skops")
numpy: Any = Lazy("numpy")
skops: Any = Lazy("skops.io")
COUNT = int(os.environ.get("TRAINSHED_MUTANTS") or 100)
TREE = "sklearn.tree._tree.Tree"
SPARSE_ROWS = "scipy.sparse._csr.csr_matrix"


def rows(count: int = 300, seed: int = 0) -> tuple[Any, Any]:
    """(features [count, 5] around four centres, which centre) of numbers that CSV keeps as they are."""
    draw = numpy.random.default_rng(seed)
    centres = 6 * numpy.random.default_rng(1).normal(size=(4, 5))
    which = draw.integers(0, 4, count)
    return (centres[which] + draw.normal(size=(count, 5))).round(4), which


def write(path: Path, *columns: Any, header: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [",".join(f"{cell:.17g}" for cell in row) for row in numpy.column_stack(columns)]
    path.write_text("\n".join([header, *lines] if header else lines) + "\n")
    return path


def refused(started_here: Train, name: str, *arguments: object) -> str:
    """The one line that a program refuses with."""
    from _common import Problem  # type: ignore[import-not-found]

    with pytest.raises(Problem) as raised:
        started_here(name, *arguments)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def measured(output: str) -> dict[str, float]:
    return {name: float(value) for name, value, _, _ in programs.METRIC.findall(output)}


def predicted(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


# --- what scikit-learn finds ------------------------------------------------------------------------------------------


@pytest.mark.spine
def test_clusters_are_those_that_lloyd_finds(started_here: Train, tmp_path: Path) -> None:
    from sklearn.cluster import KMeans

    values, _ = rows()
    write(tmp_path / "x.csv", values)
    output = started_here("clustering", "--train", "x.csv", "--k", 4, "--eval_metrics", '["msd","ssd"]', "--epochs", 10)
    theirs = KMeans(4, n_init=10, random_state=0).fit(values)
    said = predicted(started_here("clustering", "--predict", "x.csv"))

    model = skops.load(tmp_path / "model" / "model.skops")
    order = numpy.argsort(model.cluster_centers_[:, 0]), numpy.argsort(theirs.cluster_centers_[:, 0])
    assert model.cluster_centers_[order[0]] == pytest.approx(theirs.cluster_centers_[order[1]], abs=0.3)
    found = measured(output)
    assert found["train_ssd"] == pytest.approx(theirs.inertia_, rel=0.02)
    assert found["train_msd"] == pytest.approx(found["train_ssd"] / 300, rel=1e-4)
    assert [one["cluster"] for one in said] == model.predict(values).tolist()
    assert sum(one["distance"] ** 2 for one in said) == pytest.approx(found["train_ssd"], rel=1e-4)


@pytest.mark.spine
def test_components_are_scikit_learns(started_here: Train, tmp_path: Path) -> None:
    from sklearn.decomposition import PCA, TruncatedSVD

    values, _ = rows()
    write(tmp_path / "x.csv", values)
    output = started_here("pca", "--train", "x.csv", "--num_components", 2)
    theirs = PCA(2, svd_solver="full").fit(values)
    said = [one["projection"] for one in predicted(started_here("pca", "--predict", "x.csv"))]
    assert numpy.array(said) == pytest.approx(theirs.transform(values), abs=1e-4)
    error = ((values - theirs.inverse_transform(theirs.transform(values))) ** 2).sum() / len(values)
    assert measured(output)["train_reconstruction_error"] == pytest.approx(error, rel=1e-4)

    started_here("pca", "--train", "x.csv", "--num_components", 3, "--subtract_mean", "false", "--model_dir", "around-zero")
    around = TruncatedSVD(3, algorithm="arpack", random_state=0).fit(values)
    model = skops.load(tmp_path / "around-zero" / "model.skops")
    assert abs(model.transform(values)) == pytest.approx(abs(around.transform(values)), abs=1e-6)


@pytest.mark.spine
def test_scores_are_those_of_scikit_learns_forest(started_here: Train, tmp_path: Path) -> None:
    from sklearn.ensemble import IsolationForest

    values, _ = rows()
    far = numpy.random.default_rng(5).normal(size=(12, 5)) * 40
    write(tmp_path / "x.csv", values)
    write(tmp_path / "test.csv", numpy.r_[numpy.zeros(300), numpy.ones(12)], numpy.r_[values, far])
    output = started_here("anomaly", "--train", "x.csv", "--test", "test.csv", "--num_trees", 40, "--seed", 3)
    (tmp_path / "far.csv").write_text((tmp_path / "x.csv").read_text())
    write(tmp_path / "far.csv", far)
    said = predicted(started_here("anomaly", "--predict", "far.csv"))

    theirs = IsolationForest(n_estimators=40, max_samples=256, random_state=3).fit(values)
    assert [one["score"] for one in said] == pytest.approx((-theirs.score_samples(far)).tolist(), abs=1e-6)
    assert sum(one["anomaly"] for one in said) >= 11
    found = measured(output)
    assert found["test_recall"] == pytest.approx(sum(one["anomaly"] for one in said) / 12, abs=1e-5)
    both = 2 * found["test_precision"] * found["test_recall"] / (found["test_precision"] + found["test_recall"])
    assert found["test_f1"] == pytest.approx(both, abs=1e-4) and found["test_accuracy"] > 0.95


@pytest.mark.parametrize("metric", [pytest.param("L2", marks=pytest.mark.spine), "COSINE"])
def test_neighbours_are_scikit_learns(started_here: Train, tmp_path: Path, metric: str) -> None:
    from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

    (values, which), (others, there) = rows(), rows(100, seed=2)
    name = {"L2": "euclidean", "COSINE": "cosine"}[metric]
    write(tmp_path / "new.csv", others)
    for kind, theirs, target, truth in (
        ("classifier", KNeighborsClassifier(5, metric=name), which, there),
        ("regressor", KNeighborsRegressor(5, metric=name), values[:, 0] * 2, others[:, 0] * 2),
    ):
        write(tmp_path / "train.csv", target, values)
        write(tmp_path / "test.csv", truth, others)
        output = started_here("knn", "--train", "train.csv", "--test", "test.csv", "--k", 5, "--predictor_type", kind,
                         "--index_metric", metric)  # fmt: skip
        guess = theirs.fit(values, target).predict(others)
        said = predicted(started_here("knn", "--predict", "new.csv"))
        found = measured(output)
        if kind == "classifier":
            assert [one["class"] for one in said] == guess.tolist()
            assert found == {"test_accuracy": pytest.approx((guess == there).mean())}
        else:
            assert [one["prediction"] for one in said] == pytest.approx(guess.tolist(), rel=1e-5)
            assert found == {"test_mse": pytest.approx(((guess - truth) ** 2).mean(), rel=1e-4)}


def test_neighbours_of_texts_and_names_are_found_behind_a_scaler(started_here: Train, tmp_path: Path) -> None:
    lines = [f"{('oak', 'elm')[at % 2]},{at % 2 + at / 1000},{at * 1000}" for at in range(60)]
    (tmp_path / "trees.csv").write_text("\n".join(["kind,leaf,number", *lines]) + "\n")
    arguments = ("--train", "trees.csv", "--target", "kind", "--k", 3, "--predictor_type", "classifier")
    started_here("knn", *arguments, "--standardize", "true", "--ignore_columns", "number", "--sample_size", 40)
    (tmp_path / "new.csv").write_text("number,leaf\n7,0.02\n8,1.02\n")

    assert [one["class"] for one in predicted(started_here("knn", "--predict", "new.csv"))] == ["oak", "elm"]
    assert json.loads((tmp_path / "model" / "model.json").read_text())["trained"]["rows"] == 40


# --- tables -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["libsvm", "parquet", "recordio", "labelled"])
def test_every_format_gives_the_same_clusters(
    started_here: Train, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values, which = rows(120)
    started_here(
        "clustering", "--train", write(tmp_path / "x.csv", values), "--k", 3, "--feature_dim", 5, "--model_dir", "csv"
    )
    path = tmp_path / "train" / f"rows.{form}"
    path.parent.mkdir()
    if form == "libsvm":
        lines = [" ".join(["1", *(f"{at}:{cell!r}" for at, cell in enumerate(row))]) for row in values.tolist()]
        path.write_text("\n".join(lines) + "\n")
    elif form == "parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({f"c{at}": values[:, at] for at in range(5)}), path)
    elif form == "recordio":
        path.write_bytes(b"".join(frame(tensor_record(row, 1.0)) for row in values.tolist()))
    else:
        write(path, which, values)
        monkeypatch.setenv("SM_INPUT_DATA_CONFIG", json.dumps({"train": {"ContentType": "text/csv;label_size=1"}}))
    started_here("clustering", "--train", "train", "--k", 3, "--feature_dim", 5)

    same, other = (skops.load(tmp_path / name / "model.skops").cluster_centers_ for name in ("csv", "model"))
    assert other == pytest.approx(same, abs=1e-5)  # libsvm and records hold float32


SPARSE = "".join(f"{at % 2} {at % 4}:{1 + at / 100} 7:{at % 3 + 1}\n" for at in range(40))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("clustering", ["--k", "2"]),
        ("anomaly", ["--num_trees", "10"]),
        ("pca", ["--num_components", "2"]),
        ("pca", ["--num_components", "2", "--algorithm_mode", "randomized", "--subtract_mean", "false"]),
        ("knn", ["--k", "2", "--predictor_type", "classifier"]),
    ],
)
def test_sparse_rows_are_zero_where_nothing_is_written(
    started_here: Train, tmp_path: Path, name: str, arguments: list[str]
) -> None:
    (tmp_path / "x.svm").write_text(SPARSE)
    dense = numpy.zeros((40, 9))
    for row, line in enumerate(SPARSE.splitlines()):
        for word in line.split()[1:]:
            dense[row, int(word.split(":")[0])] = float(word.split(":")[1])
    arguments = [*arguments, "--feature_dim", "9", "--standardize", "true"]
    output = started_here(name, "--train", "x.svm", "--test", "x.svm", *arguments)
    there = skops.load(tmp_path / "model" / "model.skops", trusted=[TREE, SPARSE_ROWS])
    assert len(predicted(started_here(name, "--predict", "x.svm"))) == 40

    assert all(math.isfinite(value) for value in measured(output).values())
    assert there.n_features_in_ == 9
    assert numpy.isfinite(there.transform(dense) if hasattr(there, "transform") else there.predict(dense)).all()


def test_rows_that_are_all_alike_are_no_trouble(started_here: Train, tmp_path: Path) -> None:
    write(tmp_path / "x.csv", numpy.ones((30, 3)))
    assert measured(started_here("clustering", "--train", "x.csv", "--k", 4)) == {"train_msd": 0}
    assert measured(started_here("anomaly", "--train", "x.csv"))["train_anomalies"] == 0
    assert measured(started_here("pca", "--train", "x.csv", "--num_components", 2))["train_explained_variance"] == 0


def test_a_model_that_is_damaged_or_of_another_program_is_refused(started_here: Train, tmp_path: Path) -> None:
    write(tmp_path / "x.csv", rows(20)[0])
    started_here("clustering", "--train", "x.csv", "--k", 2)
    assert "model.json is one of clustering" in refused(started_here, "pca", "--predict", "x.csv")
    write(tmp_path / "narrow.csv", rows(20)[0][:, :4])
    assert "has 4 features" in refused(started_here, "clustering", "--predict", "narrow.csv")
    model = tmp_path / "model" / "model.skops"
    data = model.read_bytes()
    for damaged in (data[: len(data) // 2], b"", b"\x80\x04."):
        model.write_bytes(damaged)
        assert "holds no model of clustering" in refused(started_here, "clustering", "--predict", "x.csv")


@pytest.mark.safety
def test_a_model_of_types_that_nobody_knows_is_refused(started_here: Train, tmp_path: Path) -> None:
    from sklearn.preprocessing import FunctionTransformer

    write(tmp_path / "x.csv", rows(20)[0])
    started_here("clustering", "--train", "x.csv", "--k", 2)
    skops.dump(FunctionTransformer(os.system), tmp_path / "model" / "model.skops")
    assert "Untrusted types found" in refused(started_here, "clustering", "--predict", "x.csv")


# --- jobs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("repository", "hyperparameters", "content", "shown"),
    [
        ("kmeans:1", {"k": "4", "feature_dim": "5", "mini_batch_size": "500", "epochs": "1", "init_method": "kmeans++",
                      "eval_metrics": '["msd"]', "extra_center_factor": "auto"}, "text/csv;label_size=0", "test:msd"),
        ("pca:1", {"num_components": "2", "feature_dim": "5", "mini_batch_size": "200", "subtract_mean": "True",
                   "algorithm_mode": "regular"}, "text/csv;label_size=0", "test:reconstruction_error"),
        ("randomcutforest:1", {"feature_dim": "5", "num_trees": "50", "num_samples_per_tree": "100",
                               "eval_metrics": '["accuracy", "precision_recall_fscore"]'},
         "text/csv;label_size=0", "test:f1"),
        ("knn:1", {"k": "5", "feature_dim": "5", "predictor_type": "classifier", "sample_size": "200",
                   "index_metric": "L2"}, "text/csv", "test:accuracy"),
    ],
    ids=["kmeans", "pca", "randomcutforest", "knn"],
)  # fmt: skip
def test_a_request_of_the_platform_runs_as_it_is(
    project: Project, tmp_path: Path, repository: str, hyperparameters: dict[str, str], content: str, shown: str
) -> None:
    values, which = rows()
    labels = {"knn": which, "randomcutforest": which == 0}.get(repository.partition(":")[0])
    bare = content.endswith("=0")
    write(tmp_path / "data" / "train" / "x.csv", *([] if bare else [labels]), values)
    write(tmp_path / "data" / "test" / "x.csv", *([] if labels is None else [labels]), values)
    with_labels = "text/csv;label_size=1" if labels is not None else content

    channels = {"train": (tmp_path / "data" / "train", content), "test": (tmp_path / "data" / "test", with_labels)}
    project.write({"request.json": programs.request_of_the_platform(repository, hyperparameters, channels)})
    done = project.trainshed("run", "request.json", OMP_NUM_THREADS="1")

    assert done.status == 0, done.output
    assert shown in project.trainshed("metrics", "show").output


@pytest.mark.exact
def test_a_stop_ends_it_well_and_the_next_run_finds_the_same(started_here: Train, tmp_path: Path) -> None:
    write(tmp_path / "x.csv", rows()[0])
    with programs.started("anomaly.py", "--train", "x.csv", "--num_trees", "500000", cwd=tmp_path) as job:
        job.wait_for("^growing")
        job.processes[0].terminate()
        assert "the next run begins anew" in job.succeed()
    assert not (tmp_path / "model").exists()
    for folder in ("one", "two"):
        started_here("anomaly", "--train", "x.csv", "--num_trees", 20, "--model_dir", folder)
    one, two = (skops.load(tmp_path / name / "model.skops", trusted=[TREE]) for name in ("one", "two"))
    values, _ = rows(50, seed=9)
    assert (one.score_samples(values) == two.score_samples(values)).all()


def test_a_program_says_what_is_wrong_in_its_last_line(tmp_path: Path) -> None:
    with programs.started("pca.py", "--train", "absent", "--num_components", "1", cwd=tmp_path) as job:
        assert job.finish() == [1]
    assert job.errors[0].splitlines()[-1] == "pca: error: the channel train absent is not a folder"


# --- mutants ----------------------------------------------------------------------------------------------------------

BASE = {
    "clustering": ["--k", "2"],
    "anomaly": [],
    "pca": ["--num_components", "1"],
    "knn": ["--k", "1", "--predictor_type", "classifier"],
}
VALUES = {
    "clustering": {"k": ["1", "2", "3", "50"], "init_method": ["random", "kmeans++"], "mini_batch_size": ["1", "7"],
                   "epochs": ["1", "3"], "local_lloyd_max_iter": ["1"], "extra_center_factor": ["1", "auto", "-2"]},
    "anomaly": {"num_trees": ["1", "5"], "num_samples_per_tree": ["2", "9"], "contamination": ["0", "0.5", "0.1"],
                "eval_metrics": ["accuracy", "[]", "x"]},
    "pca": {"num_components": ["1", "2", "5"], "subtract_mean": ["true", "false"],
            "algorithm_mode": ["regular", "randomized"], "extra_components": ["-1", "3"]},
    "knn": {"k": ["1", "2", "9"], "predictor_type": ["classifier", "regressor"], "index_metric": ["L2", "COSINE"],
            "sample_size": ["1", "10"]},
}  # fmt: skip
ANY = {"standardize": ["true", "false"], "target": ["t", "b"], "ignore_columns": ["a", "t,b"], "feature_dim": ["2", "3"],
       "seed": ["0", "2147483647"]}  # fmt: skip


@pytest.mark.matrix
@pytest.mark.parametrize("name", list(BASE))
def test_a_mutant_is_learned_or_refused_in_one_line(started_here: Train, tmp_path: Path, name: str) -> None:
    from _common import Problem  # type: ignore[import-not-found]

    learned = 0
    for seed in range(COUNT // len(BASE)):
        draw = random.Random(f"{name} {seed}")
        folder = tmp_path / str(seed)
        (folder / "train").mkdir(parents=True)
        made = table(draw)
        for number in range(draw.choice([1, 1, 2])):
            file, data = file_of(mutated(made, draw), draw)
            (folder / "train" / f"{number}-{file}").write_bytes(data)
        given = dict(zip(BASE[name][::2], BASE[name][1::2], strict=True))
        for values, most in ((VALUES[name], 2), (ANY, 1)):
            some = draw.sample(sorted(values), draw.randint(0, most))
            given |= {f"--{one}": draw.choice(values[one]) for one in some}
        places = ["--model_dir", folder / "model", "--output_data_dir", folder / "output"]
        test = ["--test", folder / "train"] if draw.random() < 0.3 else []
        arguments = ["--train", folder / "train", *test, *places, *(part for pair in given.items() for part in pair)]
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                started_here(name, *arguments)
        except Problem as problem:
            assert str(problem).strip() and "\n" not in str(problem).strip(), (seed, given, str(problem))
            assert not (folder / "model").exists(), (seed, given)
            continue
        except Exception as error:
            raise AssertionError(f"seed {seed}: {given}: {sorted(os.listdir(folder / 'train'))}") from error
        learned += 1
        said = json.loads((folder / "model" / "model.json").read_text())
        assert all(math.isfinite(value) for value in said["metrics"].values()), (seed, given, said["metrics"])
        lines = predicted(started_here(name, "--predict", folder / "train", *places))
        assert len(lines) >= said["trained"]["rows"] and "NaN" not in json.dumps(lines), (seed, given)
    assert learned >= COUNT // len(BASE) // 12, "most mutants should not be so bad"
