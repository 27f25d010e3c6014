"""Which CPUs ranks are bound to, on machines made of files, and on this one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from trainshed.container.launchers.binding import Topology, bind, format_list, parse_list, read_topology


def machine(root: Path, nodes: int, cores: int, threads: int = 2, gpus: tuple[int, ...] = ()) -> str:
    """Files of a machine as Linux numbers it: all first threads, node after node, then all second ones."""
    total = nodes * cores
    for cpu in range(total * threads):
        place = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        place.mkdir(parents=True)
        (place / "core_id").write_text(f"{cpu % cores}\n")
        (place / "physical_package_id").write_text(f"{cpu % total // cores}\n")
    for node in range(nodes):
        place = root / f"sys/devices/system/node/node{node}"
        place.mkdir(parents=True)
        spans = [f"{thread * total + node * cores}-{thread * total + (node + 1) * cores - 1}" for thread in range(threads)]
        (place / "cpulist").write_text(",".join(spans) + "\n")
    for number, node in enumerate(gpus):
        address = f"0000:{number + 16:02x}:00.0"
        (root / "proc/driver/nvidia/gpus" / address).mkdir(parents=True)
        place = root / "sys/bus/pci/devices" / address
        place.mkdir(parents=True)
        (place / "numa_node").write_text(f"{node}\n")
    return f"{root}/"


def bound(root: str, how: str, ranks: int, allowed: Any, environ: dict[str, str] | None = None) -> list[str]:
    return [format_list(cpus) for cpus in bind(how, read_topology(environ or {}, allowed, root), ranks)]


def test_cores_are_shared_evenly_and_hyper_threads_stay_together(tmp_path: Path) -> None:
    root = machine(tmp_path, nodes=2, cores=4)

    assert bound(root, "cores", 4, range(16)) == ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"]
    assert bound(root, "cores", 3, range(16)) == ["0-1,8-9", "2-4,10-12", "5-7,13-15"]
    assert bound(root, "cores", 16, range(16))[:3] == ["0", "8", "1"]


def test_each_rank_gets_its_share_of_the_node_that_its_gpu_is_at(tmp_path: Path) -> None:
    root = machine(tmp_path, nodes=2, cores=4, gpus=(1, 1, 0, 0))

    assert bound(root, "numa", 4, range(16)) == ["4-5,12-13", "6-7,14-15", "0-1,8-9", "2-3,10-11"]
    assert bound(root, "numa", 1, range(16)) == ["4-7,12-15"]


def test_visible_devices_choose_the_gpus(tmp_path: Path) -> None:
    root = machine(tmp_path, nodes=2, cores=4, gpus=(1, 1, 0, 0))

    assert bound(root, "numa", 2, range(16), {"CUDA_VISIBLE_DEVICES": "3,0"}) == ["0-3,8-11", "4-7,12-15"]


@pytest.mark.parametrize("gpus", [(), (-1, -1, -1, -1)])
def test_without_a_gpu_that_tells_ranks_are_spread_over_the_nodes(tmp_path: Path, gpus: tuple[int, ...]) -> None:
    root = machine(tmp_path, nodes=2, cores=4, gpus=gpus)

    assert bound(root, "numa", 4, range(16)) == ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"]


@pytest.mark.parametrize("how", ["cores", "numa"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_ranks_never_share_a_cpu_and_never_get_one_that_is_not_allowed(tmp_path: Path, how: str, ranks: int) -> None:
    root = machine(tmp_path, nodes=2, cores=8, gpus=(0, 0, 1, 1, 0, 0, 1, 1))
    allowed = {1, 2, 3, 5, 6, 7, 8, 9, 12, 17, 18, 24, 25, 30}
    given = bind(how, read_topology({}, allowed, root), ranks)

    assert all(given) and len(given) == ranks
    assert sum(len(cpus) for cpus in given) == len(set().union(*given))
    assert set().union(*given) <= allowed


@pytest.mark.parametrize("how", ["cores", "numa"])
def test_fewer_cpus_than_ranks_bind_nobody(tmp_path: Path, how: str) -> None:
    assert bound(machine(tmp_path, nodes=2, cores=1), how, 5, range(4)) == [""] * 5


def test_a_machine_that_says_nothing_has_one_core_a_cpu(tmp_path: Path) -> None:
    assert read_topology({}, [4, 5], f"{tmp_path}/") == Topology({0: ((4,), (5,))})
    assert bound(f"{tmp_path}/", "numa", 2, [4, 5]) == ["4", "5"]


def test_nothing_is_bound_unless_asked(tmp_path: Path) -> None:
    assert bound(machine(tmp_path, nodes=1, cores=4), "none", 2, range(8)) == ["", ""]


@pytest.mark.parametrize("text", ["0", "0-3,8", "0-1,4-7,9"])
def test_lists_of_cpus_are_read_and_written_as_the_kernel_does(text: str) -> None:
    assert format_list(parse_list(text + "\n")) == text


SHOW = "import os\nprint('RANK', os.environ['RANK'], sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'])\n"


@pytest.mark.parametrize("how", ["cores", "numa"])
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_ranks_run_on_their_cpus_and_openmp_follows(job_tree: Any, how: str) -> None:
    job_tree.code("train.py", SHOW)
    job_tree.configure(
        hyperparameters={"trainshed_distribution": "torchrun", "trainshed_processes_per_host": "2", "trainshed_bind": how}
    )
    done = job_tree.train()
    given = bind(how, read_topology({}, os.sched_getaffinity(0)), 2)

    assert done.status == 0, done.output
    for rank in range(2):
        (line,) = [line for line in done.stdout.splitlines() if f"RANK {rank} " in line]
        assert f"RANK {rank} {list(given[rank])} " in line
        assert int(line.split()[-1]) <= len(given[rank])
    assert f"CPUs       rank 0: {format_list(given[0])}; rank 1:" in job_tree.train("--dry-run").stdout


def test_more_ranks_than_cpus_are_said_and_run_unbound(job_tree: Any) -> None:
    count = len(os.sched_getaffinity(0)) + 1
    job_tree.code("train.py", SHOW)
    job_tree.configure(
        hyperparameters={
            "trainshed_distribution": "torchrun",
            "trainshed_processes_per_host": str(count),
            "trainshed_bind": "cores",
        }
    )
    shown = job_tree.train("--dry-run").stdout

    assert "there are fewer CPUs than ranks, so no rank is bound" in shown and "CPUs       rank" not in shown


def test_binding_where_trainshed_starts_no_ranks_is_warned_of(job_tree: Any) -> None:
    job_tree.code("train.py", "")
    job_tree.configure(hyperparameters={"trainshed_bind": "cores"})

    assert "trainshed_bind = cores is for ranks that trainshed itself starts" in job_tree.train("--dry-run").stdout
