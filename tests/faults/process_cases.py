"""The rows of the failure table that need nothing but processes of this machine."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
from pathlib import Path

from support.docker_cli import Job
from support.free_ports import free_ports

from .harness import LIMIT, Case, Ended, Running, survivors, wait_until

HANDLED = """\
import traceback
try:
    int("seven")
except ValueError:
    traceback.print_exc()
"""

# A process that outlives the script: in a session of its own, with the script's stdout, deaf to polite signals.
STAYING_CHILD = """\
import os, subprocess, sys, time
child = (
    "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); "
    "open(f'deaf{os.getpid()}', 'w').close(); time.sleep(600)"
)
process = subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
while not os.path.exists(f"deaf{process.pid}"):
    time.sleep(0.01)
"""

DOUBLE_FORK = """\
import os, sys, time
def orphan(work):
    pid = os.fork()
    if pid == 0:
        if os.fork() == 0:
            work()
        os._exit(0)
    os.waitpid(pid, 0)
"""

HANDLER = """\
import signal, sys, time
def leave(*_):
    time.sleep(0.2)
    open("saved", "w").close()
    sys.exit({status})
signal.signal(signal.SIGTERM, leave)
print("ready")
time.sleep(600)
"""

IGNORES_SIGTERM = """\
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready")
time.sleep(600)
"""

WAITS = "import time\nprint('ready')\ntime.sleep(600)\n"


def listening(port: int) -> bool:
    """Whether somebody on this machine listens on a TCP port (proc(5), net/tcp: state 0A)."""
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return any(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows)


_roster_ports: dict[Path, int] = {}


def _choose_roster_port(job: Job) -> None:
    """A port of this case alone for the hosts to find each other by."""
    path = job.folder / "input/config/hyperparameters.json"
    port = _roster_ports[job.folder] = free_ports()
    path.write_text(json.dumps({**json.loads(path.read_text()), "trainshed_roster_port": str(port)}))


def send(*numbers: int) -> object:
    """An act: waits until the script says that it is ready, then sends `train` these signals."""

    def act(running: Running) -> None:
        for number in numbers:
            running.wait_for("ready")
            running.signal(number)
            running.wait_for("received" if number == numbers[0] else "again")

    return act


# How one process ends.


def _truncated_map() -> str:
    return (
        "import mmap, os, tempfile\n"
        "file = tempfile.TemporaryFile()\n"
        "file.truncate(8192)\n"
        "memory = mmap.mmap(file.fileno(), 8192)\n"
        "file.truncate(0)\n"
        "memory[4096]\n"
    )


ONE_PROCESS = [
    Case("exit 3", 3, ("UserError: the script exited with 3",), code="import sys\nsys.exit(3)\n"),
    Case(
        "exit with a message",
        1,
        ("the script exited with 1; its last line: no improvement, giving up",),
        code="import sys\nsys.exit('no improvement, giving up')\n",
    ),
    Case(
        "exception in a module of the user's",
        1,
        ("the script exited with 1: ValueError: bad label 17", "at data/reader.py:2 in load"),
        code="from data.reader import load\nload()\n",
        files={"code/data/reader.py": "def load():\n    raise ValueError('bad label 17')\n"},
    ),
    Case(
        "exception below a library's frames",
        1,
        ("JSONDecodeError: Expecting value", "at train.py:3 in read"),
        code="import json\ndef read():\n    json.loads('x')\nread()\n",
    ),
    Case(
        "exception raised from another",
        1,
        ("RuntimeError: no data", "at train.py:4"),
        code="try:\n    {}['train']\nexcept KeyError as error:\n    raise RuntimeError('no data') from error\n",
        then=lambda end: _holds(end, "KeyError: 'train'"),
    ),
    Case(
        "handled exception long before the end",
        3,
        ("the script exited with 3; its last line: step 499",),
        ("ValueError",),
        code=HANDLED + "import sys\nfor step in range(500):\n    print('step', step, file=sys.stderr)\nsys.exit(3)\n",
    ),
    Case(
        "script that does not parse",
        1,
        ("SyntaxError: '(' was never closed", "train.py:2", "hint: the script does not parse with this image's Python 3."),
        code="x = 1\nprint(\n",
    ),
    Case(
        "argument that the script does not take",
        2,
        ("train.py: error: unrecognized arguments: --epocs 3", "hyperparameter 'epocs'", "did you mean 'epochs'?"),
        code="import argparse\np = argparse.ArgumentParser()\np.add_argument('--epochs')\np.parse_args()\n",
        hyperparameters={"epocs": 3},
    ),
    Case(
        "killed by SIGKILL",
        137,
        ("the script was killed by SIGKILL", "got SIGKILL from outside"),
        code="import os\nos.kill(os.getpid(), 9)\n",
    ),
    Case(
        "segmentation fault",
        139,
        ("killed by SIGSEGV (segmentation fault in native code)", "Segmentation fault", "at train.py:3 in crash"),
        code="import ctypes\ndef crash():\n    ctypes.string_at(0)\ncrash()\n",
    ),
    Case(
        "segmentation fault after a handled exception",
        139,
        ("(segmentation fault in native code): Fatal Python error: Segmentation fault\n  at train.py:7",),
        code=HANDLED + "import ctypes\nctypes.string_at(0)\n",
    ),
    Case("abort", 134, ("killed by SIGABRT", "Aborted", "at train.py:2"), code="import os\nos.abort()\n"),
    Case(
        "bus error",
        135,
        ("killed by SIGBUS", "at train.py:6", "/dev/shm has"),
        code=_truncated_map(),
    ),
    Case(
        "secret in an exception",
        1,
        ("RuntimeError: login with ****** failed",),
        code="import os\nraise RuntimeError(f\"login with {os.environ['SM_HP_API_TOKEN']} failed\")\n",
        hyperparameters={"api_token": "tok-71e5c0ffee"},
        then=lambda end: _lacks_outside_console(end, "tok-71e5c0ffee"),
    ),
    Case(
        "script that writes its own reason",
        5,
        ("my own reason", "UserError: the script exited with 5"),
        code="import os, sys\nopen(os.environ['SM_OUTPUT_FAILURE'], 'w').write('my own reason')\nsys.exit(5)\n",
    ),
    Case(
        "script that removes the output folder",
        3,
        ("the script exited with 3",),
        code="import os, shutil, sys\nshutil.rmtree(os.environ['SM_OUTPUT_DIR'])\nsys.exit(3)\n",
    ),
    Case(
        "script that removes the output folder and succeeds",
        0,
        code="import os, shutil, sys\nshutil.rmtree(os.environ['SM_OUTPUT_DIR'])\n",
    ),
    Case(
        "script that puts a folder where the failure file belongs",
        3,
        code="import os, sys\nos.mkdir(os.environ['SM_OUTPUT_FAILURE'])\nsys.exit(3)\n",
        reportable=False,
        then=lambda end: _said(end, "cannot write", "output/failure: Is a directory", "the script exited with 3"),
    ),
    Case(
        "script that writes a reason and succeeds",
        0,
        code="import os\nopen(os.environ['SM_OUTPUT_FAILURE'], 'w').write('all is lost')\n",
    ),
]


def _holds(end: Ended, text: str) -> None:
    assert text.encode() in (end.failure or b""), f"{text!r} is not in the failure file"


def _said(end: Ended, *texts: str) -> None:
    for text in texts:
        assert text in end.stderr.decode(), end.stderr.decode()


def _lacks_outside_console(end: Ended, secret: str) -> None:
    """The console and the rank's log are the script's own words; ours must not repeat the secret."""
    head = (end.failure or b"").decode() + "".join(x for x in end.stderr.decode().splitlines() if x.startswith("trainshed:"))
    assert secret not in head and secret not in str(end.record)


# Until the process that has written its number to `pid` is gone; needs os and time.
UNTIL_OTHER_ENDED = """\
while not os.path.exists('pid') or os.path.exists('/proc/' + open('pid').read()):
    time.sleep(0.01)
