"""The backend: hosts on nodes of a Ray cluster, as the runner sees them. Ray itself is in a process beside it (driver)."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import IO, Any

import trainshed
from trainshed.base.errors import EXIT_SIGNAL_BASE
from trainshed.base.files import open_unfollowed
from trainshed.contract.wire.variables import ENTRYPOINTS
from trainshed.machine.processes import die_with_parent
from trainshed.machine.signals import stop_raises
from trainshed.runner.acting.base import Exit, Hosts, RunningHost
from trainshed.runner.files.run import Run
from trainshed.runner.job.job import Job
from trainshed.runner.job.places import RAY
from trainshed.runner.job.references import look_up

from .driver import DriverRequest, RayError
from .wishes import read_options, with_address

LOG = "logs/ray.log"  # below the run's folder: what Ray's own library says
CLOSE_SECONDS = 20.0  # for the driver to give everything back


class RemoteHost:
    """The object that stands for a host's process here: the pipes with its lines, and how it ended."""

    def __init__(self, link: DriverLink) -> None:
        self.link = link
        self.stdout: IO[bytes] | None = None
        self.stderr: IO[bytes] | None = None
        self.ended: Exit | None = None

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""
        self.link.take()
        return None if self.ended is None else self.ended.code


class RayHost:
    """One host."""

    def __init__(self, name: str, number: int, link: DriverLink) -> None:
        self.name, self.number, self.link = name, number, link
        self.process = RemoteHost(link)

    def stop(self, grace: float) -> None:
        """SIGTERM to `train`, which keeps to its own grace."""
        self.link.say(host=self.number, word="T")

    def hurry(self) -> None:
        """SIGINT, after the SIGTERM."""
        self.link.say(host=self.number, word="I")

    def kill(self) -> None:
        """SIGKILL; its ranks die with it."""
        self.link.say(host=self.number, word="K")

    def news(self) -> list[str]:
        """Nothing: the driver tells of all hosts."""
        return []

    def exit(self) -> Exit:
        """How it ended, as its node or Ray says."""
        assert self.process.ended is not None
        return self.process.ended


