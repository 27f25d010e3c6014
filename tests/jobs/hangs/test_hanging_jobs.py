"""Jobs that hang for real, and jobs that only look like it. Each host is a `train` process on a loopback address."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.hosts import ALOUD, TOOLKIT, Hosts, ended
from trainshed.container.hangs.activity import activity
from trainshed.container.hangs.movement import ranks_below
from trainshed.container.hangs.stacks import ask, main_thread

# Until the test has seen that every rank is at the place where it will stay, and says so, nothing counts as standing still.
NOISE = """\
import os, threading, time
def noise():
    while not os.path.exists("../../hush"):
        print(".", flush=True)
        time.sleep(0.05)
    open("../../hushed", "w").close()
if os.environ.get("RANK", "0") == "0": threading.Thread(target=noise, daemon=True).start()
"""
AFTER_NOISE = NOISE.count("\n") + 1  # the next line

# Rank 3 leaves out one all_reduce and goes on to the barrier, where the others will never come.
SKIPS = f"""\
{NOISE}
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
value = torch.ones(1)
dist.all_reduce(value)
print("ready", flush=True)


def reduce():
    dist.all_reduce(value)


if dist.get_rank() != 3:
    reduce()
dist.barrier()
"""
REDUCE, BARRIER = (f"train.py:{AFTER_NOISE + line}" for line in (11, 16))
SKIPPED = f"rank 3 on {{host}} waits in barrier at {BARRIER} while ranks 0, 1, 2 wait in all_reduce at {REDUCE}"


# A line at which a rank stays until the test lets it go on; the pipes lie two folders above the code.
STAYS = "open('../../stay' + os.environ.get('RANK', '0')).read()\n"


class Stay:
    """Keeps ranks at the line `STAYS`. Once made, all of them are there; `close` lets them go on."""

    def __init__(self, job: Job, ranks: int) -> None:
        self.writers: list[int] = []
        deadline = time.monotonic() + 180
        for rank in range(ranks):
            # Opening the writer's end succeeds only once the rank has the reader's end, or waits in opening it.
            while True:
                assert time.monotonic() < deadline, job.output()
                try:
                    self.writers.append(os.open(job.folder / f"stay{rank}", os.O_WRONLY | os.O_NONBLOCK))
                    break
                except OSError as error:
                    assert error.errno == errno.ENXIO
                    time.sleep(0.05)

    def close(self) -> None:
        """The ranks go on."""
        for writer in self.writers:
            os.close(writer)


class Job(Hosts):
    """A job of `hosts` hosts, 127.0.0.1 and on. Hosts that are not to be started at once are left to `launch`."""

    def __init__(
        self, folder: Path, script: str, hosts: int, ranks: int, at_once: int | None = None, **settings: object
    ) -> None:
        for rank in range(hosts * max(ranks, 1)):
            os.mkfifo(folder / f"stay{rank}")
        given = {"distribution": "torchrun", "processes_per_host": ranks} if ranks else {}
        names = [f"127.0.0.{number + 1}" for number in range(hosts)]
        super().__init__(folder, names, script, {f"trainshed_{name}": value for name, value in (given | settings).items()})
        for _ in range(hosts if at_once is None else at_once):
            self.launch()

    def launch(self) -> None:
        """Starts the next host."""
        self.start(len(self.processes), HOME=str(self.folder), code=ALOUD)

    def hush(self) -> None:
        """Ends the noise."""
        (self.folder / "hush").touch()
        deadline = time.monotonic() + 180
        while not (self.folder / "hushed").exists():
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.05)

    def places(self) -> dict[int | None, str]:
        """What the ranks are doing now, and where, as their stacks tell."""
        found: dict[int | None, str] = {}
        for number, process in self.processes.items():
            for rank in ranks_below(process.pid, None):
                for asked in ask([rank.pid]):
                    deadline = time.monotonic() + 180
                    while not asked.whole():
                        assert time.monotonic() < deadline, self.output()
                        time.sleep(0.05)
                    frames = main_thread(asked.text())
                    doing = activity(frames, str(self.base(number) / "code")) if frames else None
                    found[rank.rank] = f"{doing.what} at {doing.place}" if doing else ""
        return found

    def report(self, number: int = 0, count: int = 1) -> str:
        """The last of `count` reports that this host has written."""
        paths = sorted((self.base(number) / "output/data").glob("hang-*.txt"))
        assert len(paths) == count
        return paths[-1].read_text()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Starts jobs, and ends what they leave."""
    with ended() as made:

        def start(script: str, *, hosts: int = 1, ranks: int = 1, **settings: Any) -> Job:
            made.append(job := Job(tmp_path, script, hosts, ranks, **settings))
            return job

        yield start