"""

# Several ranks.

RANKS = [
    Case(
        "exception in rank 1 of 2",
        1,
        ("rank 1 on algo-1 exited with 1: ValueError: bad label 17", "at train.py:3"),
        code="import os, time\nif os.environ['RANK'] == '1':\n    raise ValueError('bad label 17')\ntime.sleep(600)\n",
        ranks=2,
    ),
    Case(
        "rank 0 ends first for want of rank 1",
        1,
        ("rank 1 on algo-1", "ValueError: bad label 17", "at train.py:4"),
        code="import os, sys, time, traceback\n"
        "if os.environ['RANK'] == '1':\n"
        "    try:\n        raise ValueError('bad label 17')\n"
        "    except ValueError:\n        traceback.print_exc()\n"
        "    open('raised', 'w').close()\n    time.sleep(600)\n"
        "while not os.path.exists('raised'):\n    time.sleep(0.01)\n"
        "raise RuntimeError('[enforce fail] Connection closed by peer [127.0.0.1]:7777')\n",
        ranks=2,
    ),
    Case(
        "rank 0 ends first with words instead of an exception",
        1,
        ("rank 1 on algo-1", "ValueError: bad label 17"),
        code="import os, signal, sys, time\n"
        "if os.environ['RANK'] == '1':\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    open('here', 'w').close()\n    "
        + UNTIL_OTHER_ENDED.replace("\n", "\n    ")
        + "raise ValueError('bad label 17')\n"
        "while not os.path.exists('here'):\n    time.sleep(0.01)\n"
        "open('pid.new', 'w').write(str(os.getpid()))\nos.rename('pid.new', 'pid')\n"
        "sys.exit('recv: Connection reset by peer')\n",
        ranks=2,
        hyperparameters={"trainshed_grace_seconds": 20},
    ),
    Case(
        "handled exception in the rank that was only stopped",
        3,
        ("rank 0 on algo-1 exited with 3",),
        ("rank 1", "ValueError"),
        code="import os, sys, time\nif os.environ['RANK'] == '1':\n    import traceback\n"
        "    try:\n        int('seven')\n    except ValueError:\n        traceback.print_exc()\n"
        "    open('handled', 'w').close()\n    time.sleep(600)\n"
        "while not os.path.exists('handled'):\n    time.sleep(0.01)\n"
        "while b'seven' not in open('../output/data/logs/algo-1.rank1.log', 'rb').read():\n    time.sleep(0.01)\n"
        "sys.exit(3)\n",
        ranks=2,
    ),
    Case(
        "SIGKILL of one rank",
        137,
        ("rank 1 on algo-1 was killed by SIGKILL",),
        code="import os, time\nif os.environ['RANK'] == '1':\n    os.kill(os.getpid(), 9)\ntime.sleep(600)\n",
        ranks=2,
    ),
    Case(
        "two ranks that save and end after SIGTERM",
        0,
        code="import os\n" + HANDLER.format(status=0).replace('"saved"', '"saved" + os.environ["RANK"]'),
        ranks=2,
        act=lambda running: (running.wait_for(":0] ready"), running.wait_for(":1] ready"), running.signal(signal.SIGTERM)),
        stopped=True,
        then=lambda end: _is(sorted(path.name for path in (end.job.folder / "code").glob("saved*")), ["saved0", "saved1"]),
    ),
    Case(
        "one of two ranks that does not end after SIGTERM",
        137,
        ("Interrupted: rank 1 on algo-1 was stopped by SIGTERM and killed at the end of the grace period",),
        code="import os, signal, sys, time\n"
        "if os.environ['RANK'] == '1':\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "else:\n"
        "    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "    open('pid.new', 'w').write(str(os.getpid()))\n    os.rename('pid.new', 'pid')\n"
        "print('ready')\ntime.sleep(600)\n",
        ranks=2,
        act=lambda running: (
            running.wait_for(":0] ready"),
            running.wait_for(":1] ready"),
            running.signal(signal.SIGTERM),
            _until_script_ended(running),
            running.signal(signal.SIGINT),  # ends the grace, which the other one had time enough of
        ),
    ),
    Case(
        "rank that ignores the order to stop",
        7,
        ("rank 0 on algo-1 exited with 7",),
        code="import os, signal, sys, time\n"
        "if os.environ['RANK'] == '0':\n"
        "    while not os.path.exists('deaf'):\n        time.sleep(0.01)\n"
        "    sys.exit(7)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nopen('deaf', 'w').close()\ntime.sleep(600)\n",
        ranks=2,
        hyperparameters={"trainshed_grace_seconds": 0.5},
    ),
]


# Stop signals.

STOPS = [
    Case(
        "SIGTERM and a handler that ends well",
        0,
        code=HANDLER.format(status=0),
        act=send(signal.SIGTERM),
        stopped=True,
        then=lambda end: _saved_and_stopped(end),
    ),
    Case(
        "SIGTERM and a handler that ends badly",
        9,
        ("Interrupted: the script was stopped by SIGTERM and exited with 9", "the job was stopped from outside"),
        code=HANDLER.format(status=9),
        act=send(signal.SIGTERM),
    ),
    Case(
        "SIGTERM without a handler",
        143,
        ("Interrupted: the script was stopped by SIGTERM", "handle SIGTERM to save a checkpoint"),
        code=WAITS,
        act=send(signal.SIGTERM),
    ),
    Case(
        "SIGTERM that the script ignores",
        137,
        (
            "was stopped by SIGTERM and killed at the end of the grace period",
            "the script had not ended ",
            " s after the stop signal",
        ),
        code=IGNORES_SIGTERM,
        hyperparameters={"trainshed_grace_seconds": 0.5},
        act=send(signal.SIGTERM),
    ),
    Case(
        "SIGINT",
        130,
        ("Interrupted: the script was stopped by SIGINT",),
        code=WAITS,
        act=send(signal.SIGINT),
    ),
    Case(
        "second SIGTERM",
        6,
        ("was stopped by SIGTERM and exited with 6",),
        code="import signal, sys, time\n"
        "times = []\n"
        "def again(*_):\n    times.append(1)\n    print('again') if len(times) == 1 else sys.exit(6)\n"
        "signal.signal(signal.SIGTERM, again)\nprint('ready')\nwhile True:\n    time.sleep(1)\n",
        act=lambda running: (
            running.wait_for("ready"),
            running.signal(signal.SIGTERM),
            running.wait_for("again"),
            running.signal(signal.SIGTERM),
        ),
    ),
    Case(
        "second SIGINT ends the grace",
        137,
        ("was stopped by SIGINT and killed",),
        ("had not ended 110",),
        code="import signal, time\nsignal.signal(signal.SIGINT, lambda *_: print('again'))\n"
        "print('ready')\nwhile True:\n    time.sleep(1)\n",
        act=lambda running: (
            running.wait_for("ready"),
            running.signal(signal.SIGINT),
            running.wait_for("again"),
            running.signal(signal.SIGINT),
        ),
    ),
    Case(
        "SIGTERM to a shell script with a child",
        143,
        ("was stopped by SIGTERM",),
        files={"code/train.sh": "echo ready\nsleep 600\necho never\n"},
        act=send(signal.SIGTERM),
        then=lambda end: _lacks(end, b"never"),
    ),
    Case(
        "SIGTERM while requirements are installed",
        143,
        ("Interrupted: stopped by SIGTERM while requirements.txt was being installed",),
        code="pass\n",
        prepare=lambda job: _hanging_index(job),
        act=lambda running: (running.wait_for("installing"), _until_asked(running), running.signal(signal.SIGTERM)),
    ),
    Case(
        "SIGTERM while other hosts are awaited",
        143,
        ("Interrupted: algo-1 was stopped by SIGTERM before the script was started",),
        code="pass\n",
        ranks=1,
        prepare=_choose_roster_port,
        files={"input/config/resourceconfig.json": {"current_host": "algo-1", "hosts": ["algo-1", "gone.invalid"]}},
        act=lambda running: (
            wait_until(lambda: listening(_roster_ports[running.job.folder]), "it never waited for the others"),
            running.signal(signal.SIGTERM),
        ),
    ),
    Case(
        "SIGTERM when the script has already succeeded",
        0,
        code=STAYING_CHILD + "open('pid.new', 'w').write(str(os.getpid()))\nos.rename('pid.new', 'pid')\n",
        act=lambda running: (_until_script_ended(running), running.signal(signal.SIGTERM)),
    ),
]


def _until_script_ended(running: Running) -> None:
    pid = running.wait_for_file("code/pid").read_text()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the script did not end")


_indices: dict[Path, socket.socket] = {}


def _hanging_index(job: Job) -> None:
    """A package index that accepts and never answers; it goes away when the case's process does."""
    server = socket.create_server(("127.0.0.1", 0))
    _indices[job.folder] = server
    index = f"http://127.0.0.1:{server.getsockname()[1]}/simple"
    job.write({"code/requirements.txt": f"--index-url {index}\nno-such-package-of-trainshed\n"})


