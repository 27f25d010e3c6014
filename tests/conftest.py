"""Fixtures for all tests: a job folder as the platform lays it out, and `train` as a real process on it."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from support import properties
from support.finished import Finished
from support.gate.rows import row
from support.paths import TOOLKIT
from support.powerless import heed_permissions
from trainshed.contract.job import TrainingJob
from trainshed.contract.reading import read_job

# What runs, how long each test may take, and what a failure means: docs/evidence/gate.md.
pytest_plugins = ("support.gate.hangs", "support.gate.selection", "support.gate.repeats")

# A shell that runs us in the background has us ignore these, and whatever is started here would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)

# The networks of tests are so small that two threads take several times as long as one: they wait for each other at full
# speed. Before anybody imports torch, which asks once. And ranks are compared with this process to the last bit, whose sums
# are split as theirs are.
os.environ["OMP_NUM_THREADS"] = "1"

NAMES = {
    "hyperparameters": "hyperparameters.json",
    "resources": "resourceconfig.json",
    "channels": "inputdataconfig.json",
    "checkpoint": "checkpointconfig.json",
    "metrics": "metric-definition-regex.json",
    "tensorboard": "tensorboardoutputconfig.json",
    "debug_hook": "debughookconfig.json",
    "profiler": "profilerconfig.json",
}


@pytest.fixture(scope="session", autouse=True)
def state_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The index of runs and what is kept of channels are this session's own, and not the user's."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    os.environ["TRAINSHED_CHANNEL_CACHE"] = str(tmp_path_factory.mktemp("channels"))


# What takes longest begins first, so that no worker is left with it at the end.
FIRST = (
    *("clients/", "jobs/entrypoints/", "jobs/parallel/trust/", "jobs/compiler/", "jobs/parallel/", "jobs/slurm/", "images/"),
    *("jobs/", "faults/"),
    *("unit/contract/test_mutated_configs.py", "unit/test_architecture.py", "unit/container/roster/"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts what takes longest first."""

    def order(item: pytest.Item) -> int:
        name = item.nodeid.removeprefix("tests/")
        return next((number for number, first in enumerate(FIRST) if name.startswith(first)), len(FIRST))

    items.sort(key=order)


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: collections of garbage need not look at it again and again."""
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Where torch is absent, tests that are marked with it are skipped. Those of properties import what they need."""
    if item.get_closest_marker("torch") and find_spec("torch") is None:
        pytest.skip("needs torch")
    properties.wake(item)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hands tests out by the row."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return row(nodeid)

    return Scheduling(config, log)


@dataclass(frozen=True)
class JobTree:
    """A job folder: `base` stands for /opt/ml, `tmp` for /tmp."""

    base: Path
    tmp: Path

    def write(self, name: str, content: Any, mode: int | None = None) -> Path:
        """A file below the base; anything but text and bytes becomes JSON."""
        path = self.base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        if mode is not None:
            path.chmod(mode)
        return path

    def configure(self, **files: Any) -> JobTree:
        """Config files by the short names in `NAMES`; text and bytes are written as they are, the rest as JSON.

        Hyperparameters given as a dict are written as the platform sends them: names and strings.
        """
        (self.base / "input/config").mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            if name == "hyperparameters" and isinstance(content, dict):
                content = {key: v if isinstance(v, str) else json.dumps(v) for key, v in content.items()}
            self.write(f"input/config/{NAMES[name]}", content)
        return self

    def code(self, name: str, content: str | bytes = "", mode: int | None = None) -> Path:
        """A file of the user's code."""
        return self.write(f"code/{name}", content, mode)

    def hosts(self, count: int, current: int = 1, **fields: Any) -> dict[str, Any]:
        """A resourceconfig.json value for hosts algo-1 ... algo-<count>, sorted by letter as the platform does."""
        names = sorted(f"algo-{number}" for number in range(1, count + 1))
        return {"current_host": f"algo-{current}", "hosts": names, "network_interface_name": "eth0", **fields}

    def environ(self, **extra: str) -> dict[str, str]:
        """The environment of a container that has nothing but the job."""
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.tmp),
            "TMPDIR": str(self.tmp),
            "PYTHONPATH": str(TOOLKIT),
            "SAGEMAKER_BASE_DIR": str(self.base),
            **extra,
        }

    def read(self, **extra: str) -> TrainingJob:
        """The job as trainshed reads it."""
        return read_job(self.environ(**extra))

    def train(
        self, *arguments: str, python: str = sys.executable, powerless: bool = False, timeout: float = 300, **extra: str
    ) -> Finished:
        """Runs `train` to its end, with only this job in its environment.

        Args:
            python: the interpreter.
            powerless: file permissions count, even for root.
        """
        done = subprocess.run(
            [python, "-m", "trainshed.container.main", *arguments],
            env=self.environ(**extra),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            preexec_fn=heed_permissions if powerless else None,
        )
        return Finished(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))

    def text(self, name: str) -> str | None:
        """A file below the base, None where there is none."""
        path = self.base / name
        return path.read_text(errors="replace") if path.exists() else None

    @property
    def failure(self) -> str | None:
        """The failure file."""
        return self.text("output/failure")

    @property
    def success(self) -> str | None:
        """The success file."""
        return self.text("output/success")


@pytest.fixture(scope="module", autouse=True)
def no_groups_for_forked_processes():
    """What a file leaves of gloo's groups ends here, and not in a data loader's worker of the next file: that waits for the
    groups' threads, which it has not, for ever."""
    yield
    threads = os.listdir("/proc/self/task") if os.path.isdir("/proc/self/task") else []
    if any("gloo" in _thread_name(number) for number in threads):
        gc.collect()


def _thread_name(number: str) -> str:
    """Empty for a thread that has ended."""
    try:
        return Path(f"/proc/self/task/{number}/comm").read_text(errors="replace")
    except OSError:
        return ""


@pytest.fixture
def job_tree(tmp_path: Path) -> JobTree:
    """An empty job folder, configured by the test."""
    return _tree(tmp_path)


@pytest.fixture(scope="module")
def job_tree_of_module(tmp_path_factory: pytest.TempPathFactory) -> JobTree:
    """One that all tests of a file share."""
    return _tree(tmp_path_factory.mktemp("job"))


def _tree(base: Path) -> JobTree:
    tmp = base / "tmp"
    tmp.mkdir()
    return JobTree(base / "ml", tmp)
