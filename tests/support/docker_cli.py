"""Runs containers for tests: each one labelled, bounded in time, and always removed."""

from __future__ import annotations

import json
import os
import subprocess
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.finished import Finished

LABEL = "org.trainshed.test.session"
LIMIT = 300.0  # seconds; a hang must not hang the tests


def docker(*arguments: str, check: bool = True, timeout: float = LIMIT) -> subprocess.CompletedProcess[str]:
    """The docker client. Raises AssertionError with its own words if it fails and `check` holds."""
    command = ["docker", *arguments]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout
    )
    assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
    return done


@dataclass(frozen=True)
class Job:
    """A job folder on this machine, /opt/ml inside."""

    folder: Path

    def write(self, files: dict[str, str | bytes | dict[str, object]]) -> Job:
        """Files by their path below the folder; a dict becomes JSON."""
        for name, content in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                path.write_bytes(content)
            else:
                path.write_text(json.dumps(content) if isinstance(content, dict) else content)
        return self

    def configure(self, hyperparameters: dict[str, object] | None = None, **channels: dict[str, str]) -> Job:
        """hyperparameters.json (values as the API sends them, strings) and inputdataconfig.json."""
        as_sent = {name: v if isinstance(v, str) else json.dumps(v) for name, v in (hyperparameters or {}).items()}
        self.write({"input/config/hyperparameters.json": as_sent, "input/config/inputdataconfig.json": dict(channels)})
        return self

    def read(self, name: str) -> str:
        """The text of a file below the folder, "" where there is none."""
        path = self.folder / name
        return path.read_text(errors="replace") if path.is_file() else ""

    def open_to_all(self) -> Job:
        """Lets any user inside write, as a platform's volume does."""
        for path in [self.folder, *self.folder.rglob("*")]:
            path.chmod(0o777 if path.is_dir() else 0o666)
        return self


@dataclass(frozen=True)
class FinishedContainer(Finished):
    """A container that ended, with its job."""

    job: Job


@dataclass(frozen=True)
class Running:
    """A container in the background."""

    name: str
    job: Job

    def logs(self) -> str:
        """What it has printed so far, both streams."""
        done = docker("logs", self.name)
        return done.stdout + done.stderr

    def execute(self, *command: str) -> str:
        """What a command prints that runs inside it."""
        return docker("exec", self.name, *command).stdout

    def wait_for(self, text: str, timeout: float = LIMIT) -> str:
        """Its output once that holds `text`. Raises AssertionError if it ends or `timeout` seconds pass before."""
        deadline = time.monotonic() + timeout
        while True:
            ended = not self.alive()  # asked first: what it printed last is then in the logs below
            logs = self.logs()
            if text in logs:
                return logs
            assert not ended, f"{self.name} ended without printing {text!r}; it printed:\n{logs}"
            assert time.monotonic() < deadline, f"no {text!r} from {self.name} in {timeout} s; it printed:\n{logs}"
            time.sleep(0.1)

    def alive(self) -> bool:
        """Whether its first process still runs."""
        return docker("inspect", "--format", "{{.State.Running}}", self.name).stdout.strip() == "true"

    def signal(self, name: str) -> None:
        """Sends its first process a signal."""
        docker("kill", "--signal", name, self.name)

    def stop(self, grace: int = 120) -> None:
        """`docker stop`: STOPSIGNAL, then SIGKILL after `grace` seconds."""
        docker("stop", "--time", str(grace), self.name, timeout=grace + 60)

    def wait(self, timeout: float = LIMIT) -> FinishedContainer:
        """How it ended. Raises AssertionError if it still runs after `timeout` seconds."""
        try:
            status = int(docker("wait", self.name, timeout=timeout).stdout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} still runs after {timeout} s; it printed:\n{self.logs()}") from None
        done = docker("logs", self.name)
        return FinishedContainer(status, done.stdout, done.stderr, self.job)


@dataclass
class Containers:
    """Starts containers of one test and removes them. Call it to run one to its end."""

    image: str
    folder: Path
    session: str
    started: list[str] = field(default_factory=list)
    jobs: list[tuple[str, Path]] = field(default_factory=list)

    def job(self, name: str = "job") -> Job:
        """An empty job folder."""
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        return Job(folder)

    def start(
        self,
        *command: str,
        image: str = "",
        job: Job | None = None,
        env: dict[str, str] | None = None,
        user: str = "",
        network: str = "",
        hostname: str = "",
        mount: bool = True,
        options: tuple[str, ...] = (),
    ) -> Running:
        """Starts a container with a job folder at /opt/ml (an empty one if none is given).

        Args:
            command: the image's own CMD if empty.
            network: name of a network; `hostname` is the name by which the others there reach this container.
            mount: False leaves /opt/ml as the image has it.
            options: further options of `docker run`.
        """
        job = job or self.job(f"job-{len(self.started)}")
        image = image or self.image
        name = f"trainshed-test-{uuid.uuid4().hex[:12]}"
        arguments = ["--name", name, "--label", f"{LABEL}={self.session}"]
        arguments += ["--volume", f"{job.folder}:/opt/ml"] if mount else []
        for key, value in (env or {}).items():
            arguments += ["--env", f"{key}={value}"]
        arguments += ["--user", user] if user else []
        arguments += ["--network", network] if network else []
        arguments += ["--hostname", hostname] if hostname else []
        arguments += ["--network-alias", hostname] if hostname and network else []
        self.started.append(name)
        self.jobs.append((image, job.folder))
        docker("run", "--detach", *arguments, *options, image, *command)
        return Running(name, job)

    def __call__(self, *command: str, timeout: float = LIMIT, **how: Any) -> FinishedContainer:
        """Runs a container to its end; arguments as for `start`."""
        return self.start(*command, **how).wait(timeout)

    def remove(self) -> None:
        """Removes what was started, and lets the caller delete what a container wrote as root."""
        if self.started:
            docker("rm", "--force", "--volumes", *self.started, check=False)
        if os.getuid() != 0:
            for image, folder in dict.fromkeys(self.jobs):
                docker("run", "--rm", "--user", "0", "--volume", f"{folder}:/job", "--entrypoint", "chown", image,
                       "-R", f"{os.getuid()}:{os.getgid()}", "/job", check=False)  # fmt: skip