def _until_asked(running: Running) -> None:
    server = _indices.pop(running.job.folder)
    server.settimeout(LIMIT)
    connection, _ = server.accept()
    running.kept = (server, connection)  # type: ignore[attr-defined]


def _saved_and_stopped(end: Ended) -> None:
    assert (end.job.folder / "code/saved").exists()
    assert end.record["state"] == "Stopped"


def _lacks(end: Ended, text: bytes) -> None:
    assert text not in end.stdout + end.stderr


# What the script leaves running.

LEFTOVERS = [
    Case(
        "grandchild that holds stdout and ignores SIGTERM",
        0,
        code=STAYING_CHILD,
        hyperparameters={"trainshed_grace_seconds": 0.5},
        then=lambda end: _says_left(end, 1),
    ),
    Case(
        "grandchild that never stops printing",
        0,
        code="import subprocess\nsubprocess.Popen(['sh', '-c', 'trap \"\" TERM; exec yes'], start_new_session=True)\n"
        "import os, time\n"
        "while not os.path.getsize('../output/data/logs/algo-1.rank0.log'):\n    time.sleep(0.01)\n",
        hyperparameters={"trainshed_grace_seconds": 0.5},
    ),
    Case(
        "script killed while its grandchildren run",
        137,
        ("was killed by SIGKILL",),
        code=STAYING_CHILD * 2 + "os.kill(os.getpid(), 9)\n",
        hyperparameters={"trainshed_grace_seconds": 0.5},
    ),
    Case(
        "script stopped while a grandchild ignores the signal",
        0,
        code=STAYING_CHILD + HANDLER.format(status=0),
        hyperparameters={"trainshed_grace_seconds": 10 * LIMIT},  # the script's; what it leaves behind has one of its own
        act=lambda running: (running.wait_for("deaf"), running.wait_for("ready"), running.signal(signal.SIGTERM)),
        stopped=True,
    ),
    Case(
        "twenty orphans are ended",
        0,
        code=DOUBLE_FORK + "for _ in range(20):\n    orphan(lambda: time.sleep(600))\n",
        then=lambda end: _says_left(end, 20),
    ),
    Case(
        "twenty orphans are reaped while the script runs",
        0,
        code=DOUBLE_FORK
        + "for _ in range(20):\n    orphan(lambda: None)\n"
        + "def zombies():\n"
        + "    ours = f' {os.getppid()} '\n"
        + "    stats = [stat(p) for p in os.listdir('/proc') if p.isdigit()]\n"
        + "    return [s for s in stats if s.startswith(' Z' + ours)]\n"
        + "def stat(pid):\n    try:\n        return open(f'/proc/{pid}/stat').read().rpartition(')')[2]\n"
        + "    except OSError:\n        return ''\n"
        + "for _ in range(20000):\n    left = zombies()\n"
        + "    if not left:\n        break\n    time.sleep(0.01)\n"
        + "else:\n    sys.exit(f'zombies: {left}')\n",
    ),
    Case(
        "supervisor killed by SIGKILL",
        137,
        code="import os, time\nprint('ready', flush=True)\ntime.sleep(600)\n",
        ranks=2,
        act=lambda running: _kill_supervisor(running),
        reportable=False,
    ),
]


