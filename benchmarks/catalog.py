"""The catalogue with 10,000 runs: seconds of whole commands and of a search alone, beside MLflow's SQLite store.

    python benchmarks/catalog.py [--runs 10000] [--repeat 7] [--without-mlflow]

Lays folders of runs as the runner leaves them (10 hyperparameters, 5 metrics of 20 points each), indexes them, and asks
questions with `trainshed ls` as whole commands: start of Python, look at every folder, search, print. Then the equal
search in MLflow's store (`mlflow.store.tracking.sqlalchemy_store`) over a SQLite file with the same runs: as a command
of its own, and inside a process that is warm. Medians; the least stands beside them: others may use the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from _claims import claim

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "toolkit"), str(ROOT / "tests")]

from support.run_folders import STARTED, lay_run  # noqa: E402 (after the path is set)

OPTIMIZERS = ("adam", "adamw", "sgd", "lion")
QUERIES = {
    "everything, 20 newest": ["--limit", "20"],
    "loss < 0.3 and lr > 1e-4": ["--where", "loss < 0.3 and lr > 1e-4", "--sort", "loss", "--limit", "20"],
    "best(accuracy), by group": ["--group", "sweep-7", "--sort", "-best(accuracy)", "--limit", "20"],
    "text, tags and times": [
        "--where",
        'optimizer ~ "^adam" and "best" in tags and started > 2026-09-22', "--columns", "name,optimizer,min(loss)",
    ],
    "all 10,000 rows as CSV": ["--csv", "--columns", "name,state,loss,lr"],
}  # fmt: skip
SAME = "metrics.loss < 0.3 and metrics.accuracy > 0.9"
MLFLOW = """
import sys
from mlflow.entities import ViewType
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
store = SqlAlchemyStore(sys.argv[1], sys.argv[2])
found = store.search_runs([sys.argv[3]], sys.argv[4], ViewType.ACTIVE_ONLY, max_results=20, order_by=["metrics.loss ASC"])
print(len(found))
"""


def values_of(number: int) -> dict[str, Any]:
    """Hyperparameters, metrics and tags of a run: the same whenever they are asked for."""
    chance = random.Random(number)
    end, lr = chance.uniform(0.05, 2.0), 10 ** chance.uniform(-6, -1)
    curve = [end + 2.0 / (step + 1) for step in range(20)]
    accuracy = [max(0.0, 1 - value / 3) for value in curve]
    hps = {"lr": repr(lr), "optimizer": json.dumps(chance.choice(OPTIMIZERS)), "seed": str(number), "batch": "32"}
    hps |= {f"option{index}": str(chance.randrange(100)) for index in range(6)}
    metrics = {"loss": curve, "accuracy": accuracy, "val_loss": [value * 1.1 for value in curve]}
    metrics |= {
        "tokens_per_second": [1000.0 + step for step in range(20)],
        "grad_norm": [1 / (step + 1) for step in range(20)],
    }
    tags = {"group": f"sweep-{number % 40}"} | ({"best": ""} if number % 50 == 0 else {})
    return {"hps": hps, "metrics": metrics, "tags": tags, "started": STARTED + 60.0 * number}


def timed(call: Callable[[], object], repeat: int) -> tuple[str, float]:
    """Seconds and CPU seconds of this process and those that it waited for, as text; and the least CPU seconds."""
    seconds, cpu = [], []
    for _ in range(repeat):
        began, before = time.perf_counter(), sum(os.times()[:4])
        call()
        seconds.append(time.perf_counter() - began)
        cpu.append(sum(os.times()[:4]) - before)
    return f"{statistics.median(seconds):8.3f} s  (least {min(seconds):.3f}, CPU {statistics.median(cpu):.3f})", min(cpu)


def ours(folder: Path, runs: int, repeat: int) -> float:
    """Indexes the runs and asks; returns the CPU seconds of the search as a command."""
    environ = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "PYTHONPATH": str(ROOT / "toolkit")}
    entries = folder / "state/trainshed/runs"
    entries.mkdir(parents=True)
    for number in range(runs):
        place = folder / f"runs/run-{number:05d}"
        lay_run(place, **values_of(number))
        run_id = json.loads((place / "job.json").read_text())["id"]
        (entries / f"{run_id}.json").write_text(json.dumps({"run": place.name, "folder": str(place)}))
    time.sleep(6)  # what was written a moment ago is read again

    def ls(*words: str) -> str:
        return ours_of("ls", *words)

    def ours_of(*words: str) -> str:
        command = [sys.executable, "-m", "trainshed", *words]
        return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=True).stdout

    print(f"first index of {runs:,} runs          {timed(lambda: ls('--limit', '1'), 1)[0]}", flush=True)
    ls("--limit", "1")
    size = (folder / "state/trainshed/catalog/runs.sqlite").stat().st_size
    print(f"its file                             {size / 1e6:8.1f} MB")
    for name, words in QUERIES.items():
        print(f"trainshed ls: {name:<26} {timed(lambda words=words: ls(*words), repeat)[0]}", flush=True)  # type: ignore[misc]
    same = ["--where", "loss < 0.3 and accuracy > 0.9", "--sort", "loss", "--limit", "20"]
    text, search = timed(lambda: ls(*same), repeat)
    print(f"trainshed ls: {'the search below':<26} {text}", flush=True)
    for words in (["ps"], ["status"], ["status", "run-00001"]):
        text, cpu = timed(lambda words=words: ours_of(*words), repeat)  # type: ignore[misc]
        print(f"trainshed {' '.join(words):<30} {text}", flush=True)
        claim(f"catalogue: {words[0]}{' of one run' * (len(words) - 1)}, {runs:,} runs", cpu, "CPU s", limit=0.3)
    warm(folder, environ, repeat)
    return search


def warm(folder: Path, environ: dict[str, str], repeat: int) -> None:
    """The search alone, in a process that has the catalogue open."""
    from trainshed.studio.catalogue.listing import Wanted, ask
    from trainshed.studio.catalogue.open_catalogue import Catalogue

    os.chdir(folder)
    catalogue = Catalogue(environ, (), print)
    catalogue.look()
    connection = catalogue.connection
    wanted = Wanted(where="loss < 0.3 and accuracy > 0.9", sort="loss", limit=20)
    print(f"our search alone, warm process       {timed(lambda: ask(connection, wanted), repeat)[0]}", flush=True)


def theirs(folder: Path, runs: int, repeat: int) -> float:
    """The same runs in MLflow's store, and the equal search.

    MLflow makes its tables; the rows are written as `log_batch` writes them, but at once: run by run takes half an hour.
    """
    from mlflow.entities import ViewType
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    address = f"sqlite:///{folder}/mlflow.db"
    store = SqlAlchemyStore(address, str(folder / "artifacts"))
    experiment = store.create_experiment("bench")
    with closing(sqlite3.connect(folder / "mlflow.db")) as filled:
        for number in range(runs):
            told, run = values_of(number), f"{number:032x}"
            start = int(told["started"] * 1000)
            given = {
                "run_uuid": run, "name": f"run-{number:05d}", "source_type": "LOCAL",
                "user_id": "bench", "status": "FINISHED",
                "start_time": start, "end_time": start + 60_000, "lifecycle_stage": "active", "artifact_uri": f"file:///{run}",
                "experiment_id": int(experiment),
            }  # fmt: skip
            filled.execute(
                f"INSERT INTO runs ({', '.join(given)}) VALUES ({', '.join('?' * len(given))})", (*given.values(),)
            )
            points = [
                (name, value, start + step, run, step, 0)
                for name, curve in told["metrics"].items()
                for step, value in enumerate(curve)
            ]
            columns = "(key, value, timestamp, run_uuid, step, is_nan) VALUES (?, ?, ?, ?, ?, ?)"
            filled.executemany(f"INSERT INTO metrics {columns}", points)
            last = [point for point in points if point[4] == 19]
            filled.executemany(f"INSERT INTO latest_metrics {columns}", last)
            words = [(name, text, run) for name, text in told["hps"].items()]
            filled.executemany("INSERT INTO params (key, value, run_uuid) VALUES (?, ?, ?)", words)
            labels = [(name, text or "1", run) for name, text in told["tags"].items()]
            filled.executemany("INSERT INTO tags (key, value, run_uuid) VALUES (?, ?, ?)", labels)
        filled.commit()

    def search() -> None:
        found = store.search_runs([experiment], SAME, ViewType.ACTIVE_ONLY, max_results=20, order_by=["metrics.loss ASC"])
        assert len(found) == 20 or runs < 1000

    command = [sys.executable, "-c", MLFLOW, address, str(folder / "artifacts"), experiment, SAME]
    print(f"MLflow: search alone, warm process   {timed(search, repeat)[0]}", flush=True)
    text, alone = timed(lambda: subprocess.run(command, check=True, capture_output=True), repeat)
    print(f"MLflow: the search as a command      {text}", flush=True)
    return alone


def main() -> int:
    """Measures; prints one line a number."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--without-mlflow", action="store_true")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="catalog-"))
    try:
        search = ours(folder, asked.runs, asked.repeat)
        peer = None if asked.without_mlflow else theirs(folder, asked.runs, asked.repeat)
        claim(f"catalogue: a search in {asked.runs:,} runs", search, "CPU s", limit=0.3, peer=peer, peer_name="MLflow")
    finally:
        os.chdir("/")
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
