"""The hosts of one job on this machine: each is a `train` process with a folder and, of several, a loopback address."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from support.free_ports import free_ports
from support.paths import TOOLKIT

# For `Hosts.start`: this host is sent SIGTERM when the hosts have met, before any rank is started.
STOPPED_BEFORE_LAUNCH = """
import os, signal
from trainshed.container.attempts import Attempts
run = Attempts.run
def stopped(self):
    os.kill(os.getpid(), signal.SIGTERM)
    return run(self)
Attempts.run = stopped
"""
# For `Hosts.start`: this host's clock is one that `Hosts.turn_clock` turns. Its ranks have their own.
CLOCK = """
import os, time
real, turned = time.monotonic, os.environ["SAGEMAKER_BASE_DIR"] + "/clock"
time.monotonic = lambda: real() + (os.path.getsize(turned) if os.path.exists(turned) else 0)
"""
# For `Hosts.start`: this host says without delay that it waits for others.
ALOUD = """
from trainshed.container.roster import leader, member
leader.SAY_EVERY = member.SAY_EVERY = 0.2
"""
# For `Hosts.start`: this host gives up at once another one whose process has ended.
SOON_GONE = "from trainshed.container.roster import messages; messages.GONE_AFTER = 0.5"
LIMIT = 300.0  # seconds; a hang must not hang the tests


class Hosts:
    """A job's hosts, written but not started. `folder` lies two levels above each host's code."""

    def __init__(
        self, folder: Path, names: list[str], script: str, hyperparameters: Mapping[str, object], **resources: object
    ) -> None:
        """
        Args:
            names: of the hosts, in the order of their numbers here.
            hyperparameters: values as text.
            resources: further fields of resourceconfig.json.
        """
        self.folder, self.names = folder, names
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.port = free_ports(2)
        for number, name in enumerate(names):
            base = self.base(number)
            (base / "input/config").mkdir(parents=True)
            (base / "code").mkdir()
            (base / "code/train.py").write_text(script)
            config = {"current_host": name, "hosts": names, **resources}
            (base / "input/config/resourceconfig.json").write_text(json.dumps(config))
            self.configure(number, **hyperparameters)

    def base(self, number: int) -> Path:
        """The host's /opt/ml."""
        return self.folder / f"host{number}"

    def configure(self, number: int, **more: object) -> None:
        """Gives one host hyperparameters beside those that it has."""
        path = self.base(number) / "input/config/hyperparameters.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(known | {name: str(value) for name, value in more.items()}))

    def start(self, *numbers: int, code: str = "", **variables: str) -> None:
        """Starts some hosts, or all, with these variables on top of what every host gets.

        Args:
            code: Python that runs in `train` itself before it begins.
        """
        for number in numbers or range(len(self.names)):
            environment = {
                "PATH": os.environ["PATH"],
                "TMPDIR": str(self.folder),
                "SAGEMAKER_BASE_DIR": str(self.base(number)),
                "PYTHONPATH": str(TOOLKIT),
                "MASTER_PORT": str(self.port),
                "OMP_NUM_THREADS": "1",
                **variables,
            }
            with open(self.base(number) / "stdout", "wb") as output:
                command = [sys.executable, "-m", "trainshed.container.main"]
                if code:
                    command[1:] = ["-c", f"{code}\nimport os\nfrom trainshed.container.main import main\nos._exit(main())"]
                command = [*self.prefix(number), *command]
                process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
            self.processes[number] = process

    def prefix(self, number: int) -> list[str]:
        """What a host's command begins with."""
        return []

    def turn_clock(self, number: int, seconds: int) -> None:
        """So much time has passed on a host that was started with `CLOCK`."""
        with open(self.base(number) / "clock", "wb") as file:
            file.truncate(seconds)

    def wait_for(self, text: str, count: int = 1) -> None:
        """Until every host that was started has printed `text` so many times."""
        deadline = time.monotonic() + LIMIT
        while True:
            ended = {number for number, process in self.processes.items() if process.poll() is not None}
            missing = {number for number in self.processes if self.output(number).count(text) < count}
            if not missing:
                return
            assert not ended & missing and time.monotonic() < deadline, f"no {text!r} on {missing}:\n{self.all_output()}"
            time.sleep(0.05)

    def output(self, number: int = 0) -> str:
        """What a host has printed so far."""
        path = self.base(number) / "stdout"
        return path.read_text() if path.exists() else ""

    def all_output(self) -> str:
        """What all hosts have printed so far."""
        return "\n".join(self.output(number) for number in range(len(self.names)))

    def exit_codes(self) -> list[int]:
        """The exit statuses of those that were started, once they have ended."""
        return [self.processes[number].wait(timeout=LIMIT) for number in sorted(self.processes)]

    def wait_for_host(self, number: int, text: str) -> None:
        """Until one host has printed `text`."""
        deadline = time.monotonic() + LIMIT
        while text not in self.output(number):
            assert time.monotonic() < deadline, f"no {text!r} on {number}:\n{self.all_output()}"
            time.sleep(0.05)

    def wait_until_gone(self, number: int) -> None:
        """Until no process is left that a host has started, also of a `train` that was killed."""
        deadline = time.monotonic() + LIMIT
        while left := self._processes_of(number):
            assert time.monotonic() < deadline, f"left of {self.names[number]}: {left}"
            time.sleep(0.05)

    def _processes_of(self, number: int) -> list[str]:
        mark, found = f"SAGEMAKER_BASE_DIR={self.base(number)}".encode(), []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    found.append((process / "cmdline").read_text().replace("\0", " "))
            except OSError:  # it has ended, or is somebody else's
                continue
        return found

    def failure(self, number: int = 0) -> str:
        """A host's failure file, "" where there is none."""
        path = self.base(number) / "output/failure"
        return path.read_text() if path.exists() else ""

    def succeeded(self, number: int) -> bool:
        """Whether a host has a success file."""
        return (self.base(number) / "output/success").exists()


@contextmanager
def ended() -> Iterator[list[Hosts]]:
    """A list of jobs; what is left of them at the end is ended."""
    made: list[Hosts] = []
    try:
        yield made
    finally:
        for job in made:
            for process in job.processes.values():
                process.kill()
                process.wait()