def _says_left(end: Ended, count: int) -> None:
    assert f"ended {count} process(es) that the script had left running".encode() in end.stderr


def _kill_supervisor(running: Running) -> None:
    running.wait_for("algo-1:0] ready")
    running.wait_for("algo-1:1] ready")
    running.signal(signal.SIGKILL)
    running.process.wait()
    wait_until(lambda: not survivors(running.mark), "ranks outlive the supervisor")


# The job's own files.

JOB = [
    Case(
        "bad JSON",
        2,
        ("JobError: the job cannot be read:", "hyperparameters.json", "is not JSON", "line 2 column 1"),
        code="pass\n",
        files={"input/config/hyperparameters.json": '{"epochs": "3"\n"lr": "1"}'},
    ),
    Case(
        "several bad files at once",
        2,
        ("3 problems in the job", "hyperparameters.json", "resourceconfig.json", "inputdataconfig.json", "Pip"),
        code="pass\n",
        files={
            "input/config/hyperparameters.json": "[",
            "input/config/resourceconfig.json": {"current_host": "algo-3", "hosts": ["algo-1", "algo-2"]},
            "input/config/inputdataconfig.json": {"train": {"TrainingInputMode": "Pip"}},
        },
    ),
    Case(
        "bad JSON after a run that failed",
        2,
        ("JobError",),
        ("yesterday",),
        code="pass\n",
        files={"input/config/hyperparameters.json": "{", "output/failure": "UserError: yesterday's reason"},
    ),
    Case(
        "bad JSON after a run that succeeded",
        2,
        ("JobError",),
        code="pass\n",
        files={"input/config/hyperparameters.json": "{", "output/success": ""},
    ),
    Case("good run after a run that failed", 0, code="pass\n", files={"output/failure": "UserError: yesterday's reason"}),
    Case(
        "failed run after a run that succeeded and one that failed",
        3,
        ("exited with 3",),
        ("yesterday",),
        code="raise SystemExit(3)\n",
        files={"output/success": "", "output/failure": "UserError: yesterday's reason"},
    ),
    Case("nothing at all", 2, ("NoJobError: there is no job",)),
    Case(
        "unknown distribution",
        2,
        ("trainshed_distribution", "'torchrun'"),
        code="pass\n",
        hyperparameters={"trainshed_distribution": "torchrn"},
    ),
    Case(
        "host name that does not resolve",
        69,
        ("ClusterError: gone.invalid did not", "no such host name: gone.invalid"),
        code="pass\n",
        ranks=1,
        hyperparameters={"trainshed_host_timeout_seconds": 1},
        prepare=_choose_roster_port,
        files={"input/config/resourceconfig.json": {"current_host": "localhost", "hosts": ["localhost", "gone.invalid"]}},
    ),
]


