"""Hosts as machines that one can ssh to, as the runner knows places."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from trainshed.base.errors import TrainshedError, one_line, some
from trainshed.base.files import remove, write_atomic
from trainshed.base.secrets import mask_mapping, new_token
from trainshed.base.units import size as shown
from trainshed.contract.wire.variables import ROSTER_TOKEN, RUN_ID, of_setting
from trainshed.machine.isolation import isolated
from trainshed.runner.acting.base import DEFAULT_SHM, Exit, Hosts, RunningHost
from trainshed.runner.files.run import HostTree, Run
from trainshed.runner.job.job import ChannelSpec, Job
from trainshed.runner.job.machine_names import parse
from trainshed.runner.job.places import SSH
from trainshed.runner.job.references import look_up, secrets_of

from ..copying import Brought
from .agent import LOST
from .channel_store import bring, stored
from .connection import Connection, MachineUnreachable, Sockets, SshError
from .follower import LONGEST_PAUSE, FollowRequest
from .machine import Machine, facts_of
from .shipping import HostParcel, bring_home, check_room, send, send_toolkit
from .survey import RendezvousAddresses, at_once, clocks, has_ours, look_at, meet
from .wishes import read_options

LONGEST_WAIT = 600.0  # seconds for a machine that is out of reach when its results are to come


class SshHost:
    """A host on a machine, followed by a process of ours."""

    def __init__(self, name: str, order: FollowRequest) -> None:
        self.name = name
        self.process = subprocess.Popen(
            isolated("trainshed.places.ssh.follower"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # the terminal's Ctrl-C is for the runner alone
        )
        assert self.process.stdin is not None and self.process.stderr is not None
        os.set_blocking(self.process.stderr.fileno(), False)
        self.messages = self.process.stderr
        self.process.stderr = None  # not what the host prints: `news` reads it
        self.pending = b""
        self.end: dict[str, Any] = {}
        self._order(order.line())

    def stop(self, grace: float) -> None:
        """SIGTERM to `train`, which keeps to its own grace."""
        self._order(b"stop\n")

    def hurry(self) -> None:
        """SIGINT, after the SIGTERM."""
        self._order(b"hurry\n")

    def kill(self) -> None:
        """SIGKILL to all that runs there; a machine that is out of reach is left alone."""
        self._order(b"kill\n")

    def exit(self) -> Exit:
        """How `train` ended there."""
        self.news()
        code = self.end.get("code")
        if not isinstance(code, int):
            return Exit(LOST, "the process here that followed it was killed")
        return Exit(code, one_line(str(self.end.get("note") or "")))

    @property
    def reached(self) -> bool:
        """Tells whether the end is known from the machine itself."""
        return bool(self.end.get("reached", bool(self.end)))

    def news(self) -> list[str]:
        """Returns what the follower has to say to people since the last call."""
        with suppress(OSError, ValueError):
            while data := self.messages.read(1 << 16):
                self.pending += data
        *lines, self.pending = self.pending.split(b"\n")
        told = []
        for line in lines:
            try:
                said = json.loads(line)
            except ValueError:  # a traceback, say
                told.append(f"{self.name}: {one_line(line.decode('utf-8', 'replace'))}")
                continue
            if "say" in said:
                told.append(str(said["say"]))
            self.end = said.get("end") or self.end
        return told

    def close(self) -> None:
        """Ends the process here, not what runs there."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.messages):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _order(self, line: bytes) -> None:
        assert self.process.stdin is not None
        with suppress(OSError, ValueError):  # it has ended
            self.process.stdin.write(line)
            self.process.stdin.flush()


