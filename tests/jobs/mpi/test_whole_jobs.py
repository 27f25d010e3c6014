"""Whole MPI jobs on one host and several. Each host is a `train` process of its own on a loopback address of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.hosts import SOON_GONE, STOPPED_BEFORE_LAUNCH, TOOLKIT, Hosts, ended
from trainshed.machine.network import interface_to

STARTED = "import os, sys, time, signal\nprint('started', os.environ['RANK'], flush=True)\n"
WAITS = STARTED + "time.sleep(600)\n"
# Hosts of one name on one machine: Open MPI takes their shared memory for the same, which real hosts never share.
NO_SHARED_MEMORY = "--mca btl self,tcp --mca coll ^sm,han,xhc,acoll"

pytestmark = pytest.mark.skipif(
    "Open MPI" not in subprocess.getoutput("mpirun --version 2>&1"), reason="Open MPI's mpirun is not installed"
)


class MpiHosts(Hosts):
    """N hosts of one MPI job, two ranks each. One host is nobody's but its own; several are 127.0.0.2 and following."""

    def __init__(self, folder: Path, count: int, script: str, **hyperparameters: str) -> None:
        names = [f"127.0.0.{number + 2}" for number in range(count)] if count > 1 else ["algo-1"]
        given = {
            "sagemaker_mpi_enabled": "true",
            "sagemaker_mpi_num_of_processes_per_host": "2",
            "sagemaker_mpi_custom_mpi_options": json.dumps(NO_SHARED_MEMORY if count > 1 else ""),
            "trainshed_host_timeout_seconds": "180",
            **hyperparameters,
        }
        super().__init__(folder, names, script, given, network_interface_name=interface_to("") or "lo")
        if count == 1:
            (self.base(0) / "input/config/resourceconfig.json").unlink()

    def wait_until_started(self) -> None:
        """Until every rank of every host has printed its first line."""
        self.wait_for("started", 2)


@pytest.fixture
def hosts() -> Iterator[Callable[..., MpiHosts]]:
    """Makes jobs, and ends what they leave."""
    folder = Path(tempfile.mkdtemp(prefix="mpi"))  # a short path: sockets live in it
    with ended() as made:

        def make(count: int, script: str, **hyperparameters: str) -> MpiHosts:
            made.append(job := MpiHosts(folder, count, script, **hyperparameters))
            return job

        yield make
    shutil.rmtree(folder)


def leftovers(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir() if not entry.name.startswith("host")]


@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.spine), 3])
def test_all_ranks_of_all_hosts_run_and_succeed(hosts, count):
    job = hosts(
        count,
        STARTED
        + "e = os.environ\n"
        + "print('numbers', *(e[n] for n in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'GROUP_RANK')),"
        + " e['SM_CURRENT_HOST'], e['MASTER_ADDR'], e.get('TMPDIR'), e.get('TRAINSHED_MPI_SOCKET'), flush=True)\n",
    )
    job.start()
    assert job.exit_codes() == [0] * count, job.all_output()
    for number, name in enumerate(job.names):
        assert job.succeeded(number) and not job.failure(number)
        for local in range(2):
            rank = 2 * number + local
            master = job.names[0] if count > 1 else "127.0.0.1"
            line = f"[{name}:{rank}] numbers {rank} {2 * count} {local} 2 {number} {name} {master} {job.folder} None"
            assert line in job.output(number).splitlines()
            log = job.base(number) / f"output/data/logs/{name}.rank{rank}.log"
            assert log.read_text().startswith(f"started {rank}\n")
    assert leftovers(job.folder) == []


@pytest.mark.parametrize(("count", "rank"), [(1, 1), (2, 0), pytest.param(2, 3, marks=pytest.mark.spine)])
def test_a_rank_that_raises_fails_every_host_with_its_own_reason(hosts, count, rank):
    job = hosts(count, STARTED + f"if os.environ['RANK'] == '{rank}': raise ValueError('bad batch')\ntime.sleep(600)\n")
    job.start()
    assert job.exit_codes() == [1] * count
    for number in range(count):
        assert job.failure(number).startswith(
            f"UserError: rank {rank} on {job.names[rank // 2]} exited with 1: ValueError: bad batch\n  at train.py:3"
        )
        assert not job.succeeded(number)
    assert leftovers(job.folder) == []


