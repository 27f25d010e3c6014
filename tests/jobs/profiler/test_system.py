"""A job's machine is sampled while it runs: its files, and what a failing sampler or disk costs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trainshed.observe.system import files_below, read_system

# Waits until samples match all of WANTED and say that a second process of the job lives; the suite's limit ends it.
WAIT = """\
import os, re, subprocess, time
from pathlib import Path
child = subprocess.Popen(["sleep", "600"])
profiler = Path(os.environ["SM_OUTPUT_DIR"]) / "profiler"
def seen():
    return "".join(path.read_text() for path in profiler.rglob("*.json"))
while "/%d" % child.pid not in (text := seen()) or not all(re.search(one, text) for one in WANTED):
    sum(range(10 ** 5))
    time.sleep(0.01)
child.kill()
"""


# A tick of the kernel's clock is 10 ms: there may be none between two samples.
WORKED = r"""WANTED = ['"%s", "Dimension": "CPUUtilization", "Value": (?!0\.0,)' % name for name in ("script", "cpus")]
"""
ANY = "WANTED = []\n"
RANKS = WAIT.replace('Path(os.environ["SM_OUTPUT_DIR"]) / "profiler"', 'Path(os.environ["SAGEMAKER_BASE_DIR"]) / "p"')


@pytest.mark.spine
def test_cores_memory_disks_network_and_processes_of_a_job_are_sampled(job_tree: Any) -> None:
    job_tree.code("train.py", WORKED + WAIT)
    job_tree.configure(hyperparameters={"sagemaker_program": "train.py", "trainshed_system_metrics": "0.1"})
    done = job_tree.train()

    assert done.status == 0, done.output
    curves = read_system(str(job_tree.base / "output/profiler"))
    names = {(node, kind, dimension) for node, kind, _, dimension in curves}
    assert {
        ("algo-1", "cpu", "CPUUtilization"),
        ("algo-1", "memory", "MemoryUsedPercent"),
        ("algo-1", "memory", "MemoryUsedBytes"),
        ("algo-1", "i/o", "I/OWaitPercentage"),
        ("algo-1", "process", "CPUUtilization"),
        ("algo-1", "process", "MemoryUsedBytes"),
    } <= names
    used = [value for _, value in curves["algo-1", "cpu", "cpus", "CPUUtilization"]]
    assert all(0 <= value <= 100 for value in used) and max(used) > 0
    assert max(value for _, value in curves["algo-1", "process", "script", "CPUUtilization"]) > 0
    assert max(value for _, value in curves["algo-1", "process", "script", "MemoryUsedBytes"]) > 1 << 20
    for path in files_below(str(job_tree.base / "output/profiler")):
        with open(path) as file:
            assert all(json.loads(line) for line in file), "whole lines alone"


def test_ranks_have_names_and_so_have_those_that_an_agent_starts(job_tree: Any) -> None:
    job_tree.code("train.py", ANY + RANKS)
    job_tree.configure(
        hyperparameters={
            "sagemaker_program": "train.py",
            "trainshed_distribution": "torchrun",
            "trainshed_processes_per_host": "2",
        },
        profiler={"ProfilingIntervalInMilliseconds": 100, "ProfilingParameters": {"LocalPath": f"{job_tree.base}/p"}},
    )
    done = job_tree.train()

    assert done.status == 0, done.output
    names = {key[2] for key in read_system(str(job_tree.base / "p")) if key[1] == "process"}
    assert {"rank0", "rank1"} <= names and any(name.startswith("rank1/") for name in names)


def test_a_job_shorter_than_half_a_second_or_that_says_off_has_none(job_tree: Any) -> None:
    job_tree.code("train.sh", "sleep 0.9; pgrep -P $PPID -x train-sampler; :\n")
    job_tree.configure(hyperparameters={"sagemaker_program": "train.sh", "trainshed_system_metrics": "off"})
    done = job_tree.train()

    assert (done.status, done.stdout) == (0, "")
    assert not (job_tree.base / "output/profiler").exists()


@pytest.mark.safety
def test_a_sampler_that_is_killed_is_said_and_costs_the_job_nothing(job_tree: Any) -> None:
    job_tree.code("train.sh", "while ! pkill -9 -P $PPID -x train-sampler; do sleep 0.05; done; sleep 0.2\n")
    job_tree.configure(hyperparameters={"sagemaker_program": "train.sh"})
    done = job_tree.train()

    assert done.status == 0, done.output
    assert "warning: this machine is not sampled any more: the sampler's process is gone" in done.stderr


@pytest.mark.safety
def test_a_sampler_that_hangs_holds_up_the_end_of_a_job_for_a_second_and_is_gone(job_tree: Any) -> None:
    job_tree.code(
        "train.sh",
        "while ! pgrep -P $PPID -x train-sampler; do sleep 0.05; done\npkill -STOP -P $PPID -x train-sampler\n",
    )
    job_tree.configure(hyperparameters={"sagemaker_program": "train.sh"})
    done = job_tree.train()

    assert done.status == 0, done.output
    (pid,) = done.stdout.split()
    assert not _lives(pid)


def test_a_folder_that_cannot_be_written_is_said_once(job_tree: Any) -> None:
    job_tree.code("train.sh", "while ! pgrep -P $PPID -x train-sampler; do sleep 0.05; done; sleep 1\n")
    job_tree.configure(hyperparameters={"sagemaker_program": "train.sh", "trainshed_system_metrics": "0.1"})
    (job_tree.base / "output").mkdir(exist_ok=True)
    (job_tree.base / "output/profiler").write_text("")
    done = job_tree.train()

    assert done.status == 0, done.output
    assert done.stderr.count("samples of this machine cannot be written to") == 1


def _lives(pid: str) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
