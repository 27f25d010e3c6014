"""The rows of the failure table that need a container: limits, mounts, users, PID 1.

`train` runs as PID 1 from this checkout in a plain image with Python: what is tested is the supervisor, not an image.
"""

from __future__ import annotations

import time

from support.docker_cli import Containers, Job, Running, docker

from .harness import LIMIT, TOOLKIT, Case, Ended, ended
from .process_cases import DOUBLE_FORK, HANDLER, WAITS

INSIDE = "/toolkit"
TRAIN = ("python3", "-m", "trainshed.container.main")
# The output folder is gone with its tmpfs when the container ends, so a shell that runs `train` saves it first.
WRAPPED = ("sh", "-c", '"$@"; code=$?; cp -r /opt/ml/output/. /saved/; exit $code', "sh", *TRAIN)

FILLS = """\
import os
with open({path}, "wb") as file:
    while True:
        file.write(b"x" * 65536)
        file.flush()
"""

# A handler of two seconds, and on the way proof that PID 1 reaps what nobody else does.
SLOW_HANDLER = HANDLER.format(status=0).replace("time.sleep(0.2)", "time.sleep(2)")

ZOMBIES = (
    DOUBLE_FORK
    + """\
for _ in range(20):
    orphan(lambda: None)
def states():
    return [open(f"/proc/{p}/stat").read().rpartition(")")[2].split()[0] for p in os.listdir("/proc") if p.isdigit()]
for _ in range(5000):
    try:
        left = states().count("Z")
    except OSError:
        left = 1
    if os.getppid() != 1:
        sys.exit("train is not PID 1")
    if not left:
        sys.exit(0)
    time.sleep(0.01)
sys.exit(f"{left} zombies")
"""
)


FORK_BOMB = """\
import os, time
if os.fork() == 0:
    while True:
        try:
            os.fork()
        except OSError:
            pass
time.sleep(1)
"""


def stopped(running: Running) -> None:
    """An act: `docker stop` once the script is ready."""
    running.wait_for("ready")
    running.stop()


def _saved(end: Ended) -> None:
    assert (end.job.folder / "code/saved").exists(), "the handler did not run to its end"
    assert end.record["state"] == "Stopped"


def _unreadable_config(job: Job) -> None:
    job.open_to_all()
    (job.folder / "input/config/hyperparameters.json").chmod(0o000)


def _foreign_output(job: Job) -> None:
    (job.folder / "output").mkdir()
    (job.folder / "output").chmod(0o755)


SHARED_MEMORY = Case(
    "data loader without shared memory",
    1,
    (
        "unable to allocate shared memory",
        "shared memory is too small: /dev/shm has 1 MiB; start the container with --shm-size",
    ),
    code="import torch\nfrom torch.utils.data import DataLoader, Dataset\n"
    "class Data(Dataset):\n"
    "    def __len__(self):\n        return 4\n"
    "    def __getitem__(self, index):\n        return torch.ones(1 << 20)\n"
    "for batch in DataLoader(Data(), num_workers=1):\n    pass\n",
    docker=("--shm-size", "1m"),
)

CASES = [
    Case(
        "out of memory",
        137,
        ("UserError: the script was killed by the kernel: out of memory", "the container may use 256 MiB"),
        code="blocks = []\nwhile True:\n    blocks.append(b'x' * (8 << 20))\n",
        docker=("--memory", "256m", "--memory-swap", "256m"),
    ),
    Case(
        "a worker of the script out of memory",
        1,
        ("the script exited with 1", "the kernel killed it because memory ran out: the container may use 256 MiB"),
        code="import os, sys\npid = os.fork()\n"
        "if pid == 0:\n    blocks = []\n    while True:\n        blocks.append(b'x' * (8 << 20))\n"
        "sys.exit(f'worker ended: {os.waitpid(pid, 0)[1]}')\n",
        docker=("--memory", "256m", "--memory-swap", "256m"),
    ),
    Case(
        "docker stop and a handler of two seconds", 0, code=SLOW_HANDLER, act=stopped, stopped=True, then=_saved, docker=()
    ),
    Case(
        "docker stop without a handler",
        143,
        ("Interrupted: the script was stopped by SIGTERM",),
        code=WAITS,
        act=stopped,
        docker=(),
    ),
    Case("orphans are reaped by PID 1", 0, code=ZOMBIES, docker=()),
    Case(
        "fork bomb that the script leaves running",
        0,
        code=FORK_BOMB,
        hyperparameters={"trainshed_grace_seconds": 0.5},
        docker=("--pids-limit", "60"),
    ),
    Case(
        "full disk below output",
        1,
        ("OSError: [Errno 28] No space left on device", "at train.py:", "a disk is full; free:", "/opt/ml/output 0 MiB"),
        code=FILLS.format(path="os.environ['SM_OUTPUT_DATA_DIR'] + '/big'"),
        docker=("--tmpfs", "/opt/ml/output:size=2m"),
        wrapped=True,
    ),
    Case(
        "full disk for the log of a script that succeeds",
        0,
        code="for _ in range(60):\n    print('x' * 65_535)\n",
        docker=("--tmpfs", "/opt/ml/output:size=2m"),
        wrapped=True,
        then=lambda end: _log_ends_early(end),
    ),
    Case(
        "full disk below model",
        1,
        ("OSError: [Errno 28] No space left on device", "at train.py:", "a disk is full; free: /opt/ml/model 0 MiB"),
        code=FILLS.format(path="os.environ['SM_MODEL_DIR'] + '/big'"),
        docker=("--tmpfs", "/opt/ml/model:size=2m"),
    ),
    Case(
        "model folder that is read-only",
        1,
        ("/opt/ml/model cannot be written", "mount it writable"),
        code="pass\n",
        docker=("--volume", "{folder}/code:/opt/ml/model:ro"),
    ),
    Case(
        "channel that is read-only",
        1,
        (
            "OSError: [Errno 30] Read-only file system",
            "at train.py:2",
            "channels and the image are read-only",
            "SM_MODEL_DIR",
        ),
        code="import os\nopen(os.environ['SM_CHANNEL_TRAIN'] + '/index', 'w')\n",
        docker=("--volume", "{folder}/code:/opt/ml/input/data/train:ro"),
    ),
    Case(
        "config that this user may not read",
        2,
        ("JobError:", "hyperparameters.json: cannot be read by this user", "chmod"),
        code="pass\n",
        hyperparameters={"epochs": 1},
        prepare=_unreadable_config,
        docker=("--user", "1000:1000"),
    ),
    Case(
        "output that this user may not write",
        1,
        code="pass\n",
        prepare=_foreign_output,
        docker=("--user", "1000:1000"),
        reportable=False,
        then=lambda end: _says(end, "/opt/ml/", "cannot be written by uid 1000", "--user"),
    ),
    Case("image that is read-only", 0, code="print('fine')\n", docker=("--read-only",)),
    Case("image that is read-only and ranks", 0, code="print('fine')\n", ranks=2, docker=("--read-only",)),
    Case(
        "no process left to start",
        1,
        ("LimitError:", "cannot be started: the limit of processes and threads is reached", "--pids-limit"),
        code="pass\n",
        docker=("--pids-limit", "1"),
    ),
]