@pytest.mark.parametrize(
    ("end", "status", "how"),
    [("os._exit(42)", 42, "exited with 42"), ("os.kill(os.getpid(), signal.SIGKILL)", 137, "was killed by SIGKILL")],
)
def test_the_exact_way_in_which_a_rank_ended_is_every_hosts_exit_status(hosts, end, status, how):
    job = hosts(2, STARTED + f"if os.environ['RANK'] == '2': {end}\ntime.sleep(600)\n")
    job.start()
    assert job.exit_codes() == [status] * 2
    for number in range(2):
        assert f"rank 2 on {job.names[1]} {how}" in job.failure(number).splitlines()[0]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_host_that_vanishes_ends_the_other_and_is_named(hosts, victim):
    job = hosts(2, WAITS)
    job.start(code=SOON_GONE)
    job.wait_until_started()
    job.processes[victim].send_signal(signal.SIGKILL)
    codes = job.exit_codes()
    assert codes[1 - victim] == 69
    first = job.failure(1 - victim).splitlines()[0]
    assert first.startswith(f"ClusterError: {job.names[victim]}") and "vanished" in first
    assert not job.succeeded(1 - victim)


def test_mpirun_that_is_killed_fails_every_host_and_is_named(hosts):
    job = hosts(2, WAITS)
    job.start()
    job.wait_until_started()
    children = Path(f"/proc/{job.processes[0].pid}/task/{job.processes[0].pid}/children").read_text().split()
    mpirun = [int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text() in ("mpirun\n", "prterun\n")]
    os.kill(mpirun[0], signal.SIGKILL)
    assert job.exit_codes() == [137, 137]
    for number in range(2):
        assert job.failure(number).startswith("LaunchError: mpirun on 127.0.0.2 was killed by SIGKILL")


def test_a_stop_signal_gives_every_rank_the_jobs_grace_and_comes_once(hosts):
    # Rank 0 takes longer than the second that mpirun would give it, and outlives the others, which have no handler.
    handler = (
        "def stop(*_):\n    print('saving', flush=True)\n    time.sleep(2.5)\n"
        "    print('saved', flush=True)\n    os._exit(0)\n"
        "if os.environ['RANK'] == '0': signal.signal(signal.SIGTERM, stop)\n"
    )
    job = hosts(2, "import os, signal, time\n" + handler + WAITS)
    job.start()
    job.wait_until_started()
    job.processes[1].send_signal(signal.SIGTERM)
    assert job.exit_codes() == [143, 143]  # as if the ranks without a handler were alone
    assert re.findall(r"\[127.0.0.2:0\] sav\w+", job.output(0)) == ["[127.0.0.2:0] saving", "[127.0.0.2:0] saved"]
    assert all(job.failure(number).startswith("Interrupted: rank ") for number in range(2))
    assert leftovers(job.folder) == []


def test_ranks_that_end_in_time_after_a_stop_signal_have_stopped(hosts):
    job = hosts(1, "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n" + WAITS)
    job.start()
    job.wait_until_started()
    job.processes[0].send_signal(signal.SIGTERM)
    assert job.exit_codes() == [0]
    assert not job.failure(0) and not job.succeeded(0)


@pytest.mark.parametrize(("count", "signalled"), [(1, 0), (2, 1)])
def test_a_stop_signal_before_there_is_any_rank_ends_the_job(hosts, count, signalled):
    job = hosts(count, WAITS)
    mpirun = job.folder / "hostbin/mpirun"
    mpirun.parent.mkdir()
    mpirun.write_text("#!/bin/sh\necho mpirun-runs\nexec sleep 600\n")
    mpirun.chmod(0o755)
    job.start(PATH=f"{mpirun.parent}:{os.environ['PATH']}")
    deadline = time.monotonic() + 120
    while "mpirun-runs" not in job.output(0):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    job.processes[signalled].send_signal(signal.SIGTERM)
    assert job.exit_codes() == [128 + signal.SIGTERM] * count
    assert not any(map(job.succeeded, range(count)))
    for number in range(count):
        assert job.failure(number).startswith("Interrupted: ")
        assert "stopped by SIGTERM before MPI had started any rank" in job.failure(number).splitlines()[0]
        assert count == 1 or "(127.0.0.3: " in job.failure(number)
    assert leftovers(job.folder) == []


