"""The hosts of one case, inside namespaces that hold nothing else: what they run on, and what is done to them.

The case is process 1 of its PID namespace, alone in a network and a mount namespace. Each of several hosts has a network
namespace and a cable to a bridge; a host whose `train` is process 1 has a PID namespace, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from support.paths import TOOLKIT

from .schedule import Schedule

SETTINGS = {
    "trainshed_host_timeout_seconds": 20,
    "trainshed_install_timeout_seconds": 8,  # less than the other hosts wait
    "trainshed_grace_seconds": 8,
    "trainshed_processes_per_host": 1,
}
MODEL_BYTES = {"run": 3_000_000}  # enough to be packed for a while
DISTRIBUTIONS = {"script": {}, "torchrun": {"trainshed_distribution": "torchrun"}, "mpi": {"trainshed_distribution": "mpi"}}
DISTRIBUTIONS["ddp"] = DISTRIBUTIONS["torchrun"]
DISTRIBUTIONS["elastic"] = {"trainshed_distribution": "torchrun", "trainshed_engine": "torchrun"}
DISK = "24m"  # of each host's folder
INDEX = "10.9.0.254"  # where a package index would be: it takes connections and says nothing

_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWUTS = 0x04000000  # <linux/sched.h>


class Host:
    """One host: a folder on a disk of its own, an address, and `train` once it is started."""

    def __init__(self, schedule: Schedule, folder: Path, number: int) -> None:
        self.schedule, self.number = schedule, number
        self.name = f"algo-{number + 1}"
        self.folder = folder / self.name
        self.base, self.tmp = self.folder / "ml", self.folder / "tmp"
        self.process: subprocess.Popen[bytes] | None = None
        self.killed = False  # `train` got SIGKILL
        self.started = 0.0
        self._namespace = ["nsenter", f"--net=/run/netns/{self.name}"] if schedule.hosts > 1 else []
        self.folder.mkdir()
        sh("mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(self.folder))
        for place in (self.base / "input/config", self.base / "code", self.tmp, self.folder / "marks"):
            place.mkdir(parents=True)
        for fault in schedule.faults:
            if fault.place and fault.host == number:
                self._place(fault.place).mkdir(exist_ok=True)
                sh("mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(self._place(fault.place)))
        hosts = [f"algo-{one + 1}" for one in range(schedule.hosts)]
        interface = "eth0" if schedule.hosts > 1 else "lo"
        self._config("resourceconfig", {"current_host": self.name, "hosts": hosts, "network_interface_name": interface})
        values = {**SETTINGS, "trainshed_processes_per_host": schedule.ranks, **DISTRIBUTIONS[schedule.launcher]}
        self._config("hyperparameters", {name: str(value) for name, value in values.items()})
        shutil.copy(Path(__file__).with_name("rank.py"), self.base / "code/train.py")
        if any(fault.moment == "installing" and fault.host == number for fault in schedule.faults):
            url = f"http://{INDEX if schedule.hosts > 1 else '127.0.0.1'}:8000/slow-1.0-py3-none-any.whl"
            (self.base / "code/requirements.txt").write_text(f"slow @ {url}\n")

    def _config(self, name: str, value: object) -> None:
        (self.base / f"input/config/{name}.json").write_text(json.dumps(value))

    def start(self) -> None:
        """Starts `train`."""
        schedule = self.schedule
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "TMPDIR": str(self.tmp),
            "SAGEMAKER_BASE_DIR": str(self.base),
            "PYTHONPATH": str(TOOLKIT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "PLAY_SCRIPT": script_plan(schedule),
            "PLAY_MARKS": str(self.folder / "marks"),
        }
        inside = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"] if schedule.init else []
        if schedule.init:  # as the shell half of the command `train` does
            inside += ["env", *(f"--block-signal={number.name[3:]}" for number in STOPPING.values())]
        command = [*self._namespace, *inside, sys.executable, "-m", "trainshed.container.main"]
        with (self.folder / "printed").open("wb") as printed:
            self.process = subprocess.Popen(
                command,
                env=environment,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                preexec_fn=self._take_name,
            )
        self.started = time.monotonic()

    def _take_name(self) -> None:
        """Between fork and exec: this host's own machine name, which its /etc/hosts knows."""
        if _LIBC.unshare(_CLONE_NEWUTS) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        socket.sethostname(self.name)

    @property
    def printed(self) -> str:
        """What `train` has printed so far."""
        path = self.folder / "printed"
        return path.read_text(errors="replace") if path.exists() else ""

    def reached(self, phase: str, rank: int = 0) -> bool:
        """Whether a rank has told that it is in this phase, or beyond it."""
        return (self.folder / f"marks/{self.name}.{rank}.{phase}").exists()

    @property
    def over(self) -> bool:
        """Whether `train` has ended."""
        return self.process is not None and self.process.poll() is not None

    def train(self) -> int | None:
        """The process id of `train`, None where it has not started or has ended."""
        if self.process is None or self.over:
            return None
        if not self.schedule.init:
            return self.process.pid
        children = read(f"/proc/{self.process.pid}/task/{self.process.pid}/children").split()
        return int(children[0]) if children else None

    def rank(self, number: int) -> int | None:
        """The process id of a rank's script, None where it does not run."""
        for pid in processes():
            environ = read(f"/proc/{pid}/environ").encode()
            if f"SAGEMAKER_BASE_DIR={self.base}".encode() not in environ:
                continue
            words = read(f"/proc/{pid}/cmdline").split("\0")
            local = re.search(rb"(?:^|\0)(?:LOCAL_RANK|OMPI_COMM_WORLD_LOCAL_RANK)=(\d+)", environ)
            if "train.py" in words and int(local[1] if local else 0) == number:
                return pid
        return None

    def all_processes(self) -> list[int]:
        """Everything that runs on this host."""
        mark = f"SAGEMAKER_BASE_DIR={self.base}"
        return [pid for pid in processes() if mark in read(f"/proc/{pid}/environ").split("\0")]

    def fill(self, place: str) -> None:
        """Fills a folder's disk, as another program would."""
        with contextlib.suppress(OSError), (self._place(place) / "filler").open("wb") as file:
            while True:
                file.write(b"x" * 65_536)
                file.flush()

    def _place(self, name: str) -> Path:
        return self.tmp if name == "tmp" else self.base / name


