"""The metrics of whole jobs: found in what ranks print, written by scripts, shown by `trainshed metrics`."""

from __future__ import annotations

import json
from typing import Any

import pytest

SCRIPT = """\
import os, sys
from trainshed import metrics
rank = int(os.environ["RANK"])
for step in range(3):
    print({"loss": f"{0.5 / 10 ** step}", "epoch": f"{step}.0"}, file=sys.stderr, flush=True)
    metrics.log(reward=rank + step, step=step)
"""
LOSS = r"'loss': '([0-9.]+)"
FOR_EVER = r"^(a+)+$"


def points(job: Any, folder: str) -> list[dict[str, Any]]:
    """What is in the files of a folder of metrics, by rank."""
    files = sorted((job.base / f"output/metrics/{folder}").glob("*"))
    found = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return sorted(found, key=lambda point: point["Rank"])


@pytest.mark.spine
def test_ranks_print_and_write_metrics_and_a_cut_number_is_completed_and_said(job_tree: Any) -> None:
    job_tree.code("train.py", SCRIPT)
    job_tree.configure(
        hyperparameters={
            "sagemaker_program": "train.py",
            "trainshed_distribution": "torchrun",
            "trainshed_processes_per_host": "2",
        },
        metrics=[{"Name": "train:loss", "Regex": LOSS}, {"Name": "f1", "Regex": "f1=(.*)"}],
    )
    done = job_tree.train()

    assert done.status == 0, done.output
    found = [(one["MetricName"], one["Value"], one["Epoch"], one["Rank"]) for one in points(job_tree, "trainshed")]
    assert [one for one in found if one[0] == "train:loss"] == [
        ("train:loss", value, epoch, rank) for rank in (0, 1) for value, epoch in ((0.5, 0.0), (0.05, 1.0), (0.005, 2.0))
    ]
    written = [(one["MetricName"], one["Value"], one["Step"], one["Rank"]) for one in points(job_tree, "sagemaker")]
    assert written == [("reward", float(rank + step), step, rank) for rank in (0, 1) for step in range(3)]
    warnings = [line for line in done.stderr.splitlines() if line.startswith("trainshed: warning: metric")]
    assert warnings == ["trainshed: warning: metric 'f1': its regular expression has matched no line"]


def test_an_expression_without_end_holds_up_neither_the_log_nor_the_end(job_tree: Any) -> None:
    lines = "\\n".join(["a" * 60 + "!", "loss=0.5"])
    job_tree.code("train.sh", f"printf '{lines}\\n'\n")
    job_tree.configure(
        hyperparameters={"sagemaker_program": "train.sh"},
        metrics=[{"Name": "bad", "Regex": FOR_EVER}, {"Name": "loss", "Regex": "loss=(.*)"}],
    )
    done = job_tree.train()

    assert done.status == 0, done.output
    assert done.stdout.endswith("!\nloss=0.5\n")
    assert "metric 'bad': its regular expression took seconds on one line and was dropped" in done.stderr
    assert [point["Value"] for point in map(json.loads, _files(job_tree))] == [0.5]


def test_a_search_that_is_killed_costs_metrics_and_a_warning_never_the_job(job_tree: Any) -> None:
    job_tree.code(
        "train.sh",
        'echo loss=1\nwhile ! pkill -9 -f "[t]rainshed.metrics.searching $SM_OUTPUT_DIR"; do sleep 0.1; done\n'
        "for i in $(seq 50); do echo loss=$i; sleep 0.02; done\n",
    )
    job_tree.configure(hyperparameters={"sagemaker_program": "train.sh"})
    done = job_tree.train()

    assert done.status == 0, done.output
    assert "warning: the search for metrics has ended: its process is gone" in done.stderr
    assert done.stdout.endswith("loss=50\n")


def test_a_job_without_metrics_starts_no_search(job_tree: Any) -> None:
    job_tree.code("train.sh", 'echo hello; pgrep -f "[t]rainshed.metrics.searching $SM_OUTPUT_DIR"\n:\n')
    job_tree.configure(hyperparameters={"sagemaker_program": "train.sh"})
    done = job_tree.train()

    assert (done.status, done.stdout) == (0, "hello\n")
    assert not (job_tree.base / "output/metrics").exists()


def _files(job: Any) -> list[str]:
    return [line for file in (job.base / "output/metrics/trainshed").glob("*") for line in file.read_text().splitlines()]