def test_ranks_that_never_come_are_missed(hosts):
    job = hosts(1, STARTED, trainshed_host_timeout_seconds="2")
    mpirun = job.folder / "hostbin/mpirun"
    mpirun.parent.mkdir()
    mpirun.write_text("#!/bin/sh\nexec sleep 600\n")
    mpirun.chmod(0o755)
    job.start(PATH=f"{mpirun.parent}:{os.environ['PATH']}")
    assert job.exit_codes() == [69]
    assert job.failure(0).startswith("ClusterError: mpirun has not started the ranks of algo-1 within 2 s")


def test_what_mpirun_says_of_its_options_is_every_hosts_reason(hosts):
    job = hosts(2, STARTED, sagemaker_mpi_custom_mpi_options="--frobnicate")
    job.start()
    assert all(code != 0 for code in job.exit_codes())
    for number in range(2):
        first = job.failure(number).splitlines()[0]
        assert first.startswith("LaunchError: mpirun on 127.0.0.2 exited with") and "--frobnicate" in first
    assert "started" not in job.all_output()


def test_mpirun_that_starts_nothing_is_a_failure(hosts):
    job = hosts(1, STARTED, sagemaker_mpi_custom_mpi_options="--version")
    job.start()
    assert job.exit_codes() == [1]
    assert job.failure(0).startswith("LaunchError: mpirun ended without starting all ranks")


@pytest.mark.safety
def test_hosts_whose_ranks_are_never_started_are_no_success(hosts):
    """Open MPI loses a daemon that finds too few cores to bind to, and ends; no rank was there that could have failed."""
    many = str((os.cpu_count() or 1) + 2)
    options = {"sagemaker_mpi_custom_mpi_options": "--bind-to core", "sagemaker_mpi_num_of_processes_per_host": many}
    job = hosts(2, STARTED, **options)
    job.start()
    assert all(code != 0 for code in job.exit_codes()), job.all_output()
    assert all(job.failure(number).startswith("LaunchError: mpirun ") for number in range(2))
    assert "started" not in job.all_output().replace("has not started", "") and "SUCCESS" not in job.all_output()


def test_the_users_options_decide_where_ranks_go_and_labels_follow(hosts):
    job = hosts(2, STARTED, sagemaker_mpi_custom_mpi_options="-np 3 --map-by node")
    job.start()
    assert job.exit_codes() == [0, 0]
    assert sorted(line for line in job.all_output().splitlines() if "started" in line) == [
        "[127.0.0.2:0] started 0",
        "[127.0.0.2:2] started 2",
        "[127.0.0.3:1] started 1",
    ]


def test_variables_among_the_options_reach_the_ranks_of_all_hosts(hosts):
    job = hosts(
        2,
        "import os\nprint('got', os.environ['COLOUR'], os.environ['NCCL_DEBUG'], flush=True)\n",
        sagemaker_mpi_custom_mpi_options="-x COLOUR='light blue' --NCCL_DEBUG WARN",
    )
    job.start()
    assert job.exit_codes() == [0, 0]
    assert job.all_output().count("got light blue WARN\n") == 4


def test_ranks_keep_the_cpus_that_open_mpi_binds_them_to(hosts):
    job = hosts(
        1,
        "import os\nprint('cpus', len(os.sched_getaffinity(0)), flush=True)\n",
        sagemaker_mpi_custom_mpi_options="-np 1 --bind-to hwthread",
    )
    job.start()
    assert job.exit_codes() == [0]
    assert "cpus 1\n" in job.output(0)