# The program.


def _executable(name: str) -> object:
    return lambda job: (job.folder / "code" / name).chmod(0o755)


PROGRAM = [
    Case(
        "missing script with a near name",
        1,
        ("ProgramError: there is no program 'trian.py'", "did you mean 'train.py'?"),
        code="pass\n",
        hyperparameters={"sagemaker_program": "trian.py"},
    ),
    Case(
        "no program named and several there",
        1,
        ("ProgramError: the job names no program", "first.py, second.py", "SAGEMAKER_PROGRAM"),
        files={"code/first.py": "pass\n", "code/second.py": "pass\n"},
    ),
    Case(
        "requirement that does not exist",
        1,
        ("ProgramError: requirements.txt could not be installed", "no-such-package-of-trainshed", "name and version"),
        code="pass\n",
        files={"code/requirements.txt": "--no-index\nno-such-package-of-trainshed==1.0\n"},
    ),
    Case(
        "secret in the index of requirements.txt",
        1,
        ("ProgramError: requirements.txt could not be installed",),
        code="pass\n",
        files={
            "code/requirements.txt": "--index-url https://ci:s3cr3t-t0ken@127.0.0.1:9/simple\n"
            "--extra-index-url https://s0le-t0ken@127.0.0.1:9/simple\nno-such-package-of-trainshed\n"
        },
        env={"PIP_RETRIES": "0"},
        secrets=("s3cr3t-t0ken", "s0le-t0ken"),
    ),
    Case(
        "secret in a requirement that does not parse",
        1,
        ("ProgramError: requirements.txt could not be installed",),
        code="pass\n",
        files={"code/requirements.txt": "pack age @ git+https://ci:s3cr3t-t0ken@127.0.0.1:9/package\n"},
        secrets=("s3cr3t-t0ken",),
    ),
    Case(
        "secret in an index variable",
        1,
        ("ProgramError: requirements.txt could not be installed",),
        code="pass\n",
        files={"code/requirements.txt": "no-such-package-of-trainshed\n"},
        env={"PIP_RETRIES": "0", "PIP_INDEX_URL": "https://aws:s3cr3t-t0ken@127.0.0.1:9/simple"},
        secrets=("s3cr3t-t0ken",),
    ),
    Case(
        "index that does not answer",
        1,
        ("requirements.txt could not be installed within ", "trainshed_install_timeout_seconds"),
        code="pass\n",
        prepare=lambda job: _hanging_index(job),
        hyperparameters={"trainshed_install_timeout_seconds": 5},  # with the wait for another test that installs
        then=lambda end: _indices.pop(end.job.folder).close(),
    ),
    Case(
        "executable of no known format",
        126,
        ("LaunchError:", "cannot be started: Exec format error", "another processor architecture"),
        files={"code/prog": b"\x7fNOT-ELF\n\n"},
        hyperparameters={"sagemaker_program": "prog"},
        prepare=_executable("prog"),
    ),
    Case(
        "interpreter that is not there",
        127,
        ("LaunchError:", "the interpreter of its `#!` line"),
        files={"code/prog": "#!/usr/bin/no-such-interpreter\n"},
        hyperparameters={"sagemaker_program": "prog"},
        prepare=_executable("prog"),
    ),
    Case(
        "script without exec bit",
        4,
        ("the script exited with 4",),
        files={"code/run.sh": "#!/bin/sh\nexit 4\n"},
        hyperparameters={"sagemaker_program": "run.sh"},
    ),
    Case(
        "script with Windows line ends",
        1,
        ("ProgramError: run.sh has Windows line endings", "sed -i"),
        files={"code/run.sh": b"#!/bin/sh\r\nexit 4\r\n"},
        hyperparameters={"sagemaker_program": "run.sh"},
    ),
    Case(
        "command line that is too long",
        1,
        ("LaunchError:", "Argument list too long", "pass large values in a file"),
        code="pass\n",
        hyperparameters={"text": "x" * 200_000},
    ),
    Case(
        "the user's own environment wins",
        0,
        code="import os, sys\n"
        "seen = [os.environ[name] for name in ('NCCL_DEBUG', 'OMP_NUM_THREADS', 'MASTER_PORT', 'NCCL_SOCKET_IFNAME')]\n"
        "sys.exit(0 if seen == ['TRACE', '7', '23456', 'lo'] else f'seen: {seen}')\n",
        ranks=2,
        env={"NCCL_DEBUG": "TRACE", "OMP_NUM_THREADS": "7", "MASTER_PORT": "23456", "NCCL_SOCKET_IFNAME": "lo"},
    ),
]


