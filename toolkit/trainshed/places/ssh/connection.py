"""This machine's ssh, as its user has set it up: one connection for each host, shared by all commands; errors in words.

Commands never ask for anything (BatchMode): who has no terminal would wait for ever. A connection that has died is noticed
within `ALIVE_SECONDS` * `ALIVE_COUNT`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from typing import IO

from trainshed.base.errors import EXIT_UNAVAILABLE, TrainshedError
from trainshed.runner.job.machine_names import Address

CONNECT_SECONDS = 10
ALIVE_SECONDS, ALIVE_COUNT = 5, 3
PERSIST_SECONDS = 60  # that a connection outlives its last command: a killed runner leaves none for long
LONGEST_SOCKET = 60  # characters of the folder: sun_path has 104, of which ssh needs some for a name of its own
SSH_FAILED = 255  # what ssh exits with when it is not the command that failed


class SshError(TrainshedError):
    """A machine cannot be reached, or refuses."""

    exit_code = EXIT_UNAVAILABLE


class MachineUnreachable(SshError):
    """The connection failed, which a later one need not do."""


@dataclass(frozen=True)
class CommandResult:
    """The answer of a command."""

    code: int
    output: bytes
    errors: str

    @property
    def last_error(self) -> str:
        """Its last line of errors."""
        lines = [line.strip() for line in self.errors.splitlines() if line.strip()]
        return lines[-1] if lines else f"exit status {self.code}"


class Sockets:
    """The short private folder with the sockets of the shared connections."""

    def __init__(self) -> None:
        place = tempfile.gettempdir()
        place = place if len(place) < LONGEST_SOCKET - 30 else "/tmp"
        self.folder = tempfile.mkdtemp(prefix=f"trainshed-{os.getpid()}-ssh-", dir=place)  # 0700; see leftovers.py

    def close(self) -> None:
        """Removes the folder; the connections have ended."""
        shutil.rmtree(self.folder, ignore_errors=True)


class Connection:
    """The way to one machine.

    Args:
        sockets: folder of `Sockets`.
        number: of the host.
    """

    def __init__(self, address: Address, sockets: str, number: int, config: str = "") -> None:
        self.address, self.sockets, self.number, self.config = address, sockets, number, config

    @property
    def name(self) -> str:
        """The machine, as the job names it."""
        return self.address.text

    def command(self, remote: str) -> list[str]:
        """The command line that runs a shell command there."""
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": str(CONNECT_SECONDS),
            "ServerAliveInterval": str(ALIVE_SECONDS),
            "ServerAliveCountMax": str(ALIVE_COUNT),
            "ControlMaster": "auto",
            "ControlPath": f"{self.sockets}/{self.number}",
            "ControlPersist": str(PERSIST_SECONDS),
            "ForwardAgent": "no",
            "ForwardX11": "no",
            "ClearAllForwardings": "yes",
            "RequestTTY": "no",
            "RemoteCommand": "none",
            "LogLevel": "ERROR",
        }
        given = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
        return ["ssh", *self._where(), *given, "-T", "--", self.address.destination, remote]

    def run(
        self,
        remote: str,
        *,
        stdin: bytes | IO[bytes] = b"",
        stdout: IO[bytes] | int = subprocess.PIPE,
        seconds: float | None = 120.0,
    ) -> CommandResult:
        """Runs a shell command there. Raises MachineUnreachable where ssh itself fails, or there is no answer in time."""
        piped = isinstance(stdin, bytes)
        try:
            done = subprocess.run(
                self.command(remote),
                stdout=stdout,
                stderr=subprocess.PIPE,
                timeout=seconds,
                start_new_session=True,  # the terminal's Ctrl-C is for the runner alone
                **({"input": stdin} if piped else {"stdin": stdin}),  # type: ignore[call-overload]
            )
        except subprocess.TimeoutExpired:
            raise MachineUnreachable(f"{self.name}: no answer in {seconds:.0f} s") from None
        except FileNotFoundError:
            raise SshError("ssh is not installed here", hint="install an OpenSSH client") from None
        errors = done.stderr.decode("utf-8", "replace")
        if done.returncode == SSH_FAILED:
            message, hint = in_words(self.address, errors)
            raise MachineUnreachable(f"{self.name}: {message}", hint=hint)
        return CommandResult(done.returncode, done.stdout or b"", errors)

    def hostname(self) -> str:
        """The machine's name or address as ssh's configuration has it."""
        command = ["ssh", *self._where(), "-G", "--", self.address.destination]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        lines = (line.partition(" ") for line in done.stdout.splitlines())
        return next((value for name, _, value in lines if name == "hostname"), self.address.host)

    def close(self) -> None:
        """Ends the shared connection."""
        path = f"{self.sockets}/{self.number}"
        if os.path.exists(path):
            command = ["ssh", *self._where(), "-o", f"ControlPath={path}", "-O", "exit", "--", self.address.destination]
            try:
                subprocess.run(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=10
                )
            except (OSError, subprocess.TimeoutExpired):
                pass

    def _where(self) -> list[str]:
        parts = ["-F", self.config] if self.config else []
        return [*parts, "-p", str(self.address.port)] if self.address.port else parts


def quoted(*words: str) -> str:
    """A command for the shell there, whatever it is: quotes that sh, fish and csh read alike."""
    return shlex.join(words)


def in_words(address: Address, errors: str) -> tuple[str, str]:
    """(what went wrong, what to do) from what ssh has printed."""
    lines = [line.strip() for line in errors.splitlines() if line.strip() and not set(line.strip()) <= set("@")]
    said = lines[-1] if lines else "it does not answer"
    low = errors.lower()
    port = f"-p {address.port} " if address.port else ""
    if "remote host identification has changed" in low:
        name = f"[{address.host}]:{address.port}" if address.port else address.host
        return (
            "its host key is another one than known_hosts has: it was installed anew, or something else answers for it",
            f"if you know why: `ssh-keygen -R '{name}'`, then connect once with `ssh {port}{address.destination}`",
        )
    if "host key verification failed" in low or "no matching host key" in low:
        return (
            "its host key is not known here",
            f"connect once with `ssh {port}{address.destination}` and compare the fingerprint that it shows",
        )
    if "bad permissions" in low or "unprotected private key" in low:
        return "your private key can be read by others, so ssh ignores it", "chmod 600 the key file"
    if "permission denied" in low or "too many authentication failures" in low:
        return (
            "it refuses your keys (a password is never asked for)",
            f"`ssh-copy-id {port}{address.destination}` puts your key there; a key with a passphrase must be in the "
            "agent: `ssh-add`",
        )
    if "could not resolve hostname" in low:
        return "there is no machine of this name", "check the name, or give it a HostName in ~/.ssh/config"
    if "connection refused" in low:
        return "nothing answers at its ssh port", "is sshd running there, and is the port right (user@host:port)?"
    if "timed out" in low or "no route to host" in low or "network is unreachable" in low:
        return f"it cannot be reached: {said}", "is it on, and is the network (a VPN, a ProxyJump) there?"
    return said, ""
