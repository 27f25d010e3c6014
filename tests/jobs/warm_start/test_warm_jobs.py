"""Jobs whose ranks are forked from one interpreter: restarts on one host and on two, stops while it imports, its own end."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.hosts import LIMIT, Hosts, ended
from support.paths import TOOLKIT

# Two folders above the code lies a mark for each rank that has begun: `begun.ATTEMPT.RANK`.
BEGIN = """\
import installed
import os, signal, sys, time
from pathlib import Path
here, rank, attempt = Path('../..'), int(os.environ['RANK']), int(os.environ['TORCHELASTIC_RESTART_COUNT'])
(here / f'new.{attempt}.{rank}').write_text(f'{os.getpid()} {installed.pid}')
(here / f'new.{attempt}.{rank}').rename(here / f'begun.{attempt}.{rank}')
def wait(count):
    while len(list(here.glob(f'begun.{attempt}.*'))) < count: time.sleep(0.02)
"""
# Its functions know the number of the interpreter that imported it, which is what no module may note by itself.
PACKAGE = "import os\npid = str(os.getpid())\n"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Hosts]]:
    """Starts a job on so many hosts with two ranks on each."""
    with ended() as made:

        def make(script: str, count: int = 1, package: str = PACKAGE) -> Hosts:
            given = {"distribution": "torchrun", "processes_per_host": 2, "warm_start": "auto", "max_restarts": 3}
            names = [f"127.0.0.{number + 2}" for number in range(count)]
            job = Hosts(tmp_path, names, script, {f"trainshed_{name}": value for name, value in given.items()})
            packages = tmp_path / "site-packages"
            packages.mkdir()
            (packages / "installed.py").write_text(package)
            made.append(job)
            job.start(PYTHONPATH=os.pathsep.join((str(TOOLKIT), str(packages))))
            return job

        yield make


def starts(job: Hosts, number: int = 0) -> list[dict[str, Any]]:
    path = job.base(number) / f"output/data/run/{job.names[number]}.json"
    found: list[dict[str, Any]] = json.loads(path.read_text())["starts"]
    return found


def imported_by(folder: Path) -> dict[str, set[str]]:
    """Which processes have imported the package, by the attempt's number."""
    found: dict[str, set[str]] = {}
    for path in folder.glob("begun.*"):
        found.setdefault(path.name.split(".")[1], set()).add(path.read_text().split()[1])
    return found


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.safety
def test_ranks_that_are_killed_are_forked_again(start: Callable[..., Hosts], tmp_path: Path, count: int) -> None:
    job = start(BEGIN + f"wait({2 * count})\nif rank == attempt < 2: os.kill(os.getpid(), signal.SIGKILL)\n"
                "if attempt < 2: time.sleep(600)\n", count)  # fmt: skip

    assert job.exit_codes() == [0] * count, job.all_output()
    for number in range(count):
        assert [(one["warm"], one["plain"], one["why"]) for one in starts(job, number)] == [(2, 0, "")] * 3
    importers = imported_by(tmp_path)
    assert len(importers["0"]) == count
    assert importers["0"] == importers["1"] == importers["2"]


@pytest.mark.safety
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_while_packages_are_imported_ends_the_job_as_a_stop_of_ranks_does(
    start: Callable[..., Hosts], tmp_path: Path, number: int
) -> None:
    package = f"import os, time\nopen({str(tmp_path / 'importing')!r}, 'a').write(f'{{os.getpid()}} ')\ntime.sleep(600)\n"
    job = start(BEGIN, package=package)
    deadline = time.monotonic() + LIMIT
    while not (tmp_path / "importing").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    job.processes[0].send_signal(number)

    assert job.exit_codes() == [128 + number], job.all_output()
    assert starts(job)[0]["why"] == "the job was stopped before"
    assert not list(tmp_path.glob("begun.*"))
    assert not any(os.path.exists(f"/proc/{pid}") for pid in (tmp_path / "importing").read_text().split())


@pytest.mark.safety
def test_nothing_is_left_when_train_itself_is_killed(start: Callable[..., Hosts], tmp_path: Path) -> None:
    job = start(BEGIN + "time.sleep(600)\n")
    deadline = time.monotonic() + LIMIT
    while len(list(tmp_path.glob("begun.*"))) < 2:
        assert time.monotonic() < deadline, job.all_output()
        time.sleep(0.05)
    pids = {pid for path in tmp_path.glob("begun.*") for pid in path.read_text().split()}
    assert len(pids) == 3
    job.processes[0].kill()
    job.processes[0].wait()

    while any(map(lives, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def lives(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_job_goes_on_plainly_when_the_interpreter_is_killed(start: Callable[..., Hosts], tmp_path: Path) -> None:
    job = start(BEGIN + "wait(2)\nif rank == 0 == attempt:\n    os.kill(int(installed.pid), signal.SIGKILL)\n"
                "    time.sleep(0.2)\n    sys.exit(3)\n")  # fmt: skip

    assert job.exit_codes() == [0], job.all_output()
    assert [(one["warm"], one["plain"]) for one in starts(job)] == [(2, 0), (0, 2)]
    assert "warm start: 2 rank(s) started plainly: the interpreter for it does not answer" in job.output()


def test_stacks_of_forked_ranks_are_their_own(start: Callable[..., Hosts], tmp_path: Path) -> None:
    job = start(BEGIN + "wait(2)\nprint('ready', flush=True)\ntime.sleep(600 + rank) if rank else time.sleep(700)\n")
    job.wait_for("ready", 2)
    job.processes[0].send_signal(signal.SIGUSR1)
    job.wait_for("hang-")
    (report,) = (job.base(0) / "output/data").glob("hang-*.txt")

    assert report.read_text().count("train.py:11") >= 2