class Machines:
    """The backend.

    Args:
        taken_up: the folder of a run whose hosts were started by a runner that is dead: `start` follows them.
    """

    in_containers = True
    interface = ""
    place = SSH.name

    def __init__(self, job: Job, environ: Mapping[str, str], say: Callable[[str], None], *, taken_up: str = "") -> None:
        self.options = read_options(job)
        self.job, self.environ, self.say, self.taken_up = job, environ, say, taken_up
        self.addresses = [parse(text) for text in job.machines]
        self.secrets: dict[str, str] = {}
        self.image: dict[str, str] = {}
        self.sockets: Sockets | None = None
        self.machines: list[Machine] = []
        self.hosts: list[SshHost] = []
        self.run: Run | None = None
        self.kept: set[str] = set()  # hosts whose folders there hold what could not be brought home
        self.started = False

    def prepare(self) -> None:
        """Connects to all machines and looks whether they can run the job."""
        if not self.taken_up:
            self.secrets = look_up(self.job, self.environ)
        self._connect()

    def _connect(self) -> None:
        sockets = self.sockets = Sockets()
        connections = [
            Connection(address, sockets.folder, number, self.options.config) for number, address in enumerate(self.addresses)
        ]
        try:
            if self.taken_up:  # one that is out of reach now may come back
                self.machines = _known(f"{self.taken_up}/{SSH.sign}", connections)
                return
            self.machines = look_at(connections, self.options, self.job.image)
            if self.job.image:
                at_once(self._find_image, self.machines)
        except BaseException:
            for connection in connections:
                connection.close()
            self._disconnect()
            raise
        for note in clocks(self.machines):
            self.say(f"warning: {note}")

    def _disconnect(self) -> None:
        for machine in self.machines:
            machine.connection.close()
        if self.sockets is not None:
            self.sockets.close()
        self.sockets, self.machines = None, []

    def _engine(self, machine: Machine) -> str:
        return self.options.engine or machine.facts.engines[0]

    def _find_image(self, machine: Machine) -> None:
        engine, image = self._engine(machine), self.job.image
        known = machine.connection.run(shlex.join([engine, "image", "inspect", "--format", "{{.Id}}", image]))
        if known.code == 0:
            return
        self.say(f"{machine.name}: pulling the image {image}")
        done = machine.connection.run(shlex.join([engine, "pull", "--quiet", image]), seconds=None)
        if done.code:
            raise SshError(f"{machine.name}: {engine} cannot use {image}: {one_line(done.last_error)}",
                           hint=f"`docker save {image} | ssh {machine.name} docker load` brings it there")  # fmt: skip

    def mount_obstacle(self) -> str:
        """Says that what is mounted here is not seen there."""
        return SSH.obstacle("fast_file")

    def pool_obstacle(self) -> str:
        """The pools are on this machine."""
        return SSH.obstacle("keep_alive")

    def where(self, job: Job) -> str:
        """Which machines."""
        return f"on {some(list(job.machines), 3)}{f', in containers of {job.image}' if job.image else ''}"

    def start(self, run: Run) -> list[RunningHost]:
        """Sends each machine what its host needs, starts all, follows them."""
        self.run, self.hosts, self.kept = run, [], set()
        if not self.machines:
            self._connect()
        if not self.taken_up:
            self._start(run)
        self.taken_up, self.started = "", True
        for index, host in enumerate(run.hosts):
            self.hosts.append(SshHost(host.name, self._order(run, host, self._machine(host), index)))
        return list(self.hosts)

    def _start(self, run: Run) -> None:
        several = len(run.hosts) > 1
        by_number = [self._machine(host) for host in run.hosts]
        first = next(number for number, host in enumerate(run.hosts) if host.name == "algo-1")
        order = [first, *(number for number in range(len(run.hosts)) if number != first)]
        meeting = RendezvousAddresses(("",), ("",), (0, 0))
        if several:
            found = meet([by_number[number] for number in order], self.options)
            back = sorted(range(len(order)), key=order.__getitem__)
            meeting = RendezvousAddresses(
                tuple(found.addresses[place] for place in back),
                tuple(found.interfaces[place] for place in back),
                found.ports,
            )
        token = new_token()
        parcels = [
            HostParcel(run, host, self.options, self._base(run, host, machine), meeting.interfaces[number],
                   links=not run.job.image, apart=stored(run, host, machine, self.options))
            for number, (host, machine) in enumerate(zip(run.hosts, by_number, strict=True))
        ]  # fmt: skip
        sizes = [parcel.size() for parcel in parcels]
        at_once(lambda pair: check_room(*pair), zip(by_number, sizes, strict=True))
        apart = sorted({channel.name for parcel in parcels for channel in parcel.apart})
        more = f", and what is new in the channels {', '.join(apart)}," if apart else ""
        self.say(f"sending {shown(sum(sizes))}{more} to {some([machine.name for machine in by_number], 3)}")

        def lay_out(number: int) -> dict[str, Any]:
            machine, host = by_number[number], run.hosts[number]
            folder = self._folder(run, host, machine)
            toolkit = "" if run.job.image or has_ours(machine.facts, self.options) else send_toolkit(machine)
            machine.ask("claim", folder, run.id)
            self.started = True
            send(machine, folder, parcels[number].write)
            for channel in parcels[number].apart:
                bring(machine, channel, f"{folder}/ml/input/data/{channel.name}")
            environment = {**self._own(run, number, first, meeting, token), **run.job.environment, **self.secrets}
            return {
                **self._command(run, number, machine, toolkit, environment),
                # The folder alone is /opt/ml in every container of the machine, other people's too.
                "marks": [f"{RUN_ID}={run.id}", f"SAGEMAKER_BASE_DIR={self._base(run, host, machine)}"],
            }

        orders = at_once(lay_out, range(len(by_number)))
        os.makedirs(os.path.dirname(f"{run.folder}/{SSH.sign}"), exist_ok=True)
        known = {"id": run.id, "machines": [asdict(machine.facts) for machine in self.machines]}
        write_atomic(f"{run.folder}/{SSH.sign}", json.dumps(known) + "\n")  # whoever takes the run up knows where it is

        def begin(number: int) -> None:
            machine = by_number[number]
            machine.ask("start", self._folder(run, run.hosts[number], machine), stdin=json.dumps(orders[number]).encode())

        at_once(begin, range(len(by_number)))

    def _machine(self, host: HostTree) -> Machine:
        return self.machines[int(host.name.rpartition("-")[2]) - 1]

    def _folder(self, run: Run, host: HostTree, machine: Machine) -> str:
        return f"{machine.facts.folder}/runs/{run.name}/{host.name}"

    def _base(self, run: Run, host: HostTree, machine: Machine) -> str:
        """What `train` calls its /opt/ml there."""
        return host.base if run.job.image else f"{self._folder(run, host, machine)}/ml"

    def _own(self, run: Run, number: int, first: int, meeting: RendezvousAddresses, token: str) -> dict[str, str]:
        """What makes a `train` this host."""
        host = run.hosts[number]
        own = {"TRAINING_JOB_NAME": run.name, RUN_ID: run.id}
        own["SAGEMAKER_BASE_DIR"] = self._base(run, host, self._machine(host))
        if len(run.hosts) > 1:
            master, roster = meeting.ports
            own |= {"MASTER_ADDR": meeting.addresses[first], "MASTER_PORT": str(master)}
            own |= {of_setting("roster_port"): str(roster), ROSTER_TOKEN: token}
            if interface := meeting.interfaces[number]:
                own |= dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"), interface)
        return own

    def _command(self, run: Run, number: int, machine: Machine, toolkit: str, environment: dict[str, str]) -> dict[str, Any]:
        """The agent's order: the command, its environment, and what else ends it."""
        if run.job.image:
            return self._container(run, number, machine, environment)
        known = machine.facts.modules.get("trainshed")
        package = f"{toolkit}/trainshed" if toolkit else os.path.dirname(known[1]) if known else ""
        if toolkit:
            paths = [toolkit, *filter(None, [environment.get("PYTHONPATH", "")])]
            environment = {**environment, "PYTHONPATH": ":".join(paths)}
        script = f"{package}/machine/isolation.py"
        command = [machine.facts.executable, "-I", script, "trainshed.container.main"]
        return {"command": command, "environment": environment}

    def _container(self, run: Run, number: int, machine: Machine, environment: dict[str, str]) -> dict[str, Any]:
        job, host, engine = run.job, run.hosts[number], self._engine(machine)
        name = f"trainshed-{run.id[:12]}-{host.name}"
        limits = job.resources_of(job.group_of(host.name))
        command = [engine, "run", "--rm", "--name", name, "--network", "host", "--hostname", host.name]
        command += ["--user", f"{machine.facts.uid}:{machine.facts.gid}", "--security-opt", "label=disable"]
        command += ["--userns", "keep-id"] if engine == "podman" and machine.facts.uid else []
        command += ["--shm-size", str(limits.shm_size or DEFAULT_SHM)]
        command += ["--memory", str(limits.memory)] if limits.memory else []
        command += ["--cpus", f"{limits.cpus:g}"] if limits.cpus else []
        if limits.gpus:
            command += ["--device", "nvidia.com/gpu=all"] if engine == "podman" else ["--gpus", _gpus(limits.gpus)]
        command += ["--volume", f"{self._folder(run, host, machine)}/ml:{host.base}"]
        for channel in job.channels_of(host.name):
            if channel.name in self.options.data:
                command += ["--volume", f"{self.options.data[channel.name]}:{host.base}/input/data/{channel.name}:ro"]
        if machine.facts.uid:
            environment = {"HOME": "/tmp", **environment}
        for variable in environment:
            command += ["--env", variable]
        if job.entrypoint:
            command += ["--entrypoint", job.entrypoint[0], job.image, *job.entrypoint[1:], *job.arguments]
        else:
            command += [job.image, *(job.arguments or ("train",))]
        return {"command": command, "environment": environment, "remove": [engine, "rm", "--force", name]}

    def _order(self, run: Run, host: HostTree, machine: Machine, index: int) -> FollowRequest:
        connection = machine.connection
        return FollowRequest(
            address=asdict(connection.address),
            sockets=connection.sockets,
            number=connection.number,
            config=connection.config,
            agent=machine.words(),
            host=self._folder(run, host, machine),
            patience=self.options.patience,
        )

    def roots(self) -> list[int]:
        """They are elsewhere."""
        return []

    def fetch(self, run: Run) -> tuple[str, ...]:
        """Brings the results of all hosts home; one message for each host where something is missing."""
        lost = []
        brought = Brought(run.checkpoints)
        for host, running in zip(run.hosts, self.hosts, strict=True):
            machine = self._machine(host)
            folder = self._folder(run, host, machine)
            try:
                if not running.reached:
                    raise SshError(f"{machine.name}: {running.exit().note or 'it was out of reach'}")
                self._insist(partial(bring_home, machine, run, host, f"{folder}/ml", brought))
            except TrainshedError as error:
                self.kept.add(host.name)
                lost.append(
                    f"the results of {host.name} are not all here: {error.message}; they are kept on {machine.name} in "
                    f"{folder}/ml: `trainshed attach {run.name}` does not bring them, scp does"
                )
        for note in brought.notes:
            self.say(f"warning: {note}")
        os.sync()  # the folders there are removed next
        return tuple(lost)

    def _insist(self, work: Callable[[], None]) -> None:
        """Does what needs a machine; one that is out of reach for a while is waited for. Raises TrainshedError."""
        end = time.monotonic() + min(self.options.patience, LONGEST_WAIT)
        told = False
        while True:
            try:
                work()
                return
            except MachineUnreachable as error:
                if time.monotonic() >= end:
                    raise
                if not told:
                    self.say(f"{error.message}, and its results are not here: trying again")
                told = True
                time.sleep(LONGEST_PAUSE / 3)

    def clear(self) -> None:
        """Ends what is left there, and removes the folders whose results are here."""
        run = self.run
        for host in self.hosts:
            host.close()
        if run is None or not self.machines:
            return self._disconnect()

        def tidy(host: HostTree) -> None:
            if host.name in self.kept:
                return
            machine = self._machine(host)
            try:
                machine.ask("remove", self._folder(run, host, machine), seconds=120)
            except TrainshedError as error:
                raise SshError(f"{error.message}: what is left is {self._folder(run, host, machine)}") from error

        if self.started:
            try:
                at_once(tidy, run.hosts)
            except SshError as error:
                self.say(f"warning: {error.message}")
        with suppress(OSError):
            remove(f"{run.folder}/{SSH.sign}")
        self.started = False
        self._disconnect()

    def describe(self, run: Run) -> list[tuple[str, str]]:
        """Says what would be done on each machine; none is asked."""
        rows = []
        for host in run.hosts:
            address = self.addresses[int(host.name.rpartition("-")[2]) - 1]
            folder = f"{self.options.folder}/runs/{run.name}/{host.name}"
            own = {"TRAINING_JOB_NAME": run.name, RUN_ID: run.id}
            own["SAGEMAKER_BASE_DIR"] = host.base if run.job.image else f"{folder}/ml"
            if len(run.hosts) > 1:
                own |= {"MASTER_ADDR": "(the first host, as the others reach it)", "MASTER_PORT": "(a free one)"}
                own |= {of_setting("roster_port"): "(another)", ROSTER_TOKEN: "(a random one)"}
            masked = mask_mapping({**own, **run.job.environment}, secrets_of(self.job, {}))
            shown_ = [f"{name}={value}" for name, value in sorted(masked.items())]
            engine = self.options.engine or "docker"
            what = f"{engine} run {run.job.image} train" if run.job.image else "train"
            channels = [channel.name for channel in run.job.channels_of(host.name)]
            sent = [name for name in channels if name not in self.options.data]
            there = [f"{name} ({self.options.data[name]})" for name in channels if name in self.options.data]
            parts = [f"on {address.text}: sends code{''.join(f', {name}' for name in sent)} to {folder}/ml"]
            parts += [f"uses what is there of {', '.join(there)}"] if there else []
            rows.append((host.name, f"{'; '.join(parts)}; {' '.join([*shown_, what])}"))
        return rows