@pytest.mark.torch
@pytest.mark.spine
def test_a_rank_that_skips_an_all_reduce_is_named_with_its_line(start: Callable[..., Job]) -> None:
    job = start(SKIPS, hosts=2, ranks=2, hang_seconds=4)
    job.wait_for("ready", 2)
    deadline = time.monotonic() + 180
    while job.places() != {rank: f"all_reduce at {REDUCE}" for rank in range(3)} | {3: f"barrier at {BARRIER}"}:
        assert time.monotonic() < deadline, job.output()
    job.hush()
    codes = job.exit_codes()
    sentence = SKIPPED.format(host=job.names[-1])

    assert codes == [124, 124]
    for number in range(2):
        assert job.failure(number).startswith(f"Hang: {sentence}\n")
        assert "different paths through the script" in job.failure(number)
        assert sentence in job.output(number)
    report = job.report()
    assert report.startswith(f"hang report, nothing has moved for 4 s: {sentence}\n")
    assert all(f"=== rank {rank} on {job.names[rank // 2]} waits in" in report for rank in range(4))
    assert report.count(f'code/train.py", line {AFTER_NOISE + 11} in reduce') == 3
    assert sum(line.startswith("trainshed:   ") for line in job.output().splitlines()) <= 12


@pytest.mark.spine
def test_sigusr1_to_any_host_reports_all_hosts_and_the_job_goes_on(start: Callable[..., Job]) -> None:
    script = f"import os\nif os.environ['RANK'] == '3':\n    {STAYS}else:\n    {STAYS}"
    job = start(script, hosts=2, ranks=2)
    stay = Stay(job, 4)
    job.processes[1].send_signal(signal.SIGUSR1)
    job.wait_for("hang report")
    stay.close()

    assert job.exit_codes() == [0, 0]
    sentence = "rank 3 on 127.0.0.2 is at train.py:3 while ranks 0, 1, 2 are at train.py:5"
    assert job.report().startswith(f"hang report, asked for on 127.0.0.2: {sentence}\n")
    assert "=== rank 3 on 127.0.0.2" in job.report(1) and "=== rank 0" not in job.report(1)
    assert sentence in job.output(0) and sentence in job.output(1)


def test_a_script_with_a_handler_for_sigusr1_still_gets_it(start: Callable[..., Job]) -> None:
    script = (
        "import signal, sys, time\nsignal.signal(signal.SIGUSR1, lambda *_: (print('handled'), sys.exit(0)))\n"
        "print('ready', flush=True)\ntime.sleep(600)\n"
    )
    job = start(script, ranks=1)
    job.wait_for("ready")
    job.processes[0].send_signal(signal.SIGUSR1)

    assert job.exit_codes() == [0]
    assert "handled" in job.output()


def test_stacks_can_be_turned_off(start: Callable[..., Job]) -> None:
    job = start(f"import os, sys\nprint('ready', *sys.path, flush=True)\n{STAYS}", ranks=2, stacks="off")
    stay = Stay(job, 2)
    job.processes[0].send_signal(signal.SIGUSR1)
    job.wait_for("hang report")
    stay.close()

    assert job.exit_codes() == [0]
    # One entry for both ranks, or one for each where the kernel says different things of them.
    assert re.search(r"shows? no Python stack", job.report()) and "hangs/hook" not in job.output()


# The last rank never comes to the collective for which the others wait a second.
LATE = """\
import datetime, os, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
group = dist.new_group(timeout=datetime.timedelta(seconds=1))
dist.barrier()


def prepare():
    time.sleep(600)


if dist.get_rank() == dist.get_world_size() - 1:
    prepare()
dist.all_reduce(torch.ones(1), group=group)
"""


@pytest.mark.torch
@pytest.mark.parametrize(("hosts", "ranks"), [(1, 3), (2, 1)])
def test_when_a_collective_times_out_the_rank_that_did_not_come_is_named(
    start: Callable[..., Job], hosts: int, ranks: int
) -> None:
    job = start(LATE, hosts=hosts, ranks=ranks)

    assert 1 in job.exit_codes()
    late = hosts * ranks - 1
    where = f"rank {late} on 127.0.0.{hosts} is at train.py:11 in prepare while "
    failure = job.failure(0)
    assert failure.startswith("UserError: rank ")
    assert "Timed out waiting 1000ms" in failure.splitlines()[0]
    hint = next(line for line in failure.splitlines() if line.startswith("hint: "))
    assert hint.startswith(f"hint: {where}")
    assert hint.endswith("or are stuck in data loading")
    assert "in prepare" in job.report()
    assert job.output(0).count("hang report, a collective timed out in rank ") == 1


def test_sigusr1_before_the_script_runs_does_no_harm(start: Callable[..., Job]) -> None:
    job = start("print('ran')\n", hosts=2, ranks=1, host_timeout_seconds=300, at_once=1)
    job.wait_for_host(0, "waiting for")
    job.processes[0].send_signal(signal.SIGUSR1)
    job.launch()

    assert job.exit_codes() == [0, 0]
    assert "no rank is running on this host now" in job.output(0)