class DriverLink:
    """The driver: a process of ours and the socket to it. `heard` gets each thing that it says."""

    def __init__(self, driver: subprocess.Popen[bytes], control: socket.socket) -> None:
        self.driver, self.control = driver, control
        self.buffer = b""
        self.broken = False
        self.heard: Callable[[dict[str, Any]], None] = lambda _: None

    def say(self, **command: object) -> None:
        """One command."""
        try:
            self.control.sendall(json.dumps(command).encode() + b"\n")
        except OSError:  # it has ended: `take` tells
            pass

    def take(self, *, wait: bool = False) -> None:
        """Hands on what the driver has said since the last call; {"broken": True} when it has ended."""
        while not self.broken:
            try:
                data = self.control.recv(1 << 16, 0 if wait else socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            *lines, self.buffer = (self.buffer + data).split(b"\n")
            if not data:
                self.broken = True
            for line in lines:
                self.heard(json.loads(line))
            if not data:
                self.heard({"broken": True})
            if wait:
                return

    def close(self) -> None:
        """Has the driver give everything back, and waits for its end."""
        self.say(leave=True)
        try:
            self.driver.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self.driver.kill()  # Ray ends the actors of a driver that is gone
            self.driver.wait()
        self.control.close()


class Ray(Hosts):
    """Runs jobs on Ray clusters."""

    def with_flags(self, job: Job, options: Mapping[str, Any]) -> Job:
        """The job with the cluster of `--address`."""
        return with_address(job, options["address"])

    def check(self, job: Job, environ: Mapping[str, str]) -> None:
        """Raises JobError where an option is wrong."""
        read_options(job, environ)

    def backend(self, job: Job, environ: Mapping[str, str], say: Callable[[str], None]) -> RayHosts:
        """Nodes of the cluster."""
        return RayHosts(job, environ, say)


class RayHosts:
    """The backend."""

    in_containers = False
    interface = ""
    place = RAY.name

    def __init__(self, job: Job, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
        self.job, self.environ, self.say = job, environ, say
        self.options = read_options(job, environ)
        self.secrets: dict[str, str] = {}
        self.image: dict[str, str] = {}
        self.hosts: list[RayHost] = []
        self.link: DriverLink | None = None
        self.started = False
        self.fetched: tuple[str, ...] | None = None

    def prepare(self) -> None:
        """Finds out whether ray is installed here. Raises RayError."""
        self.secrets = look_up(self.job, self.environ)
        need_ray(self.options.address)

    def mount_obstacle(self) -> str:
        """The nodes are other machines."""
        return RAY.obstacle("fast_file")

    def pool_obstacle(self) -> str:
        """The pools are on this machine."""
        return RAY.obstacle("keep_alive")

    def where(self, job: Job) -> str:
        """How many hosts."""
        return f"{job.instances} {'host' if job.instances == 1 else 'hosts'} on Ray"

    def start(self, run: Run) -> list[RunningHost]:
        """Waits until Ray has placed all hosts and they run. Raises RayError; Interrupted for a stop signal."""
        self.fetched, self.started = None, False
        with stop_raises("before Ray had started the job"):
            self._drive(run)
            assert self.link is not None
            while not self.started:
                self.link.take(wait=True)
        return list(self.hosts)

    def clear(self) -> None:
        """Ends the actors, and with them what they run."""
        if self.link is not None:
            self.link.close()
            self.link = None
        for host in self.hosts:
            for pipe in (host.process.stdout, host.process.stderr):
                if pipe is not None:
                    pipe.close()
        self.hosts = []

    def roots(self) -> list[int]:
        """None: they are on other machines."""
        return []

    def fetch(self, run: Run) -> tuple[str, ...]:
        """Brings home what hosts wrote since the last look at them, and the model."""
        assert self.link is not None
        self.link.say(fetch=True)
        while self.fetched is None:
            self.link.take(wait=True)
        return self.fetched

    def describe(self, run: Run) -> list[tuple[str, str]]:
        """Says what Ray would be asked for."""
        limits = [self.job.resources_of(self.job.group_of(host.name)) for host in run.hosts]
        rows = []
        for host, wanted in zip(run.hosts, limits, strict=True):
            given = {"CPUs": wanted.cpus, "GPUs": wanted.gpus, "memory": wanted.memory, **self.options.resources}
            shown = ", ".join(f"{name} {count:g}" for name, count in given.items() if count is not None)
            placement = self.options.placement.upper()
            rows.append((host.name, f"an actor on {self.options.address}, {placement}: {shown or 'a whole node'}: train"))
        return rows

    def _drive(self, run: Run) -> None:
        """Starts the driver."""
        ours, theirs = socket.socketpair()
        pipes = [(os.pipe(), os.pipe()) for _ in run.hosts]
        written = [(out[1], error[1]) for out, error in pipes]
        root = os.path.dirname(os.path.dirname(os.path.abspath(trainshed.__file__)))
        code = f"import sys; sys.path.insert(0, {root!r}); from trainshed.places.ray.driver import main; main()"
        ready = "" if self.job.source_dir else self.environ.get(ENTRYPOINTS, "")
        order = DriverRequest(run, self.options, self.secrets, ready, written, theirs.fileno())
        with open(f"{run.folder}/{LOG}", "ab", opener=open_unfollowed) as log:
            driver = subprocess.Popen(
                [sys.executable, "-c", code],
                env={**self.environ, "RAY_USAGE_STATS_ENABLED": "0"},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(), *(fd for pair in written for fd in pair)),
                start_new_session=True,  # the terminal's Ctrl-C is for the runner alone
                preexec_fn=partial(die_with_parent, signal.SIGTERM),
            )
        theirs.close()
        for fd in (fd for pair in written for fd in pair):
            os.close(fd)
        self.link = DriverLink(driver, ours)
        self.link.heard = self._heard
        self.hosts = [RayHost(host.name, number, self.link) for number, host in enumerate(run.hosts)]
        for host, (out, error) in zip(self.hosts, pipes, strict=True):
            host.process.stdout, host.process.stderr = os.fdopen(out[0], "rb", 0), os.fdopen(error[0], "rb", 0)
        assert driver.stdin is not None
        with driver.stdin:
            try:
                driver.stdin.write(pickle.dumps(order))
            except BrokenPipeError:  # `take` tells
                pass

    def _heard(self, said: dict[str, Any]) -> None:
        if "say" in said:
            self.say(said["say"])
        elif "started" in said:
            self.started = True
        elif "ended" in said:
            self.hosts[said["ended"]].process.ended = Exit(said["code"], said["note"])
        elif "fetched" in said:
            self.fetched = tuple(said["fetched"])
        elif "error" in said:
            problem = RayError(said["error"], hint=said["hint"])
            problem.exit_code = said["code"]
            raise problem
        elif "broken" in said:
            self._lost()

    def _lost(self) -> None:
        """The driver has ended by itself: Ray ends the process that loses its cluster."""
        words = f"the connection to the Ray cluster at {self.options.address} was lost; {LOG} has its last words"
        if not self.started:
            raise RayError(words)
        for host in self.hosts:
            if host.process.ended is None:
                host.process.ended = Exit(EXIT_SIGNAL_BASE + signal.SIGKILL, words)
        if self.fetched is None:
            self.fetched = ()
            self.say(f"warning: {words}: what hosts wrote last may be missing")


def need_ray(address: str) -> None:
    """Raises RayError where ray, or what it needs for this address, is not installed."""
    client = address.startswith("ray://")
    missing = "ray" if find_spec("ray") is None else "grpcio" if client and find_spec("grpc") is None else ""
    if missing:
        raise RayError(f"{missing} is not installed", hint="pip install 'trainshed[ray]', of the cluster's version of Ray")
