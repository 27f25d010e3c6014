"""One machine that has been reached: its agent and what that says of it."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import IO, Any

from trainshed.base.errors import one_line

from .connection import SSH_FAILED, CommandResult, Connection, SshError, in_words, quoted
from .wishes import SshOptions

_END = "trainshed-agent-ends-here"
_NO_FOLDER = 91


@dataclass(frozen=True)
class MachineFacts:
    """The facts about a machine.

    python: version of the interpreter that was found; executable: where it is.
    modules: (version, file) of psutil, yaml and trainshed; None for one that is missing.
    folder: trainshed's own there; free: bytes on its disk.
    addresses: (interface, address) pairs, without loopback.
    engines: container engines on the PATH; rsync: whether there is one.
    ahead: seconds that its clock is ahead of ours.
    """

    python: tuple[int, ...]
    executable: str
    modules: dict[str, tuple[str, str] | None]
    folder: str
    free: int
    addresses: tuple[tuple[str, str], ...]
    engines: tuple[str, ...]
    rsync: bool
    uid: int
    gid: int
    ahead: float

    def interface(self, address: str) -> str:
        """The interface that has an address, "" for none (it is translated on the way)."""
        return next((name for name, own in self.addresses if own == address), "")


@lru_cache
def agent_text() -> tuple[str, str]:
    """(the agent's source, the name that its file has there)."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "agent.py"), encoding="utf-8") as file:
        text = file.read()
    return text, f"agent-{hashlib.sha256(text.encode()).hexdigest()[:12]}.py"


class Machine:
    """A machine with the agent in its folder."""

    def __init__(self, connection: Connection, facts: MachineFacts) -> None:
        self.connection, self.facts = connection, facts

    @property
    def name(self) -> str:
        """As the job names it."""
        return self.connection.name

    @classmethod
    def reach(cls, connection: Connection, options: SshOptions) -> Machine:
        """Lays the agent out and asks it. Raises SshError where the machine cannot be reached or cannot be used."""
        before = time.time()
        answer = connection.run("exec sh", stdin=arrival(options).encode())
        after = time.time()
        name = connection.name
        if answer.code == _NO_FOLDER:
            raise SshError(f"{name}: {options.folder} cannot be made there: {answer.last_error}",
                           hint="name another folder: ssh: {folder: /data/me}")  # fmt: skip
        if answer.code == 127 or "not found" in answer.errors or "No such file" in answer.errors:
            wanted = options.python or "python3"
            raise SshError(f"{name}: there is no {wanted}: {answer.last_error}",
                           hint="install Python 3.10 or newer there, or name it: ssh: {python: ~/venv}")  # fmt: skip
        lines = answer.output.decode("utf-8", "replace").splitlines()
        if len(lines) > 1:  # it would be in the midst of logs and results
            raise SshError(
                f"{name}: its shell prints {lines[0][:60]!r} at every login",
                hint="have ~/.bashrc there print to terminals alone, [ -t 1 ] && echo ...: scp and rsync need that, too",
            )
        try:
            said = json.loads(lines[-1])
            return cls(connection, facts_of({**said, "ahead": said["now"] - (before + after) / 2}))
        except (IndexError, ValueError, KeyError, TypeError):
            raise SshError(f"{name}: it does not answer as expected: {one_line(answer.last_error)}") from None

    def words(self, *words: str) -> str:
        """The shell command for the agent."""
        return quoted(self.facts.executable, "-I", f"{self.facts.folder}/{agent_text()[1]}", *words)

    def ask(
        self,
        *words: str,
        stdin: bytes | IO[bytes] = b"",
        stdout: IO[bytes] | int = subprocess.PIPE,
        seconds: float | None = 120.0,
    ) -> CommandResult:
        """Has the agent do something. Raises SshError where it does not."""
        answer = self.connection.run(self.words(*words), stdin=stdin, stdout=stdout, seconds=seconds)
        if answer.code != 0:
            raise SshError(f"{self.name}: {one_line(answer.last_error)}")
        return answer

    def open(self, *words: str) -> subprocess.Popen[bytes]:
        """The agent with pipes, for as long as its standard input is open."""
        return subprocess.Popen(
            self.connection.command(self.words(*words)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def trouble(self, code: int, errors: str) -> SshError:
        """The error with which a command of `open` has failed."""
        if code == SSH_FAILED:
            message, hint = in_words(self.connection.address, errors)
            return SshError(f"{self.name}: {message}", hint=hint)
        return SshError(f"{self.name}: {CommandResult(code, b'', errors).last_error}")


def arrival(options: SshOptions) -> str:
    """The script for the shell there that lays the agent out and asks it what the machine has."""
    text, name = agent_text()
    python = _at_home(options.python) if options.python else ""
    choice = f"python={python}" if python else "\n".join([
        "python=",
        'train=$(command -v train || command -v "$HOME/.local/bin/train") && python=$(sed -n "1s/^#! *//p" "$train")',
        'case $python in */python*) [ -x "$python" ] || python=python3 ;; *) python=python3 ;; esac',
    ])  # fmt: skip
    return "\n".join([
        "umask 077",
        f"folder={_at_home(options.folder)}",
        f'mkdir -p "$folder" && cat > "$folder/{name}.$$" <<\'{_END}\' || exit {_NO_FOLDER}',
        f"{text}{_END}",
        f'mv -f "$folder/{name}.$$" "$folder/{name}" || exit {_NO_FOLDER}',
        choice,
        '[ ! -d "$python" ] || python=$python/bin/python',
        f'exec "$python" -I "$folder/{name}" probe',
        "",
    ])  # fmt: skip


def _at_home(path: str) -> str:
    """A path for sh, where `~/` is the home there."""
    return '"$HOME"/' + shlex.quote(path[2:]) if path.startswith("~/") else shlex.quote(path)


def facts_of(said: dict[str, Any]) -> MachineFacts:
    """From what the agent has said, or a file kept of it. Raises KeyError, TypeError, ValueError."""
    modules: dict[str, tuple[str, str] | None] = {}
    for name, known in said["modules"].items():
        modules[str(name)] = None if known is None else (str(known[0]), str(known[1]))
    return MachineFacts(
        python=tuple(map(int, said["python"])),
        executable=str(said["executable"]),
        modules=modules,
        folder=str(said["folder"]),
        free=int(said["free"]),
        addresses=tuple((str(name), str(address)) for name, address in said["addresses"]),
        engines=tuple(map(str, said["engines"])),
        rsync=bool(said["rsync"]),
        uid=int(said["uid"]),
        gid=int(said["gid"]),
        ahead=float(said["ahead"]),
    )