def _log_ends_early(end: Ended) -> None:
    _says(end, "algo-1.rank0.log ends early: No space left on device")
    assert len(end.lines) == 60


def _says(end: Ended, *texts: str) -> None:
    for text in texts:
        assert text in end.stderr.decode(), end.stderr.decode()


def start(case: Case, containers: Containers, job: Job) -> Running:
    """Starts a case's container."""
    saved = job.folder.with_name(f"{job.folder.name}-saved")
    saved.mkdir(exist_ok=True)
    options = tuple(option.format(folder=job.folder) for option in case.docker or ())
    return containers.start(
        *(WRAPPED if case.wrapped else TRAIN),
        job=job,
        env={"PYTHONPATH": INSIDE, "PYTHONDONTWRITEBYTECODE": "1", **case.env},
        options=("--volume", f"{TOOLKIT}:{INSIDE}:ro", "--volume", f"{saved}:/saved", *options),
    )


def run_container(case: Case, containers: Containers) -> Ended:
    """Runs a case in a container."""
    job = case.make(containers.folder / case.name.replace(" ", "-"))
    began = time.monotonic()
    running = start(case, containers, job)
    if case.act:
        case.act(running)
    done = running.wait(LIMIT)
    seconds = time.monotonic() - began
    if case.wrapped:
        saved = job.folder.with_name(f"{job.folder.name}-saved")
        docker("run", "--rm", "--volume", f"{job.folder}:/job", "--volume", f"{saved}:/saved", containers.image,
               "cp", "-r", "/saved/.", "/job/output/")  # fmt: skip
    return ended(job, done.status, done.stdout.encode(), done.stderr.encode(), seconds)


# Two hosts: what happens on the second one, and how the first one ends.

ON_BOTH = "import os, sys, time\nprint('ready', flush=True)\n"

DEAD_NODE = Case(
    "second node killed while ranks talk",
    69,
    ("ClusterError: algo-2 vanished: no sign of life for", "hint: the host was stopped or killed"),
    code="import time, torch, torch.distributed as dist\n"
    "dist.init_process_group('gloo')\n"
    "print('ready', flush=True)\n"
    "while True:\n    dist.all_reduce(torch.ones(1))\n    time.sleep(0.02)\n",
    ranks=1,
    act=lambda second: second.signal("KILL"),
)

TWO_NODES = [
    Case(
        "second node killed while ranks work alone",
        69,
        ("ClusterError: algo-2 vanished: no sign of life for", "hint: the host was stopped or killed"),
        code=ON_BOTH + "time.sleep(600)\n",
        ranks=1,
        act=lambda second: second.signal("KILL"),
    ),
    Case(
        "script of the second node fails",
        1,
        ("rank 1 on algo-2 exited with 1: ValueError: bad label 17", "at train.py:5"),
        code=ON_BOTH + "while not os.path.exists('fail'):\n    time.sleep(0.05)\nraise ValueError('bad label 17')\n",
        ranks=1,
        act=lambda second: second.job.write({"code/fail": ""}),
    ),
    Case(
        "second node stopped by docker stop",
        143,
        ("Interrupted:", "algo-2"),
        code=ON_BOTH + "time.sleep(600)\n",
        ranks=1,
        act=lambda second: second.stop(),
    ),
]


def run_two_nodes(case: Case, containers: Containers, network: str) -> Ended:
    """Two hosts train together, and once both are ready something happens to the second one. How the first one ends."""
    running = []
    began = time.monotonic()
    for host in ("algo-1", "algo-2"):
        job = case.make(containers.folder / host)
        job.write({"input/config/resourceconfig.json": {"current_host": host, "hosts": ["algo-1", "algo-2"]}})
        environment = {"PYTHONPATH": INSIDE, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        mount = ("--volume", f"{TOOLKIT}:{INSIDE}:ro")
        running.append(containers.start(*TRAIN, job=job, env=environment, network=network, hostname=host, options=mount))
    for each in running:
        each.wait_for("ready", timeout=LIMIT)
    if case.act:
        case.act(running[1])
    done = running[0].wait(LIMIT)
    return ended(done.job, done.status, done.stdout.encode(), done.stderr.encode(), time.monotonic() - began)