# Output.

STREAMS = [
    Case(
        "bytes that are no UTF-8",
        0,
        code="import os\nos.write(1, b'caf\\xe9 1\\n\\xc3\\xa9 2\\n')\nos.write(2, b'd\\xe9faut\\n')\n",
        then=lambda end: _latin_1(end),
    ),
    Case(
        "bytes that are no UTF-8 in an exception",
        1,
        ("ValueError: caf",),
        code="import os, sys\nsys.stderr.reconfigure(encoding='latin-1')\nraise ValueError('caf\\xe9')\n",
        then=lambda end: (end.failure or b"").decode(),
    ),
    Case(
        "line of 300 KB",
        0,
        code="print('a' * 300_000 + 'z')\nprint('next')\n",
        then=lambda end: _is(end.lines, ["a" * 300_000 + "z", "next"]),
    ),
    Case(
        "3 MB without a line end",
        0,
        code="import os\ndata = ('\u00e9' * 1_500_000).encode()\nwhile data:\n    data = data[os.write(1, data):]\n",
        then=lambda end: (
            _is("".join(end.lines), "\u00e9" * 1_500_000),
            _is(end.log, ("\u00e9" * 1_500_000).encode()),
        ),
    ),
    Case("last line without an end", 0, code="print('done', end='')\n", then=lambda end: _is(end.stdout, b"done\n")),
    Case(
        "progress bar with a metric in between",
        0,
        code="import sys, time\n"
        "for step in range(400):\n"
        "    print(f'\\r{step}/400 |####    |', end='', file=sys.stderr)\n"
        "    if step % 100 == 50:\n        print(f'loss={step}; step={step}')\n",
        then=lambda end: _progress(end),
    ),
    Case(
        "100,000 lines of 4 ranks",
        0,
        code="import os\nfor n in range(25_000):\n    print('rank', os.environ['RANK'], 'line', n, 'end')\n",
        ranks=4,
        then=lambda end: _all_whole(end.lines, 4, 25_000),
    ),
    Case(
        "stdout and stderr of 2 ranks in one pipe",
        0,
        code="import os, sys\n"
        "for n in range(10_000):\n"
        "    print('rank', os.environ['RANK'], 'line', n, 'x' * (n % 300), 'end', file=(sys.stdout, sys.stderr)[n % 2])\n",
        ranks=2,
        console="one-pipe",
        then=lambda end: _all_whole([x for x in end.lines if "trainshed:" not in x], 2, 10_000),
    ),
    Case(
        "script that closes its output",
        4,
        ("the script exited with 4",),
        code="import os, time\nos.close(1)\nos.close(2)\ntime.sleep(0.2)\nos._exit(4)\n",
    ),
    Case(
        "console whose reader leaves",
        0,
        code="for n in range(50_000):\n    print('line', n)\n",
        console="first-line",
        then=lambda end: _is(end.log.count(b"\n"), 50_000),
    ),
    Case("console that is closed", 3, ("exited with 3",), code="print('x')\nraise SystemExit(3)\n", console="closed"),
    *(
        Case(
            name,
            143,
            ("was stopped by SIGTERM",),
            code="import sys\nwhile True:\n"
            "    print('x' * 99_999)\n    print('y' * 99_999, file=sys.stderr)\n    open('ready', 'w').close()\n",
            console=console,
            act=lambda running: (
                running.wait_for_file("code/ready"),
                _until_still(running.job.folder / "output/data/logs/algo-1.rank0.log"),
                running.signal(signal.SIGTERM),
            ),
        )
        for name, console in (("console that nobody reads", "unread"), ("terminal that nobody reads", "unread-terminal"))
    ),
]


