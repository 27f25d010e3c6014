"""Machines that one can ssh to: real sshds with keys of their own, on loopback or each in a network namespace."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import yaml

from support.paths import TOOLKIT

needs_sshd = pytest.mark.skipif(
    os.geteuid() != 0 or not os.path.exists("/usr/sbin/sshd") or not shutil.which("ssh"),
    reason="needs root and OpenSSH's sshd",
)
needs_namespaces = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="needs root and iproute2")

_SSHD = """
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 100
AcceptEnv none
SetEnv HOME={home} PATH={path}{engine}
"""
_CLIENT = """
Host {name}
    HostName {address}
    Port {port}
    User root
    HostKeyAlias {name}
"""
_ALL = """
Host *
    IdentityFile {folder}/key
    IdentitiesOnly yes
    IdentityAgent none
    UserKnownHostsFile {folder}/known_hosts
    GlobalKnownHostsFile /dev/null
"""


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


class Machine:
    """One sshd. space: its network namespace, "" for this one."""

    def __init__(self, folder: Path, name: str, address: str, port: int, space: str = "") -> None:
        self.folder, self.name, self.address, self.port, self.space = folder, name, address, port, space
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{folder}/host_key")
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def host_key(self) -> str:
        return " ".join((self.folder / "host_key.pub").read_text().split()[:2])

    def start(self, key: str, path: str = "") -> None:
        (self.folder / "authorized_keys").write_text(key)
        config = self.folder / "sshd_config"
        engine = f" DOCKER_HOST={os.environ['DOCKER_HOST']}" if "DOCKER_HOST" in os.environ else ""
        path = path or os.environ["PATH"]
        config.write_text(_SSHD.format(folder=self.folder, home=self.home, path=path, engine=engine))
        inside = ["ip", "netns", "exec", self.space] if self.space else []
        command = [*inside, "/usr/sbin/sshd", "-D", "-e", "-f", str(config), "-p", str(self.port)]
        command += ["-o", f"ListenAddress={self.address}"]
        with open(self.folder / "sshd.log", "ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + 30
        while "Server listening" not in (self.folder / "sshd.log").read_text():
            assert self.process.poll() is None, (self.folder / "sshd.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            below = psutil.Process(self.process.pid).children(recursive=True)
            self.process.kill()
            self.process.wait()
            for process in below:
                with suppress(psutil.NoSuchProcess):
                    process.kill()


class Lab:
    """Several machines, and the configuration of ssh that names them a, b, c."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        os.makedirs("/run/sshd", exist_ok=True)  # where sshd wants to separate privileges
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{folder}/key")
        self.machines: dict[str, Machine] = {}
        self.spaces: list[str] = []
        self.links: list[str] = []

    @property
    def config(self) -> Path:
        return self.folder / "ssh_config"

    def add(self, name: str, *, path: str = "") -> Machine:
        """A machine on loopback."""
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        return self._add(Machine(self.folder / name, name, "127.0.0.1", port), path)

    def add_space(self, name: str, number: int) -> Machine:
        """A machine in a namespace: one cable to this machine (10.78.NUMBER.2), one to the switch (10.79.0.NUMBER)."""
        tag = f"{os.getpid() % 10_000:04d}"
        space = f"ssh-{tag}-{name}"
        if not self.spaces:
            _run("ip", "netns", "add", f"ssh-{tag}-hub")
            self.spaces.append(f"ssh-{tag}-hub")
            _run("ip", "-n", self.spaces[0], "link", "add", "hub", "type", "bridge")
            _run("ip", "-n", self.spaces[0], "link", "set", "hub", "up")
        _run("ip", "netns", "add", space)
        self.spaces.append(space)
        _run("ip", "-n", space, "link", "set", "lo", "up")
        ours = f"s{tag}{name}"
        self.links.append(ours)
        subnet = f"10.{78 + os.getpid() % 100}.{number}"
        _run("ip", "link", "add", ours, "type", "veth", "peer", "name", "home", "netns", space)
        _run("ip", "addr", "add", f"{subnet}.1/24", "dev", ours)
        _run("ip", "link", "set", ours, "up")
        _run("ip", "-n", space, "addr", "add", f"{subnet}.2/24", "dev", "home")
        _run("ip", "-n", space, "link", "set", "home", "up")
        _run("ip", "-n", space, "link", "add", "lan", "type", "veth", "peer", "name", f"to{name}", "netns", self.spaces[0])
        _run("ip", "-n", self.spaces[0], "link", "set", f"to{name}", "master", "hub", "up")
        _run("ip", "-n", space, "addr", "add", f"192.168.79.{number}/24", "dev", "lan")
        _run("ip", "-n", space, "link", "set", "lan", "up")
        machine = Machine(self.folder / name, name, f"{subnet}.2", 22, space)
        self._add(machine, "")
        return machine

    def cable(self, name: str, state: str) -> None:
        """Pulls the cable between a machine and this one (`down`), or puts it back (`up`)."""
        _run("ip", "-n", self.machines[name].space, "link", "set", "home", state)

    def _add(self, machine: Machine, path: str) -> Machine:
        machine.start((self.folder / "key.pub").read_text(), path)
        self.machines[machine.name] = machine
        self.write()
        return machine

    def write(self) -> None:
        parts = [_CLIENT.format(name=one.name, address=one.address, port=one.port) for one in self.machines.values()]
        self.config.write_text("".join(parts) + _ALL.format(folder=self.folder))
        known = "".join(f"{one.name} {one.host_key}\n" for one in self.machines.values())
        (self.folder / "known_hosts").write_text(known)

    def job(self, script: str, **fields: object) -> Path:
        """A job file with a script, for all machines."""
        code = self.folder / "code"
        code.mkdir(exist_ok=True)
        (code / "train.py").write_text(script)
        ssh = {
            "config": str(self.config),
            "python": sys.executable,
            "toolkit": "send",
            "folder": str(self.there),
            **fields.pop("ssh", {}),
        }  # type: ignore[dict-item]
        job = {"program": "code/train.py", "hosts": list(self.machines), "ssh": ssh, "name": "far", **fields}
        path = self.folder / "job.yaml"
        path.write_text(yaml.safe_dump(job))
        return path

    def trainshed(self, *arguments: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "trainshed", *arguments], cwd=self.folder, env=self.environment(), text=True,
            capture_output=True, timeout=timeout, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "trainshed", *arguments], cwd=self.folder, env=self.environment(), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SM_", "TRAINSHED_"))}
        return {**kept, "PYTHONPATH": str(TOOLKIT), "HOME": str(self.folder), "XDG_STATE_HOME": str(self.folder / "state")}

    @property
    def there(self) -> Path:
        """trainshed's folder on the machines, which share their disk."""
        return self.folder / "there"

    @property
    def left(self) -> list[Path]:
        """What is left of runs there."""
        return sorted((self.there / "runs").iterdir()) if (self.there / "runs").is_dir() else []

    @property
    def run(self) -> Path:
        """The only run's folder."""
        (found,) = (self.folder / "runs").iterdir()
        return found

    def close(self) -> None:
        for machine in self.machines.values():
            machine.stop()
        for link in self.links:  # at once; a namespace goes when its last process has
            subprocess.run(["ip", "link", "del", link], check=False, capture_output=True)
        for space in self.spaces:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)
