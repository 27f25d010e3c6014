"""A process here for each host there: passes on what `train` prints, over as many connections as it takes.

It is a child of the runner, which knows it as the host. Its standard output is the log there, byte by byte from the first
one: it counts what it has passed on, and a new connection goes on from there. On standard error it writes JSON, one object
a line: `{"say": ...}` for people, and at last `{"end": {"code": ..., "note": ...}}`. On standard input come the order
(JSON, one line) and then what to do: `stop`, `hurry`, `kill`. When that ends the runner is gone, and so is this process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

from trainshed.base.errors import EXIT_UNAVAILABLE
from trainshed.base.units import duration
from trainshed.runner.job.machine_names import Address

from .agent import ENDED, HERE, LOST
from .connection import SSH_FAILED, Connection, SshError, in_words

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0  # seconds between two tries to connect
KILL_SECONDS = 20.0  # that a machine may take to hear that everything is to be killed
SIGNALS = {"stop": "SIGTERM", "hurry": "SIGINT", "kill": "SIGKILL"}


@dataclass(frozen=True)
class FollowRequest:
    """Whom to follow.

    address, sockets, number, config: of the connection.
    agent: the shell command of the agent there, without its arguments; host: the host's folder there.
    patience: seconds without any connection after which the host counts as lost.
    """

    address: dict[str, Any]
    sockets: str
    number: int
    config: str
    agent: str
    host: str
    patience: float

    def connection(self) -> Connection:
        """The way there."""
        return Connection(Address(**self.address), self.sockets, self.number, self.config)

    def line(self) -> bytes:
        """For standard input."""
        return json.dumps(asdict(self)).encode() + b"\n"


class Follower:
    """One host being followed."""

    def __init__(self, order: FollowRequest) -> None:
        self.order = order
        self.connection = order.connection()
        self.position = 0  # bytes passed on
        self.lost_at: float | None = None
        self.told = False  # that the connection is lost
        self.end: dict[str, Any] | None = None
        self.kill_by: float | None = None
        self.lock = threading.Lock()

    def to_the_end(self) -> int:
        """Until `train` has ended there, or the host is given up; the exit status."""
        threading.Thread(target=self._obey, daemon=True, name="orders").start()
        pause = FIRST_PAUSE
        while self.end is None:
            before = self.position
            why = self._connected()
            if self.end is not None:
                break
            now = time.monotonic()
            if self.lost_at is None or self.position > before:
                self.lost_at, pause = self.lost_at or now, FIRST_PAUSE
            self._note_lost(why)
            if self.kill_by is not None and now >= self.kill_by:
                self._give_up(LOST, f"{self.connection.name} cannot be reached to end it there ({why}): it may still run")
            elif now - self.lost_at >= self.order.patience:
                away = duration(now - self.lost_at)
                self._give_up(EXIT_UNAVAILABLE, f"{self.connection.name} has been out of reach for {away}: {why}")
            else:
                time.sleep(min(pause, 1.0) if self.kill_by is not None else pause)
                pause = min(pause * 2, LONGEST_PAUSE)
        tell(end=self.end)
        return int(self.end["code"]) & 0xFF if self.end["code"] else 0

    def _connected(self) -> str:
        """One connection, until it ends; why it ended, unless with the job."""
        remote = f"{self.order.agent} follow {_quoted(self.order.host)} {self.position}"
        process = subprocess.Popen(
            self.connection.command(remote),
            stdin=subprocess.PIPE,  # its end is the agent's sign that nobody is there
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        errors: list[str] = []
        reader = threading.Thread(target=self._read_errors, args=(process.stderr, errors), daemon=True)
        reader.start()
        with process.stdin, process.stdout:
            while data := os.read(process.stdout.fileno(), 1 << 16):
                _write(data)
                self.position += len(data)
        reader.join()
        code = process.wait()
        text = "".join(errors)
        if self.end is not None:
            return ""
        if code == SSH_FAILED:
            return in_words(self.connection.address, text)[0]
        return text.strip().splitlines()[-1] if text.strip() else f"the connection ended with {code}"

    def _read_errors(self, pipe: BinaryIO, errors: list[str]) -> None:
        """The agent's lines and ssh's own."""
        end: dict[str, Any] | None = None
        with pipe:
            for raw in pipe:
                line = raw.decode("utf-8", "replace")
                if line.startswith(ENDED):
                    end = json.loads(line[len(ENDED) :])
                elif line.startswith(HERE):
                    self._note_back()
                else:
                    errors.append(line)
        self.end = self.end or end

    def _note_lost(self, why: str) -> None:
        if not self.told and self.kill_by is None:
            tell(say=f"the connection to {self.connection.name} is lost ({why}): the job goes on there; trying again")
        self.told = True

    def _note_back(self) -> None:
        if self.lost_at is not None:
            away = duration(time.monotonic() - self.lost_at)
            tell(say=f"{self.connection.name} is back after {away}; its log goes on where it stopped")
        self.lost_at, self.told = None, False

    def _give_up(self, code: int, note: str) -> None:
        self.end = {"code": code, "note": note, "reached": False}

    def _obey(self) -> None:
        """Does what comes on standard input; a signal is sent until the machine has it."""
        for raw in sys.stdin.buffer:
            word = raw.decode("ascii", "replace").strip()
            if word == "kill" and self.kill_by is None:
                self.kill_by = time.monotonic() + KILL_SECONDS
                threading.Timer(KILL_SECONDS + 5, self._leave).start()
            if word in SIGNALS:
                threading.Thread(target=self._signal, args=(SIGNALS[word],), daemon=True).start()
        os._exit(0)  # the runner is gone: whoever takes the run up follows the host anew

    def _leave(self) -> None:
        """The last resort of a killed host: a connection that hangs must not keep the runner."""
        tell(end={"code": LOST, "note": f"{self.connection.name} does not answer: it may still run there", "reached": False})
        os._exit(LOST)

    def _signal(self, name: str) -> None:
        remote = f"{self.order.agent} signal {_quoted(self.order.host)} {name}"
        while self.end is None:
            try:
                if self.connection.run(remote, seconds=30).code == 0:
                    return
            except SshError:
                pass
            time.sleep(1)


_TELLING = threading.Lock()


def tell(**what: object) -> None:
    """One line for the runner."""
    with _TELLING:
        sys.stderr.write(json.dumps(what) + "\n")
        sys.stderr.flush()


def _quoted(text: str) -> str:
    from .connection import quoted

    return quoted(text)


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def main() -> None:
    """Follows whom the first line of standard input names."""
    order = FollowRequest(**json.loads(sys.stdin.buffer.readline()))
    code = Follower(order).to_the_end()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
