"""The sampler as a part of a run: when it starts, what belongs to it, and that it ends."""

from __future__ import annotations

import os
import types
from pathlib import Path
from typing import Any

import pytest

from support.runner_project import wait_until
from trainshed.container.sampling.system_watch import SamplingPlan, SystemWatch, sampling_plan
from trainshed.container.supervisor.watcher import FOREVER
from trainshed.contract.cluster import Cluster
from trainshed.observe.system import read_system


def plan(folder: Path, gpus: bool = False) -> SamplingPlan:
    return SamplingPlan(str(folder), "algo-1", 1, interval=0.1, bounded=False, memory_limit=0, gpus=gpus)


def run_of(stopping: bool = False) -> Any:
    return types.SimpleNamespace(ranks=[], stopping=stopping)


def test_a_run_that_is_being_stopped_gets_no_sampler_and_no_turns(tmp_path: Path) -> None:
    said: list[str] = []
    watch = SystemWatch(plan(tmp_path), said.append)
    watch.turn(run_of(stopping=True))

    assert watch.pause() == FOREVER and watch.own_processes() == () and said == []


def test_no_plan_means_no_process() -> None:
    watch = SystemWatch(None, print)
    watch.turn(run_of())

    assert watch.pause() == FOREVER and watch.own_processes() == ()


def test_what_the_sampler_has_started_belongs_to_it_and_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine with GPUs and without nvidia-ml-py: a program by the name of nvidia-smi."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/nvidia-smi"
    program.write_text("#!/bin/sh\nwhile echo '0, 87, 40, 1, 2, 3, 4, 5, 0x0'; do sleep 0.05; done\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    said: list[str] = []
    watch = SystemWatch(plan(tmp_path, gpus=True), said.append)
    watch.turn(run_of())
    try:
        wait_until(lambda: any(key[1] == "gpu" for key in read_system(str(tmp_path))), "a GPU's values")
        pids = watch.own_processes()
    finally:
        watch.run_over()

    assert len(pids) >= 2
    curves = read_system(str(tmp_path))
    assert {value for _, value in curves["algo-1", "gpu", "gpu0", "GPUUtilization"]} == {87.0}
    assert not os.path.exists(f"/proc/{pids[0]}") and watch.own_processes() == () and said == []
    wait_until(lambda: not any(_lives(pid) for pid in pids), "the end of all")


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("host", "number"), [("algo-2", 2), ("algo-12", 12), ("node7", 4), ("algo-", 4), ("algo-x", 4), ("10.0.0.1", 4)]
)
def test_a_hosts_number_is_that_of_its_name_where_it_has_the_platforms(host: str, number: int, job_tree: Any) -> None:
    job = job_tree.configure(hyperparameters={}).read()
    cluster = Cluster(hosts=("a", "b", "c", host), current_host=host, rank=3)
    found = sampling_plan(job, cluster)

    assert found is not None and (found.host, found.number) == (host, number)


@pytest.mark.parametrize(
    ("setting", "profiler", "interval"),
    [
        ("", None, (0.5, True)),
        ("auto", {"ProfilingIntervalInMilliseconds": 100}, (0.1, False)),
        ("2", {"ProfilingIntervalInMilliseconds": 100}, (2.0, False)),
        ("2", {"DisableProfiler": True}, (2.0, False)),
        ("", {"DisableProfiler": True}, None),
        ("off", {"ProfilingIntervalInMilliseconds": 100}, None),
    ],
)
def test_the_setting_wins_over_the_platforms_file(setting: str, profiler: Any, interval: Any, job_tree: Any) -> None:
    hyperparameters = {"trainshed_system_metrics": setting} if setting else {}
    files = {"profiler": profiler} if profiler is not None else {}
    job = job_tree.configure(hyperparameters=hyperparameters, **files).read()
    found = sampling_plan(job, Cluster(hosts=("algo-1",), current_host="algo-1"))

    assert (found and (found.interval, found.bounded)) == interval
