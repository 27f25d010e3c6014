"""Tables and hyperparameters that nobody has written by hand: tabular.py trains a usable model, or says what is wrong.

`TRAINSHED_MUTANTS=1000` tries as many; a failure names its seed. Mutants have a process of their own: what they do to native
libraries is no other test's business.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

from jobs.entrypoints import programs
from support.paths import ROOT

PROGRAM = "tabular.py"
COUNT = int(os.environ.get("TRAINSHED_MUTANTS") or 120)
GROUPS = 2
CELLS = ["", "NA", "nan", "?", "inf", "-inf", "1e400", "1e39", "x", "-1", "0", "2", "7", '"', "'", "a,b", '"a,b"', "\x00",
         "é", " 3 ", "1:2", "0x10", "1_000", "true", "-0", "1e-320", "\t", "+3", "#", "12abc", "None", "٣"]  # fmt: skip
VALUES: dict[str, list[str]] = {
    "objective": ["reg:squarederror", "binary:logistic", "multi:softmax", "multi:softprob", "reg:gamma", "reg:tweedie",
                  "count:poisson", "reg:logistic", "reg:squaredlogerror", "reg:absoluteerror", "binary:hinge", "reg:linear",
                  "binary:logitraw", "rank:pairwise"],
    "booster": ["gbtree", "dart", "gblinear"],
    "tree_method": ["auto", "hist", "approx", "exact", "gpu_hist"],
    "eval_metric": ["rmse", "auc", "mlogloss,merror", "error", "mae,rmse", "ndcg", "error@0.7", "nonsense", "aucpr"],
    "num_class": ["2", "3", "1", "50", "x"],
    "eta": ["0", "0.3", "1", "1e-9"],
    "max_depth": ["0", "1", "60", "-1"],
    "max_bin": ["2", "256", "65535"],
    "subsample": ["0.5", "0.0001", "1"],
    "colsample_bytree": ["0.0001", "0.5"],
    "colsample_bynode": ["0.3"],
    "lambda": ["0", "1e30"],
    "alpha": ["0", "5", "1e30"],
    "base_score": ["0.5", "0", "-3", "1e38", "nan"],
    "scale_pos_weight": ["0", "10", "1e30"],
    "min_child_weight": ["0", "1e20"],
    "max_delta_step": ["0", "0.7"],
    "grow_policy": ["lossguide"],
    "max_leaves": ["0", "2"],
    "early_stopping_rounds": ["1", "2"],
    "validation_fraction": ["0", "0.3", "0.9", "0.01"],
    "csv_weights": ["0", "1"],
    "target": ["t", "b", "missing"],
    "categorical_columns": ["a", "a,b", "f0"],
    "ignore_columns": ["a", "b,c", "t"],
    "num_parallel_tree": ["3"],
    "rate_drop": ["0.5", "1"],
    "seed": ["0", "2147483647"],
}  # fmt: skip


def table(draw: random.Random) -> list[list[str]]:
    """Rows of cells, the first of which is the target; perhaps with names."""
    width, rows = draw.choice([1, 2, 3, 6]), draw.choice([1, 2, 5, 30, 60])
    kind = draw.choice(["number", "binary", "classes", "text", "positive"])
    target: dict[str, Callable[[], Any]] = {
        "number": lambda: round(draw.gauss(0, 3), 3),
        "binary": lambda: draw.randrange(2),
        "classes": lambda: draw.randrange(4),
        "text": lambda: draw.choice(["yes", "no"]),
        "positive": lambda: round(draw.random() + 0.1, 3),
    }
    made = [[str(target[kind]())] + [str(round(draw.gauss(0, 2), 3)) for _ in range(width)] for _ in range(rows)]
    if draw.random() < 0.3:
        for row in made:
            row[-1] = draw.choice(["red", "green", "blue"])
    if draw.random() < 0.5:
        made.insert(0, ["t", *"abcdef"[:width]])
    return made


def mutated(rows: list[list[str]], draw: random.Random) -> list[list[str]]:
    """The rows with some of them changed."""
    rows = [list(row) for row in rows]
    for _ in range(draw.choice([0, 0, 1, 1, 2, 5])):
        row = draw.choice(rows)
        what = draw.randrange(6)
        if what == 0 and row:
            row[draw.randrange(len(row))] = draw.choice(CELLS)
        elif what == 1:
            row.append(draw.choice(CELLS))
        elif what == 2 and len(row) > 1:
            row.pop()
        elif what == 3:
            rows.insert(draw.randrange(len(rows) + 1), draw.choice([[], [""], list(row)]))
        elif what == 4 and len(row) > 1:
            column = draw.randrange(len(row))
            for other in rows:
                if column < len(other):
                    other[column] = draw.choice(CELLS)
        elif len(rows) > 1:
            rows.remove(row)
    return rows


def file_of(rows: list[list[str]], draw: random.Random) -> tuple[str, bytes]:
    """(name, content) of a file with these rows, perhaps damaged."""
    kind = draw.choice(["csv", "csv", "csv", "libsvm", "csv.gz", "parquet"])
    if kind == "libsvm":
        lines = [" ".join([row[0] if row else "", *(f"{at}:{cell}" for at, cell in enumerate(row[1:]))]) for row in rows]
        data = "\n".join(lines).encode()
    elif kind == "parquet":
        import pyarrow
        from pyarrow import parquet

        width = min((len(row) for row in rows if row), default=1)
        cells = [row for row in rows[1:] if len(row) >= width]
        named: dict[str, Any] = {}
        for at in range(width):
            values = [row[at] for row in cells]
            try:
                named[f"{'tabcdefghij'[at % 11]}"] = [float(value) for value in values]
            except ValueError:
                named[f"{'tabcdefghij'[at % 11]}"] = values
        held = io.BytesIO()
        parquet.write_table(pyarrow.table(named), held)
        data = held.getvalue()
    else:
        data = draw.choice(["\n", "\r\n"]).join(",".join(row) for row in rows).encode()
        data = (b"\xef\xbb\xbf" if draw.random() < 0.1 else b"") + data
    if kind == "csv.gz":
        data = gzip.compress(data)
    if draw.random() < 0.15 and data:
        spoilt = bytearray(data)
        for _ in range(draw.choice([1, 3])):
            spoilt[draw.randrange(len(spoilt))] = draw.randrange(256)
        data = bytes(spoilt)
    if draw.random() < 0.08:
        data = data[: draw.randrange(len(data) + 1)]
    return f"rows.{kind}", data


def arguments(draw: random.Random) -> list[str]:
    """Hyperparameters, most of them such as people give."""
    names = draw.sample(sorted(VALUES), draw.choice([0, 1, 2, 3, 6]))
    given = {name: draw.choice(VALUES[name]) for name in names}
    if draw.random() < 0.4:
        given["objective"] = draw.choice(VALUES["objective"])
    return [part for name, value in given.items() for part in (f"--{name}", value)]


def work(group: int) -> None:
    """What the process of a group does, in a folder of its own."""
    sys.path.insert(0, str(programs.ENTRYPOINTS))
    import tabular  # type: ignore[import-not-found]
    from _common import Problem  # type: ignore[import-not-found]

    top, trained = Path.cwd(), 0
    for seed in range(group, COUNT, GROUPS):
        draw = random.Random(f"table {seed}")
        folder = top / str(seed)
        (folder / "train").mkdir(parents=True)
        os.chdir(folder)
        rows = table(draw)
        for number in range(draw.choice([1, 1, 2])):
            name, data = file_of(mutated(rows, draw), draw)
            (folder / "train" / f"{number}-{name}").write_bytes(data)
        given = ["--train", "train", "--num_round", "3", "--verbosity", "0", *arguments(draw)]
        sys.argv = [PROGRAM, *given]
        print(f"seed {seed}: {given}: {sorted(os.listdir('train'))}", flush=True)
        try:
            tabular.main()
        except Problem as problem:
            assert str(problem).strip() and "\n" not in str(problem).strip(), problem
            assert "[bt]" not in str(problem) and "Traceback" not in str(problem), problem
            assert not (folder / "model").exists()
            continue
        trained += 1
        said = json.loads((folder / "model" / "model.json").read_text())
        assert all(math.isfinite(value) for value in said["metrics"].values()), said["metrics"]
        booster = tabular.xgboost.Booster(model_file=folder / "model" / "xgboost-model")
        width = len(said["features"]["columns"]) or said["features"]["width"]
        names, types = booster.feature_names, booster.feature_types
        zeros = tabular.xgboost.DMatrix(
            numpy.zeros((1, width)), feature_names=names, feature_types=types, enable_categorical=True
        )
        assert numpy.isfinite(booster.predict(zeros)).all(), "its predictions are not numbers"
    assert trained >= COUNT // GROUPS // 8, "most mutants should not be so bad"


@pytest.mark.parametrize("group", range(GROUPS))
def test_a_mutant_trains_or_is_refused_in_one_line(group: int, tmp_path: Path) -> None:
    pytest.importorskip("xgboost")
    paths = os.pathsep.join([str(programs.TOOLKIT), str(ROOT / "tests")])
    code = f"from jobs.entrypoints.test_table_mutants import work; work({group})"
    variables = programs.environment(PYTHONPATH=paths, SM_CHECKPOINT_DIR=str(tmp_path / "absent"))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=variables, capture_output=True, text=True)

    last = [line for line in done.stdout.splitlines() if line.startswith("seed ")][-1:]
    assert done.returncode == 0, f"{last}\n{done.stderr[-3000:]}"
