"""Hosts as containers of Docker or Podman on this machine."""

from __future__ import annotations

import getpass
import ipaddress
import json
import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace

from trainshed.base.errors import exit_status
from trainshed.base.secrets import MASK, is_secret_name, mask_mapping
from trainshed.contract.wire.variables import CLIENT_OF
from trainshed.machine.hardware import probe
from trainshed.machine.processes import die_with_parent
from trainshed.runner.acting.base import Exit, RunningHost
from trainshed.runner.files.grace import REPORT_SECONDS
from trainshed.runner.files.owner import caller, hand_over
from trainshed.runner.files.run import Run
from trainshed.runner.job.job import Job
from trainshed.runner.job.references import look_up, secrets_of

from . import gpus
from .cleanup import remove_all
from .container_command import CommandFacts, container_name, create, create_network, mounts, network_name
from .container_engine import (
    ANSWER_SECONDS,
    Engine,
    EngineError,
    find_engine,
    hint_for,
    identity_of,
    near_image,
    reason,
    sees_nothing,
)
from .copying import copy_in, fetch_all


class ContainerHost:
    """A container, attached to by a client process of ours."""

    def __init__(self, name: str, container: str, machine: CommandFacts) -> None:
        self.name, self.container, self.machine = name, container, machine
        self.process = self._client("start", "--attach", container, pipes=True)
        self.helpers: list[subprocess.Popen[bytes]] = []

    def stop(self, grace: float) -> None:
        """`docker stop`: SIGTERM, and SIGKILL when the grace and the time for the report are over."""
        self.helpers.append(self._client("stop", "-t", str(int(grace + REPORT_SECONDS)), self.container))

    def hurry(self) -> None:
        """SIGINT, after the SIGTERM."""
        self.helpers.append(self._client("kill", "--signal", "SIGINT", self.container))

    def kill(self) -> None:
        """`docker kill`."""
        self.helpers.append(self._client("kill", self.container))

    def news(self) -> list[str]:
        """Nothing: its pipes say it all."""
        return []

    def exit(self) -> Exit:
        """The container's own exit status, which the client's need not be."""
        done = self.machine.engine.run("inspect", "--format", "{{json .State}}", self.container)
        try:
            state = json.loads(done.stdout)
            code, error = int(state["ExitCode"]), str(state.get("Error") or "")
        except (ValueError, KeyError):
            return Exit(exit_status(self.process.returncode) or 1, "its container is gone")
        if state.get("OOMKilled"):
            return Exit(code or exit_status(-signal.SIGKILL), "its memory limit was reached (--memory)")
        if error:
            hint = hint_for(error)
            return Exit(code or 1, reason(error) + (f"; {hint}" if hint else ""))
        return Exit(code)

    def close(self) -> None:
        """Waits for the client processes."""
        for process in (self.process, *self.helpers):
            try:
                process.wait(ANSWER_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _client(self, *arguments: str, pipes: bool = False) -> subprocess.Popen[bytes]:
        target = subprocess.PIPE if pipes else subprocess.DEVNULL
        return subprocess.Popen(
            [*self.machine.engine.command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=target,
            stderr=target,
            start_new_session=True,  # the terminal's Ctrl-C is for the runner alone
        )


class Containers:
    """The backend."""

    in_containers = True
    interface = "eth0"

    def __init__(self, job: Job, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
        self.job, self.environ, self.say = job, environ, say
        self.hosts: list[ContainerHost] = []
        self.secrets: dict[str, str] = {}
        self.image: dict[str, str] = {}
        self.pids: list[int] | None = None
        self.created: list[str] = []
        self.kept = False  # whether ended containers stay, for the results in them
        self.run: Run | None = None
        self._machine: CommandFacts | None = None

    @property
    def machine(self) -> CommandFacts:
        """The engine and this machine, found at the first use."""
        if self._machine is None:
            engine = find_engine(self.environ)
            uid, gid = caller(self.environ)
            copies = engine.elsewhere
            memory = (engine.memory if copies else 0) or probe(self.environ).memory_bytes
            devices = gpus.present(self.environ) if engine.gpus and not copies else ()
            self._machine = CommandFacts(engine, uid, gid, _user_name(uid), memory, devices, self.secrets, copies)
        return self._machine

    @property
    def place(self) -> str:
        """The place of the engine."""
        return self.machine.engine.place

    def prepare(self) -> None:
        """Finds the engine; pulls the image if it is not here."""
        self.secrets = look_up(self.job, self.environ)
        engine, image = self.machine.engine, self.job.image
        if self.machine.copies:
            self._copy(f"the container engine is on another machine ({engine.place})")
        if (known := engine.inspect_image(image)) is not None:
            self.image = identity_of(image, known)
            return
        self.say(f"pulling the image {image}, which is not on this machine")
        # Its progress goes to the terminal, its errors to us.
        done = subprocess.run(
            [*engine.command, "pull", image],
            stdin=subprocess.DEVNULL,
            stdout=2,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            preexec_fn=_end_with_runner,
        )
        if done.returncode != 0:
            hint = near_image(image, engine) or hint_for(done.stderr)
            raise EngineError(
                f"the image {image} is not on this machine and cannot be pulled: {reason(done.stderr)}", hint=hint
            )
        self.image = identity_of(image, engine.inspect_image(image) or {})

    def _copy(self, why: str) -> None:
        self.say(f"{why}: files are copied to it and back")
        if any(channel.input_mode == "Pipe" for channel in self.job.channels):
            raise EngineError(f"Pipe mode does not work here: {why}", hint="use File mode")
        if written := [channel.name for channel in self.job.channels if channel.access == "rw"]:
            raise EngineError(f"the channel {written[0]} has access rw, and cannot be written to here: {why}")

    def mount_obstacle(self) -> str:
        """Says what keeps the engine from a file system that this process mounts."""
        if self.machine.copies:
            return "files are copied to the container engine"
        return "the container engine is rootless" if self.machine.engine.rootless else ""

    def pool_obstacle(self) -> str:
        """Says what keeps the containers from folders of this machine."""
        return f"files are copied to the container engine at {self.place}" if self.machine.copies else ""

    def where(self, job: Job) -> str:
        """How many containers."""
        return f"{'1 container' if job.instances == 1 else f'{job.instances} containers'} of {job.image}"

    def start(self, run: Run) -> list[RunningHost]:
        """Creates all containers, then starts them, so that an error of one leaves none running."""
        self.run, self.hosts, self.created, self.pids = run, [], [], None
        engine = self.machine.engine
        hand_over(run, self.environ)  # before the containers, which run as that person, want to write
        try:
            if network_name(run):
                engine.checked(*create_network(run), variables={CLIENT_OF: run.id})
            addresses = host_addresses(engine, run)
            for index, host in enumerate(run.hosts):
                self._create(run, index, addresses)
                self.created.append(container_name(run, host))
                if self.machine.copies:
                    copy_in(engine, run, host)
            for host in run.hosts:
                self.hosts.append(ContainerHost(host.name, container_name(run, host), self.machine))
        except BaseException:
            self.clear()
            raise
        return list(self.hosts)

    def _create(self, run: Run, index: int, addresses: Mapping[str, str]) -> None:
        arguments, variables = create(run, index, self.machine, addresses)
        engine = self.machine.engine
        done = subprocess.run(
            [*engine.command, *arguments],
            env={**os.environ, **variables, CLIENT_OF: run.id},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        if done.returncode != 0 and self._is_blind(run, index, done.stderr):
            self._machine = replace(self.machine, copies=True)
            self._copy("the container engine cannot access this machine's folders")
            self._create(run, index, addresses)
        elif done.returncode != 0:
            what = f"cannot create the container of {run.hosts[index].name}: {reason(done.stderr)}"
            raise EngineError(what, hint=hint_for(done.stderr))

    def _is_blind(self, run: Run, index: int, stderr: str) -> bool:
        """Whether a container could not be made because the engine does not see what is here to be mounted."""
        here = all(os.path.exists(source) for source, _, _ in mounts(run, run.hosts[index]))
        return index == 0 and here and not self.machine.copies and sees_nothing(stderr)

    def roots(self) -> list[int]:
        """The containers' first processes, where the engine shares this machine's kernel."""
        if self.machine.copies or self.run is None:
            return []
        if self.pids is None:
            done = self.machine.engine.run("inspect", "--format", "{{.State.Pid}}", *self.created)
            found = [int(text) for text in done.stdout.split() if text.isdigit() and int(text) > 0]
            self.pids = [pid for pid in found if os.path.exists(f"/proc/{pid}")]
        return self.pids

    def fetch(self, run: Run) -> tuple[str, ...]:
        """Copies the results out of containers that could not be given this machine's folders; what did not come."""
        if not self.machine.copies:
            return ()
        lost, notes = fetch_all(self.machine.engine, run, run.hosts)
        for note in notes:
            self.say(f"warning: {note}")
        self.kept = bool(lost)
        return lost

    def clear(self) -> None:
        """Removes the containers and the network."""
        if self.run is None:
            return
        if self.kept:  # they hold what could not be brought home
            for host in self.hosts:
                host.close()
            return
        for problem in remove_all(self.machine.engine, self.run.id):
            self.say(f"warning: {problem}; `trainshed rm` tries again")
        for host in self.hosts:
            host.close()

    def describe(self, run: Run) -> list[tuple[str, str]]:
        """The engine's command lines."""
        rows = [("network", shlex.join([*self.machine.engine.command, *create_network(run)]))] if network_name(run) else []
        for index, host in enumerate(run.hosts):
            arguments, variables = create(run, index, self.machine)
            masked = mask_mapping(variables, secrets_of(self.job, {}))
            shown = [f"{part}={masked[part]}" if part in masked else _masked(part) for part in arguments]
            rows.append((host.name, shlex.join([*self.machine.engine.command, *shown])))
        return rows


def _end_with_runner() -> None:
    die_with_parent(signal.SIGTERM)


def _masked(part: str) -> str:
    name, equals, _ = part.partition("=")
    return f"{name}={MASK}" if equals and name.isidentifier() and is_secret_name(name) else part


def _user_name(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return getpass.getuser() if os.environ.get("USER") else f"uid-{uid}"


# Docker's networks have a name server. Podman's have one only if another package is installed (aardvark-dns, or the plugin
# dnsname), so there every host gets a fixed address, and all of them in its /etc/hosts.
FIRST_ADDRESS = 2  # behind the network's own address and its gateway's


def host_addresses(engine: Engine, run: Run) -> dict[str, str]:
    """The addresses that the hosts are to get in their network, by name; {} where the engine sees to names itself.

    Raises:
        EngineError: the network is not as Podman makes one.
    """
    network = network_name(run)
    if not network or not _is_podman(engine):
        return {}
    try:
        (found,) = json.loads(engine.checked("network", "inspect", network))
        # Podman's own answer, and the one that its service gives to Docker's client.
        text = found["subnets"][0]["subnet"] if "subnets" in found else found["IPAM"]["Config"][0]["Subnet"]
        space = ipaddress.ip_network(text)
        return {host.name: str(space[FIRST_ADDRESS + number]) for number, host in enumerate(run.hosts)}
    except (ValueError, LookupError, TypeError) as error:
        raise EngineError(f"the network {network} has too few addresses for {len(run.hosts)} hosts: {error}") from error


def _is_podman(engine: Engine) -> bool:
    if engine.kind == "podman":
        return True
    done = engine.run("version", "--format", "{{range .Server.Components}}{{.Name}},{{end}}")
    return "podman" in done.stdout.lower()