def test_a_host_without_ranks_waits_for_the_others(hosts):
    wait = "while not os.path.exists('go'): time.sleep(0.05)\n"
    job = hosts(2, STARTED + wait, sagemaker_mpi_custom_mpi_options="-np 2")
    job.start()
    job.wait_for_host(0, "started 1")
    assert job.processes[1].poll() is None
    (job.base(0) / "code/go").touch()
    assert job.exit_codes() == [0, 0]
    assert "started" not in job.output(1) and all(job.succeeded(number) for number in range(2))


def test_a_program_of_mpi_itself_computes_over_all_hosts(hosts, tmp_path):
    if shutil.which("mpicc") is None:
        pytest.skip("there is no mpicc to build an MPI program with")
    source = tmp_path / "sum.c"
    source.write_text(
        "#include <mpi.h>\n#include <stdio.h>\nint main(int c, char **v) { int r, s; MPI_Init(&c, &v);\n"
        "MPI_Comm_rank(MPI_COMM_WORLD, &r); MPI_Allreduce(&r, &s, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);\n"
        'printf("sum %d\\n", s); MPI_Finalize(); return 0; }\n'
    )
    subprocess.run(["mpicc", "-o", str(tmp_path / "sum"), str(source)], check=True)
    job = hosts(2, "", sagemaker_program="sum")
    for number in range(2):
        shutil.copy(tmp_path / "sum", job.base(number) / "code/sum")
    job.start()
    assert job.exit_codes() == [0, 0]
    assert job.all_output().count("sum 6\n") == 4


def test_mpi4py_computes_over_all_hosts_and_a_rank_that_raises_ends_the_rest(hosts):
    pytest.importorskip("mpi4py", reason="mpi4py is an extra package")
    job = hosts(
        2,
        "from mpi4py import MPI\nworld = MPI.COMM_WORLD\nprint('sum', world.allreduce(world.rank), flush=True)\n"
        "world.Barrier()  # all have said it\nif world.rank == 3: raise ValueError('bad batch')\nworld.Barrier()\n",
    )
    job.start()
    assert job.exit_codes() == [1, 1]
    assert job.all_output().count("sum 6\n") == 4
    for number in range(2):
        assert job.failure(number).startswith("UserError: rank 3 on 127.0.0.3 exited with 1: ValueError: bad batch\n")


def test_a_dry_run_shows_mpirun_on_the_first_host_and_the_rank_on_all(hosts):
    job = hosts(2, STARTED)
    for number in range(2):
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(TOOLKIT),
            "SAGEMAKER_BASE_DIR": str(job.base(number)),
        }
        command = [sys.executable, "-m", "trainshed.container.main", "--dry-run"]
        shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        assert ("--host 127.0.0.2:2,127.0.0.3:2" in shown) == (number == 0)
        assert re.search(r"^each rank .*train\.py$", shown, re.MULTILINE) and "4 rank(s) on 2 host(s)" in shown


@pytest.mark.torch
def test_torch_distributed_finds_its_job_in_the_environment(hosts):
    job = hosts(
        2,
        "import torch, torch.distributed as d\nd.init_process_group('gloo')\nx = torch.tensor([float(d.get_rank())])\n"
        "d.all_reduce(x)\nprint('sum', x.item(), flush=True)\nd.destroy_process_group()\n",
        sagemaker_mpi_num_of_processes_per_host="1",
    )
    job.start()
    assert job.exit_codes() == [0, 0]
    assert job.all_output().count("sum 1.0\n") == 2


@pytest.mark.parametrize("victim", [0, 1])
def test_a_stop_between_the_meeting_of_the_hosts_and_the_start_of_the_ranks_ends_all(hosts, victim):
    job = hosts(2, STARTED + "time.sleep(600)\n")
    job.start(1 - victim)
    job.start(victim, code=STOPPED_BEFORE_LAUNCH)
    assert job.exit_codes() == [143, 143], job.all_output()
    for number in range(2):
        assert job.failure(number).startswith(f"Interrupted: {job.names[victim]} was stopped by SIGTERM"), job.all_output()
        assert not job.succeeded(number)
    assert leftovers(job.folder) == []
