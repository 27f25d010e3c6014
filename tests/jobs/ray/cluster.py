"""A real Ray cluster of several nodes on this machine, and `trainshed run --on ray` on it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.paths import TOOLKIT

LIMIT = 400.0  # seconds; a hang must not hang the tests
NODES = Path(__file__).parent / "nodes.py"


class Cluster:
    """Nodes with CPUs each; the first is the head. python: that of an environment with ray."""

    def __init__(self, python: Path, *cpus: int) -> None:
        self.python = python
        self.folder = tempfile.mkdtemp(prefix="ray")  # a short path: sockets live in it
        self.process = subprocess.Popen(
            [str(python), str(NODES), self.folder, *map(str, cpus)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self.address: str = json.loads(self._answer())["address"]

    def tell(self, words: str) -> None:
        """See nodes.py."""
        assert self.process.stdin is not None
        print(words, file=self.process.stdin, flush=True)
        self._answer()

    def close(self) -> None:
        """Ends all nodes and removes what they leave."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(LIMIT)
        for pid in self.left():
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def left(self) -> list[int]:
        """Processes that know the cluster's folder: its own, and those that run jobs on it."""
        import psutil

        found = []
        for one in psutil.process_iter():
            try:
                if one.environ().get("RAY_TMPDIR", "").startswith(self.folder) or self.folder in " ".join(one.cmdline()):
                    found.append(one.pid)
            except psutil.Error:
                continue
        return found

    def _answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the cluster has ended"
        return line


class Started:
    """`trainshed` as a process in a folder of its own, on a cluster."""

    def __init__(self, cluster: Cluster, folder: Path, *words: str, **environment: str) -> None:
        self.cluster, self.folder = cluster, folder
        self.out = folder / "out"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SM_", "TRAINSHED_", "RAY_"))}
        self.environment = {**kept, "PYTHONPATH": str(TOOLKIT), "OMP_NUM_THREADS": "1", **environment}
        self.process = self.start(*words)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """A command; what it says is added to `output`."""
        with self.out.open("ab") as out:
            command = [str(self.cluster.python), "-m", "trainshed.cli", *words]
            return subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=out, stderr=out)

    def end(self) -> int:
        """Its exit status, once it has ended."""
        return self.process.wait(LIMIT)

    def until(self, what: Callable[[], Any]) -> None:
        """Until something is so, while it runs."""
        deadline = time.monotonic() + LIMIT
        while not what():
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.05)

    def until_said(self, text: str) -> None:
        """Until a text was printed."""
        self.until(lambda: text in self.output)

    @property
    def output(self) -> str:
        """All that was printed."""
        return self.out.read_text(errors="replace")

    @property
    def status(self) -> dict[str, Any]:
        """`status.json`."""
        found: dict[str, Any] = json.loads((self.folder / "run/status.json").read_text())
        return found


def job_file(folder: Path, **fields: Any) -> None:
    """A job in a folder, with this Python on the nodes: it has torch."""
    job = {"program": "train.py", "ray": {"python": sys.executable}, "resources": {"cpus": 1}, **fields}
    (folder / "job.yaml").write_text(json.dumps(job))