class Ground:
    """The hosts of a case and the wires between them."""

    def __init__(self, schedule: Schedule, folder: Path) -> None:
        self.schedule = schedule
        sh("mount", "-t", "tmpfs", "tmpfs", "/run")
        Path("/run/netns").mkdir()
        self._wires()
        (folder / "hosts").write_text(
            "127.0.0.1 localhost\n"
            + "".join(f"{_address(schedule, number)} algo-{number + 1}\n" for number in range(schedule.hosts))
        )
        sh("mount", "--bind", str(folder / "hosts"), "/etc/hosts")
        self._index = socket.create_server((INDEX if schedule.hosts > 1 else "127.0.0.1", 8000))
        self._index.setblocking(False)
        self._asked: list[socket.socket] = []
        self.hosts = [Host(schedule, folder, number) for number in range(schedule.hosts)]

    def _wires(self) -> None:
        names = [f"algo-{number + 1}" for number in range(self.schedule.hosts)] if self.schedule.hosts > 1 else []
        lines = ["link set lo up"]
        if names:
            lines += ["link add bridge type bridge", f"addr add {INDEX}/24 dev bridge", "link set bridge up"]
        for number, name in enumerate(names):
            sh("ip", "netns", "add", name)
            lines += [
                f"link add wire{number} type veth peer name eth0 netns {name}",
                f"link set wire{number} master bridge up",
            ]
        _batch(lines)
        for number, name in enumerate(names):
            address = f"addr add {_address(self.schedule, number)}/24 dev eth0"
            _batch(["link set lo up", address, "link set eth0 up"], "-netns", name)

    @property
    def index_was_asked(self) -> bool:
        """Whether pip has asked for a package; it is kept waiting."""
        with contextlib.suppress(BlockingIOError):
            self._asked.append(self._index.accept()[0])
        return bool(self._asked)

    def cut(self, host: int, off: bool) -> None:
        """Takes a host's packets away, in both directions and without a word, or gives them back."""
        sh("bridge", "link", "set", "dev", f"wire{host}", "state", "0" if off else "3")

    def slow(self, host: int) -> None:
        """64 kbit/s in each direction, for good."""
        limit = ["root", "tbf", "rate", "64kbit", "burst", "4kb", "latency", "400ms"]
        sh("tc", "qdisc", "add", "dev", f"wire{host}", *limit)
        sh("tc", "-n", f"algo-{host + 1}", "qdisc", "add", "dev", "eth0", *limit)

    def lose(self, host: int, share: float) -> None:
        """Loses a share of the packets that a host would get, for good."""
        drop = ["-m", "statistic", "--mode", "random", "--probability", str(share), "-j", "DROP"]
        sh("nsenter", f"--net=/run/netns/algo-{host + 1}", "iptables", "-A", "INPUT", "-i", "eth0", *drop)


