"""One schedule, played to its end inside namespaces of its own; what came of it is written as JSON.

Here: hosts with `train`; `run_case` has `trainshed run`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from pathlib import Path

from .ground import STOPPING, Ground, Host, command_of, heeds, processes, signalled, wait_for
from .rules import DONE, HEARD, MISSED, UNHEARD, End, Judged, Played, problems
from .run_case import RunCase
from .schedule import PHASES, Fault, Schedule

LIMIT = 60.0  # seconds after the last fault within which every host must have ended
LINGER = 8.0  # seconds in which what a killed `train` left behind must be gone


class Case:
    """A schedule while it is played. Process 1 of a PID namespace, so that nothing else is there."""

    def __init__(self, schedule: Schedule, folder: Path) -> None:
        self._schedule, self._folder = schedule, folder
        self._ground = Ground(schedule, folder)
        self._began = time.monotonic()
        self._said: list[str] = []
        self._done: dict[int, str] = {}  # what became of each fault, by its number

    def play(self) -> Played:
        """Starts the hosts, does what is planned, waits for all of them to end, and gathers what they left."""
        actions = [threading.Thread(target=self._start)]
        actions += [threading.Thread(target=self._act, args=item) for item in enumerate(self._schedule.faults)]
        for action in actions:
            action.start()
        for action in actions:
            action.join()
        hung = not wait_for(lambda: all(host.over for host in self._ground.hosts), LIMIT)
        if hung:
            self._say("hung: " + "; ".join(f"{pid} {command_of(pid)}" for pid in processes()))
            self._stacks()
        else:
            wait_for(lambda: not self._left(), LINGER)
        left = () if hung else tuple(command_of(pid) for pid in self._left())
        ends = tuple(self._end(host) for host in self._ground.hosts)
        return Played(self._schedule, ends, hung, left, tuple(self._said), dict(self._done))

    def _start(self) -> None:
        for delay, host in sorted(zip(self._schedule.delays, self._ground.hosts, strict=True), key=lambda pair: pair[0]):
            self._sleep_until(delay)
            host.start()
            self._say(f"{host.name} started")

    def _act(self, number: int, fault: Fault) -> None:
        host = self._ground.hosts[fault.host]
        if not wait_for(lambda: host.process is not None and self._there(fault, host), LIMIT) or host.over:
            self._say(f"{fault}: that moment never came")
            self._done[number] = MISSED
            return
        time.sleep(fault.after)
        self._done[number] = self._do(fault, host)
        self._say(f"{fault}: {self._done[number]}")

    def _there(self, fault: Fault, host: Host) -> bool:
        """Whether a fault's moment has come, or cannot come any more."""
        if host.over or fault.moment == "birth":
            return True
        if fault.moment in PHASES:
            return host.reached(fault.moment, fault.rank)
        if fault.moment == "installing":
            return self._ground.index_was_asked
        now = time.monotonic()
        if fault.moment == "random":
            return now - self._began > min(self._schedule.delays)
        if fault.moment == "joining":
            return heeds(host.train(), signal.SIGTERM)
        return now - self._began > max(self._schedule.delays)

    def _do(self, fault: Fault, host: Host) -> str:
        if fault.kind in STOPPING:
            train = host.train()
            heard = heeds(train, signal.SIGTERM)  # for SIGINT, Python itself has one
            return (HEARD if heard else UNHEARD) if signalled(train, STOPPING[fault.kind]) else MISSED
        if fault.kind == "cut":
            self._ground.cut(fault.host, off=True)
            if fault.seconds:
                time.sleep(fault.seconds)
                self._ground.cut(fault.host, off=False)
        elif fault.kind == "slow":
            self._ground.slow(fault.host)
        elif fault.kind == "loss":
            self._ground.lose(fault.host, fault.loss)
        elif fault.kind == "full":
            host.fill(fault.place)
        elif fault.kind == "kill train":
            done = signalled(host.train(), signal.SIGKILL)
            host.killed |= done
            return DONE if done else MISSED
        elif fault.kind == "kill rank":
            return DONE if signalled(host.rank(fault.rank), signal.SIGKILL) else MISSED
        elif fault.kind == "kill host":
            met = [signalled(host.train(), signal.SIGKILL)]
            for _ in range(3):  # again, for those that were just being started
                met += [signalled(pid, signal.SIGKILL) for pid in host.all_processes()]
            host.killed |= any(met)
            return DONE if any(met) else MISSED
        else:
            return DONE if self._pause(fault, host) else MISSED
        return DONE

    def _pause(self, fault: Fault, host: Host) -> bool:
        what = {"train": [host.train()], "rank": [host.rank(fault.rank)]}.get(fault.kind.partition(" ")[2])
        if what is None:
            what = list(host.all_processes())
        stopped = [pid for pid in what if signalled(pid, signal.SIGSTOP)]
        time.sleep(fault.seconds)
        for pid in stopped:
            signalled(pid, signal.SIGCONT)
        return bool(stopped)

    def _left(self) -> list[int]:
        """What runs although every `train` has ended."""
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        return processes()

    def _stacks(self) -> None:
        """Has Python print where the hosts that hang are."""
        for host in self._ground.hosts:
            signalled(host.train(), signal.SIGUSR1)
        time.sleep(1)

    def _end(self, host: Host) -> End:
        files = {}
        for place in ("output", "model", "checkpoints"):
            for path in sorted((host.base / place).rglob("*")) if (host.base / place).is_dir() else []:
                if path.is_file() and path.name != "filler":
                    files[str(path.relative_to(host.base))] = path.read_bytes()
        status = None if host.process is None else host.process.returncode
        return End(
            name=host.name,
            status=status,
            killed=host.killed,
            printed=host.printed,
            failure=files.get("output/failure", b"").decode(errors="replace") if "output/failure" in files else None,
            success="output/success" in files,
            files=files,
            temporary=tuple(sorted(str(path.relative_to(host.tmp)) for path in host.tmp.iterdir() if path.name != "filler")),
        )

    def _sleep_until(self, seconds: float) -> None:
        time.sleep(max(0.0, self._began + seconds - time.monotonic()))

    def _say(self, text: str) -> None:
        self._said.append(f"{time.monotonic() - self._began:7.3f} {text}")


def main(schedule: Schedule, folder: Path) -> None:
    """Plays a schedule and leaves `result.json` and what the hosts left in `folder`."""
    began = time.monotonic()
    played = RunCase(schedule, folder).play() if schedule.launcher == "run" else _judged(Case(schedule, folder).play())
    for name, data in played.kept.items():
        path = folder / "kept" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (folder / "said").write_text("\n".join(played.said) + "\n")
    result = {"problems": played.problems, "ends": played.ends, "said": played.said, "seconds": time.monotonic() - began}
    (folder / "result.json").write_text(json.dumps(result))


def _judged(played: Played) -> Judged:
    printed = {f"{end.name}.printed": end.printed.encode() for end in played.ends}
    written = {f"{end.name}/{name}": data for end in played.ends for name, data in end.files.items() if "output/" in name}
    return Judged(problems(played), [end.short for end in played.ends], list(played.said), {**printed, **written})
