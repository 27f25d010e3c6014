"""One schedule for `trainshed run` with its hosts as processes: stopped, killed, out of disk, also while it collects."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path

from support.paths import TOOLKIT

from .ground import STOPPING, command_of, heeds, processes, read, script_plan, sh, signalled, wait_for
from .rules import EARLY, OURS, Judged, whole
from .schedule import PHASES, SIGNALS, Fault, Schedule

LIMIT = 60.0  # seconds after the last fault within which the runner must have ended, and then its hosts
JOB = """\
name: played
program: train.py
instances: {hosts}
output: disk/run
grace_seconds: 8
environment: {{PLAY_SCRIPT: {script}, PLAY_MARKS: {marks}}}
"""


class RunCase:
    """A schedule while it is played. Process 1 of a PID namespace, so that nothing else is there."""

    def __init__(self, schedule: Schedule, folder: Path) -> None:
        self._schedule, self._folder = schedule, folder
        self._project, self._marks, self._tmp = folder / "project", folder / "marks", folder / "tmp"
        self._disk = self._project / "disk"
        self._out = self._disk / "run"
        for place in (self._project, self._marks, self._tmp, self._disk):
            place.mkdir()
        sh("ip", "link", "set", "lo", "up")
        sh("mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(self._disk))
        shutil.copy(Path(__file__).with_name("rank.py"), self._project / "train.py")
        script = json.dumps(script_plan(schedule))  # as text of YAML
        job = JOB.format(hosts=schedule.hosts, script=script, marks=json.dumps(str(self._marks)))
        (self._project / "job.yaml").write_text(job)
        self._environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "TMPDIR": str(self._tmp),
            "XDG_STATE_HOME": str(folder / "state"),
            "PYTHONPATH": str(TOOLKIT),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self._began = time.monotonic()
        self._said: list[str] = []
        self._met: list[Fault] = []  # those that came in time
        self._killed = False  # the runner
        self._unborn = False  # it got a stop signal before it had handlers

    def play(self) -> Judged:
        """Starts the runner, does what is planned, waits for its end, clears up as a person would, and judges."""
        with (self._folder / "printed").open("wb") as printed:
            self._runner = subprocess.Popen(
                [sys.executable, "-m", "trainshed.cli", "run", "job.yaml"],
                cwd=self._project,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
            )
        actions = [threading.Thread(target=self._act, args=(fault,)) for fault in self._schedule.faults]
        for action in actions:
            action.start()
        for action in actions:
            action.join()
        found = [] if wait_for(lambda: self._over, LIMIT) else ["hangs: the runner did not end within 60 s"]
        if self._killed and (self._out / "status.json").exists():
            # What a killed runner leaves is found again, and ended, by the next command.
            done = self._trainshed("rm", "--force", str(self._out))
            self._say(f"rm --force: {done.returncode}\n{done.stdout}{done.stderr}")
            if done.returncode != 0 and not self._full:
                found.append(f"rm --force of the run ended with {done.returncode}")
        wait_for(lambda: not self._left(), 10.0)
        found += [f"left running: {command_of(pid)}" for pid in self._left()]
        return self._judged(found)

    @property
    def _over(self) -> bool:
        return self._runner.poll() is not None

    @property
    def _full(self) -> bool:
        return any(fault.kind == "full" for fault in self._met)

    def _act(self, fault: Fault) -> None:
        if not wait_for(lambda: self._there(fault), LIMIT) or self._over:
            self._say(f"{fault}: that moment never came")
            return
        time.sleep(fault.after)
        done = self._do(fault)
        self._say(f"{fault}: {'done' if done else 'too late'}")
        if done:
            self._met.append(fault)

    def _there(self, fault: Fault) -> bool:
        if self._over or fault.moment in ("birth", "random"):
            return True
        if fault.moment in PHASES:
            return (self._marks / f"algo-{fault.host + 1}.0.{fault.moment}").exists()
        return '"Uploading"' in read(f"{self._out}/status.json")

    def _do(self, fault: Fault) -> bool:
        if self._over:
            return False
        if fault.kind in STOPPING:
            heard = heeds(self._runner.pid, signal.SIGTERM)  # for SIGINT, Python itself has one
            done = signalled(self._runner.pid, STOPPING[fault.kind])
            self._unborn |= done and not heard
            return done and heard
        if fault.kind == "stop":
            return self._trainshed("stop", str(self._out)).returncode == 0
        if fault.kind == "kill runner":
            self._killed = signalled(self._runner.pid, signal.SIGKILL)
            return self._killed
        if fault.kind == "full":
            try:
                with (self._disk / "filler").open("wb") as file:
                    while True:
                        file.write(b"x" * 65_536)
                        file.flush()
            except OSError:
                return True
        victims = [pid for pid in processes() if self._is(fault, pid)]
        return any([signalled(pid, signal.SIGKILL) for pid in victims])

    def _is(self, fault: Fault, pid: int) -> bool:
        """Whether a process is the host's `train`, or its rank."""
        words = read(f"/proc/{pid}/cmdline").split("\0")
        if f"algo-{fault.host + 1}" not in read(f"/proc/{pid}/environ"):
            return False
        return "train.py" in words if fault.kind == "kill rank" else "trainshed.container.main" in words

    def _trainshed(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "trainshed.cli", *arguments]
        return subprocess.run(command, cwd=self._project, env=self._environ, capture_output=True, text=True, timeout=120)

    def _left(self) -> list[int]:
        """What runs although the runner has ended."""
        try:
            while self._over and os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        return [pid for pid in processes() if pid != self._runner.pid or not self._over]

    def _judged(self, found: list[str]) -> Judged:
        printed, status = read(f"{self._folder}/printed"), self._runner.returncode
        state = re.search(r'"TrainingJobStatus": "(\w+)"', read(f"{self._out}/status.json"))
        stands = state[1] if state else ""
        if not found:
            found += self._wrong(status, stands, printed)
        temporary = [path.name for path in self._tmp.iterdir()]
        if temporary and not self._killed:
            found.append(f"left in the temporary folder: {', '.join(temporary)}")
        kept = {"printed": printed.encode(), "status.json": read(f"{self._out}/status.json").encode()}
        return Judged(found, [f"status {status}, {stands or 'no status.json'}"], self._said, kept)

    def _wrong(self, status: int | None, stands: str, printed: str) -> list[str]:
        if self._killed:
            return []
        found = []
        if self._unborn:
            return [] if status else ["a stop signal was lost"]
        if OURS.search(printed):
            found.append("a traceback or an internal error of ours")
        if status == 0 or stands == "Completed":
            found += [f"{problem} (status {status}, {stands})" for problem in self._missing()]
        stopped_well = status == 0 and stands == "Stopped"
        if (status == 0) != (stands == "Completed") and not self._full and not stopped_well:
            found.append(f"status {status}, but status.json says {stands!r}")
        wanted = {"Completed"}.union(*(self._allowed(fault) for fault in self._met))
        if len(self._met) == 1 and self._met[0].moment in EARLY and self._met[0].kind != "full":
            wanted.discard("Completed")
        nothing_started = any(fault.kind in SIGNALS for fault in self._met) and not stands and status
        if stands not in wanted and not self._full and not nothing_started:
            found.append(f"status.json says {stands!r}, not {' or '.join(sorted(wanted))}")
        return found

    def _missing(self) -> list[str]:
        """What a completed run lacks."""
        if any(fault.kind == "stop" or fault.kind in SIGNALS for fault in self._met) and self._stands_stopped():
            return []
        found = []
        try:
            with tarfile.open(self._out / "output/model.tar.gz") as archive:
                names = {name.removeprefix("./"): name for name in archive.getnames()}
                for number in range(self._schedule.hosts):
                    name = f"model.algo-{number + 1}.0"
                    member = archive.extractfile(names[name]) if name in names else None
                    if member is None or not whole(member.read()):
                        found.append(f"completed, but {name} in model.tar.gz is not whole")
        except (OSError, tarfile.TarError, EOFError) as error:
            found.append(f"completed, but model.tar.gz cannot be read: {error}")
        return found

    def _stands_stopped(self) -> bool:
        return '"TrainingJobStatus": "Stopped"' in read(f"{self._out}/status.json")

    def _allowed(self, fault: Fault) -> set[str]:
        if fault.kind in SIGNALS or fault.kind == "stop":
            return {"Stopped"}
        return {"Failed"}

    def _say(self, text: str) -> None:
        self._said.append(f"{time.monotonic() - self._began:7.3f} {text}")