def script_plan(schedule: Schedule) -> str:
    """What rank.py is to do."""
    plan = {
        "steps": schedule.steps,
        "pause": schedule.pause,
        "handles": schedule.handles,
        "torch": schedule.launcher in ("ddp", "elastic"),
        "model_bytes": MODEL_BYTES.get(schedule.launcher, 65_536),
    }
    return json.dumps(plan)


def processes() -> list[int]:
    """The processes of this PID namespace and those inside it, without this one and without zombies."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            state = read(f"/proc/{name}/stat").rpartition(")")[2].split()
            if state and state[0] != "Z":
                found.append(int(name))
    return found


def signalled(pid: int | None, number: int) -> bool:
    """Sends a signal; returns whether there was a process for it."""
    if pid is None:
        return False
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def heeds(pid: int | None, number: int) -> bool:
    """Whether a process has a handler for a signal, or holds it back until it has one."""
    # `unshare` holds some back while it forks, and lets its child lose them again before that becomes `train`.
    if read(f"/proc/{pid}/comm").strip() == "unshare":
        return False
    masks = re.findall(r"Sig(?:Cgt|Blk):\s*(\w+)", read(f"/proc/{pid}/status"))
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)


def command_of(pid: int) -> str:
    """A process's command line."""
    return read(f"/proc/{pid}/cmdline").replace("\0", " ").strip()


def wait_for(condition: object, seconds: float) -> bool:
    """Whether `condition()` came to hold in time. On a machine that is too busy to run us, less of the time counts."""
    before, waited = time.monotonic(), 0.0
    while not condition():  # type: ignore[operator]
        now = time.monotonic()
        waited += min(now - before, 0.03)
        before = now
        if waited > seconds:
            return False
        time.sleep(0.004)
    return True


def _address(schedule: Schedule, number: int) -> str:
    return f"10.9.0.{number + 1}" if schedule.hosts > 1 else "127.0.0.1"


def read(path: str) -> str:
    """A file's text, "" where it is not there (any more)."""
    try:
        return Path(path).read_bytes().decode(errors="replace")
    except OSError:  # the process has ended
        return ""


def sh(*command: str) -> None:
    """Runs a command. Raises CalledProcessError."""
    subprocess.run(command, check=True, capture_output=True)


def _batch(lines: list[str], *options: str) -> None:
    subprocess.run(["ip", *options, "-batch", "-"], input="\n".join(lines).encode(), check=True, capture_output=True)


STOPPING = {name: getattr(signal, f"SIG{name}") for name in ("TERM", "INT", "HUP")}