def _until_still(log: Path) -> None:
    """Until the script has to wait for the console: its log no longer grows."""
    sizes = [0, 0]

    def still() -> bool:
        sizes[:] = sizes[1], log.stat().st_size if log.exists() else 0
        time.sleep(0.5)
        return sizes[0] == sizes[1] > 0

    wait_until(still, "the console takes everything")


def _is(value: object, wanted: object) -> None:
    assert value == wanted, f"{str(value)[:300]!r} is not {str(wanted)[:300]!r}"


def _latin_1(end: Ended) -> None:
    _is(end.lines, ["caf\\xe9 1", "\u00e9 2"])
    assert "d\\xe9faut" in end.stderr.decode()
    assert b"caf\xe9 1\n" in end.log and b"d\xe9faut\n" in end.log


def _progress(end: Ended) -> None:
    _is(end.lines, [f"loss={step}; step={step}" for step in (50, 150, 250, 350)])
    shown = [line for line in end.stderr.decode().splitlines() if "####" in line]
    assert 1 <= len(shown) < 200, f"{len(shown)} of 400 frames on the console"
    assert all(re.fullmatch(r"\d+/400 \|####    \|", line) for line in shown), shown
    _is(shown[-1][:7], "399/400")
    _is(end.log.count(b"/400 |####    |"), 400)


def _all_whole(lines: list[str], ranks: int, each: int) -> None:
    seen = {rank: [] for rank in range(ranks)}  # type: dict[int, list[int]]
    for line in lines:
        match = re.fullmatch(r"\[algo-1:(\d)\] rank (\d) line (\d+) (?:x* )?end", line)
        assert match and match[1] == match[2], f"torn: {line[:200]!r}"
        seen[int(match[1])].append(int(match[3]))
    for rank, numbers in seen.items():
        assert sorted(numbers) == list(range(each)), f"rank {rank} has {len(numbers)} lines"


CASES = [*ONE_PROCESS, *RANKS, *STOPS, *LEFTOVERS, *JOB, *PROGRAM, *STREAMS]