def _known(path: str, connections: list[Connection]) -> list[Machine]:
    """The machines of a run that was started, without asking them. Raises TrainshedError."""
    try:
        with open(path, encoding="utf-8") as file:
            told = json.load(file)["machines"]
        return [Machine(one, facts_of(known)) for one, known in zip(connections, told, strict=True)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TrainshedError(f"{path} does not say where the run is: {error}") from error


class Ssh(Hosts):
    """Runs jobs on machines that are reached by ssh."""

    def prepared(self, job: Job) -> Job:
        """The job with the channels that are on its machines already."""
        data = read_options(job).data
        given = {channel.name: channel for channel in job.channels}
        for name, path in data.items():
            channel = given.get(name, ChannelSpec(name, path))  # what is here stands for it in other places
            given[name] = ChannelSpec(name, path, content_type=channel.content_type)
        return replace(job, channels=tuple(given.values())) if data else job

    def check(self, job: Job, environ: Mapping[str, str]) -> None:
        """Raises JobError where an option is wrong."""
        read_options(job)

    def backend(self, job: Job, environ: Mapping[str, str], say: Callable[[str], None]) -> Machines:
        """The machines."""
        return Machines(job, environ, say)

    def taken_up(self, run: Run, environ: Mapping[str, str], say: Callable[[str], None]) -> Machines:
        """The machines that the run's folder names."""
        return Machines(run.job, environ, say, taken_up=run.folder)


def _gpus(count: int) -> str:
    return "all" if count < 0 else str(count)
