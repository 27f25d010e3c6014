"""When `train` is killed with SIGKILL, all that it has started goes, with its temporary folders."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from faults.harness import MARK, survivors, wait_until

pytestmark = pytest.mark.safety

# Children of every kind; each is there when its file is. The last two are hard to find: one has a session of its own
# and ignores signals, one shares the rank's session and has erased its environment.
FAMILY = """\
import os, subprocess, sys, time
NAP = "import signal as s, sys, time; s.signal(s.SIGTERM, s.SIG_IGN); open(sys.argv[1], 'w').close(); time.sleep(600)"
rank = os.environ.get("RANK", "0")
def start(name, **how):
    subprocess.Popen([sys.executable, "-c", NAP, f"{name}{rank}"], **how)
start("child")
start("deaf", start_new_session=True)
start("erased", env={"HERE": os.environ["FAULTS_SESSION"], "FAULTS_SESSION": os.environ["FAULTS_SESSION"]})
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        start("grandchild")
        time.sleep(600)
    os._exit(0)
print("started", flush=True)
time.sleep(600)
"""


class Killable:
    """`train`, marked so that all that it starts can be found."""

    def __init__(self, job_tree: Any, python: str = sys.executable, **environ: str) -> None:
        self.mark = uuid.uuid4().hex
        self.tree = job_tree
        self.process = subprocess.Popen(
            [python, "-m", "trainshed.container.main"],
            env=job_tree.environ(**{MARK: self.mark, **environ}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def await_files(self, *names: str) -> None:
        code = self.tree.base / "code"
        wait_until(lambda: all((code / name).exists() for name in names), f"{names} are not all there")

    def kill(self) -> None:
        """SIGKILL; then until nothing is left, the console included."""
        self.process.kill()
        self.process.wait()
        wait_until(lambda: not survivors(self.mark), f"left: {survivors(self.mark)}", 60)
        assert self.process.stdout is not None
        self.process.stdout.read()  # ends only when nobody holds the console

    def clean_up(self) -> None:
        for pid in [self.process.pid, *survivors(self.mark)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()


@pytest.fixture
def killable() -> Iterator[Any]:
    made: list[Killable] = []

    def make(job_tree: Any, **how: str) -> Killable:
        made.append(Killable(job_tree, **how))
        return made[-1]

    yield make
    for one in made:
        one.clean_up()


def own_folders(tmp: Path) -> list[str]:
    return [path.name for path in tmp.iterdir() if path.name.startswith("trainshed-")]


@pytest.mark.parametrize("ranks", [0, pytest.param(2, marks=pytest.mark.spine)])
def test_children_grandchildren_and_folders_go_with_a_killed_train(ranks: int, job_tree: Any, killable: Any) -> None:
    job_tree.code("train.py", FAMILY)
    distribution = {"trainshed_distribution": "torchrun", "trainshed_processes_per_host": str(ranks)} if ranks else {}
    job_tree.configure(hyperparameters=distribution)
    train = killable(job_tree)
    kinds = ("child", "deaf", "erased", "grandchild")
    train.await_files(*(f"{kind}{rank}" for kind in kinds for rank in range(ranks or 1)))

    train.kill()

    assert own_folders(job_tree.tmp) == []


def test_a_train_that_is_stopped_by_its_group_being_killed_leaves_nothing(job_tree: Any, killable: Any) -> None:
    job_tree.code("train.py", FAMILY)
    job_tree.configure(hyperparameters={})
    train = killable(job_tree)
    train.await_files("deaf0", "grandchild0")

    os.killpg(train.process.pid, signal.SIGKILL)
    train.kill()


def test_an_installer_goes_with_its_children_and_folders(job_tree: Any, killable: Any) -> None:
    """A build that starts a process of its own and never ends."""
    job_tree.code("setup.py", "")
    job_tree.code("pyproject.toml", '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n')
    job_tree.code(
        "backend.py",
        "import subprocess, sys, time\nsubprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        f"open({str(job_tree.base / 'code/building')!r}, 'w').close()\ntime.sleep(600)\n",
    )
    job_tree.code("requirements.txt", ".\n")
    job_tree.code("train.py", "print('never')")
    job_tree.configure(hyperparameters={"sagemaker_program": "train.py"})
    train = killable(job_tree, PIP_NO_INDEX="1", PIP_CONFIG_FILE="/dev/null", PATH="/usr/bin:/bin")
    train.await_files("building")

    train.kill()

    assert [path.name for path in job_tree.tmp.iterdir() if path.name.startswith(("pip-", "trainshed-"))] == []


def test_the_guardian_ends_with_train_and_is_nothing_that_the_script_left(job_tree: Any) -> None:
    job_tree.code("train.sh", "ls /proc/[0-9]*/comm | xargs grep -l train-guardian 2>/dev/null | wc -l\n")
    job_tree.configure(hyperparameters={"sagemaker_program": "train.sh"})
    mark = uuid.uuid4().hex

    done = job_tree.train(**{MARK: mark})

    assert done.status == 0 and int(done.stdout) >= 1, done.output
    assert "left running" not in done.output
    assert survivors(mark) == {}


def test_nested_trains_are_guarded_each_by_its_own(job_tree: Any, killable: Any, tmp_path: Path) -> None:
    """The script starts a `train` itself; the outer one is killed."""
    inner = tmp_path / "inner"
    for folder in ("code", "output", "model"):
        (inner / folder).mkdir(parents=True)
    (inner / "code/train.sh").write_text(f"setsid sleep 600 &\ntouch {job_tree.base}/code/inside\nsleep 600\n")
    job_tree.code(
        "train.py",
        "import os, subprocess, sys\n"
        f"environ = {{**os.environ, 'SAGEMAKER_BASE_DIR': {str(inner)!r}, 'SAGEMAKER_PROGRAM': 'train.sh'}}\n"
        "subprocess.run([sys.executable, '-m', 'trainshed.container.main'], env=environ)\n",
    )
    job_tree.configure(hyperparameters={"sagemaker_program": "train.py"})
    train = killable(job_tree)
    train.await_files("inside")

    train.kill()

    assert own_folders(job_tree.tmp) == []