@pytest.mark.spine
def test_a_job_that_runs_well_loads_nothing_that_only_hangs_need(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text("print('ran')")
    script = (
        "import os, sys; from trainshed.container.main import train; code = train(os.environ)\n"
        "loaded = [name.rpartition('.')[2] for name in sys.modules if name.startswith('trainshed.container.hangs.')]\n"
        "print(code, loaded, 'socket' in sys.modules)"
    )
    environment = {
        "PATH": os.defpath,
        "SAGEMAKER_BASE_DIR": str(tmp_path),
        "PYTHONPATH": str(TOOLKIT),
        "TMPDIR": str(tmp_path),
    }
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "0 [] False"


def test_a_report_has_the_flight_recorders_of_all_ranks_write_what_they_know(tmp_path: Path, job_tree: Any) -> None:
    # The ranks make and read their pipes as torch's NCCL backend does. A pipe gets its name when it is open.
    script = (
        "import os, time\nname = os.environ['TORCH_NCCL_DEBUG_INFO_PIPE_FILE'] + os.environ['RANK'] + '.pipe'\n"
        "os.mkfifo(name + '.new')\npipe = os.open(name + '.new', os.O_RDONLY | os.O_NONBLOCK)\n"
        "os.rename(name + '.new', name)\nos.set_blocking(pipe, True)\n"
        "end = time.monotonic() + 600\nwhile not (byte := os.read(pipe, 1)) and time.monotonic() < end: time.sleep(0.05)\n"
        "print('asked', byte)\n"
    )
    job_tree.code("train.py", script)
    job_tree.configure(hyperparameters={"trainshed_distribution": "torchrun", "trainshed_processes_per_host": "2"})
    environment = job_tree.environ(TORCH_NCCL_DEBUG_INFO_PIPE_FILE=f"{tmp_path}/recorder-")
    train = subprocess.Popen(
        [sys.executable, "-m", "trainshed.container.main"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    while not all((tmp_path / f"recorder-{rank}.pipe").exists() for rank in range(2)):
        assert train.poll() is None
        time.sleep(0.05)
    train.send_signal(signal.SIGUSR1)
    output = train.communicate(timeout=300)[0].decode()

    assert train.returncode == 0
    assert output.count("asked b'1'") == 2 and "2 rank(s) have written their last collectives" in output


# As NCCL's monitor does: reads its pipe, and writes what torch's recorder knows (here of gloo, which has no such monitor).
# Nothing counts as standing still until it knows all that there is to know.
RECORDED = """\
import os, pickle, threading, time
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace

name = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + os.environ["RANK"] + ".pipe"
os.mkfifo(name + ".new")
pipe = os.open(name + ".new", os.O_RDONLY | os.O_NONBLOCK)
os.set_blocking(pipe, True)


def monitor():
    # What is known is put together before anybody asks, since that may take long on a busy machine.
    path = os.environ["TORCH_FR_DUMP_TEMP_FILE"] + os.environ["RANK"]
    enqueued = 2 if dist.get_rank() == 0 else 1
    while True:
        known = _dump_fr_trace()
        for status in pickle.loads(known)["pg_status"].values():
            if (status["last_enqueued_collective"], status["last_completed_collective"]) == (enqueued, 1):
                open(f"known{dist.get_rank()}", "w").close()
        if os.read(pipe, 1):
            with open(path + ".new", "wb") as file:
                file.write(known)
            os.rename(path + ".new", path)
        time.sleep(0.05)


def noise():
    while not all(os.path.exists(f"known{rank}") for rank in range(2)):
        print(".", flush=True)
        time.sleep(0.05)


threading.Thread(target=noise, daemon=True).start()
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(2))
threading.Thread(target=monitor, daemon=True).start()
os.rename(name + ".new", name)
if dist.get_rank() == 1:
    time.sleep(600)
dist.all_reduce(torch.ones(3))
"""


@pytest.mark.torch
def test_the_report_says_what_the_flight_recorders_know(job_tree: Any) -> None:
    settings = {"distribution": "torchrun", "processes_per_host": "2", "hang_seconds": "4"}
    job_tree.code("train.py", RECORDED)
    job_tree.configure(hyperparameters={f"trainshed_{name}": value for name, value in settings.items()})
    done = job_tree.train(
        TORCH_NCCL_DEBUG_INFO_PIPE_FILE=f"{job_tree.tmp}/recorder-",
        TORCH_FR_DUMP_TEMP_FILE=f"{job_tree.tmp}/dump-",
        TORCH_FR_BUFFER_SIZE="100",
        OMP_NUM_THREADS="1",
    )

    assert done.status == 124, done.output
    (path,) = (job_tree.base / "output/data").glob("hang-*.txt")
    first, second = [line for line in path.read_text().splitlines() if line.startswith("flight recorder: ")]
    assert first.startswith("flight recorder: all_reduce number 2 of default_pg, [[3]] Float: ")
    assert f"not completed; 2 enqueued, 1 completed; called at train.py:{len(RECORDED.splitlines())}" in first
    assert second.startswith(
        "flight recorder: all_reduce number 1 of default_pg, [[2]] Float: completed; it is not in a collective now"
    )
