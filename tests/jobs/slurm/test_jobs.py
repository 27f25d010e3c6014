"""`trainshed run --on slurm` against a real cluster of two nodes: submitted, followed, queued again, cancelled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.slurm.cluster import Cluster
from support.notice_jobs import TRAINING
from support.paths import TOOLKIT

LIMIT = 300.0  # seconds; a hang must not hang the tests
# The first start trains until it is stopped; one that resumes makes 20 more steps.
RESUMES = (
    TRAINING.replace("every_seconds=3600", "every_steps=5")
    .replace('int(os.environ.get("STEPS", "1000000"))', "last")
    .replace("while step", "last = step + 20 if step else 1_000_000\nwhile step", 1)
)
WAITS = "import os, time\nprint('ready', os.environ['RANK'], flush=True)\ntime.sleep(600)\n"


class Followed:
    """`trainshed run --on slurm` as a process, and the job that it follows."""

    def __init__(self, cluster: Cluster, folder: Path, script: str, *options: str, **env: str) -> None:
        self.cluster, self.folder = cluster, folder
        (folder / "train.py").write_text(script)
        self.out = folder / "out"
        self.environment = {**cluster.environment, "PYTHONPATH": str(TOOLKIT), "OMP_NUM_THREADS": "1", **env}
        self.process = self.start("run", "--on", "slurm", "train.py", "--output", "run", *options)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """A command on the first node; what it says is added to `output`."""
        command = [*self.cluster.enter, sys.executable, "-m", "trainshed.cli", *words]
        with open(self.out, "ab") as out:
            return subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=out, stderr=subprocess.STDOUT)

    @property
    def output(self) -> str:
        return self.out.read_text(errors="replace")

    @property
    def number(self) -> str:
        return str(self.status["Trainshed"]["SlurmJobId"])

    @property
    def status(self) -> dict[str, Any]:
        return json.loads((self.folder / "run/status.json").read_text())

    def until(self, *texts: str) -> None:
        """Until each of the texts has been printed, while the job is followed."""
        self.until_said(*texts, living=self.process)

    def until_said(self, *texts: str, living: subprocess.Popen[bytes] | None = None) -> None:
        """Until each of the texts has been printed, by any command."""
        end = time.monotonic() + LIMIT
        while not all(text in self.output for text in texts):
            assert living is None or living.poll() is None, self.told()
            assert time.monotonic() < end, self.told()
            time.sleep(0.05)

    def end(self) -> int:
        return self.process.wait(LIMIT)

    def logged(self, text: str) -> None:
        """Until a rank has printed a text, whoever follows."""
        end = time.monotonic() + LIMIT
        while not any(text in path.read_text() for path in (self.folder / "run/logs").glob("node-*.log")):
            assert time.monotonic() < end, self.told()
            time.sleep(0.05)

    def told(self) -> str:
        log = self.folder / "run/logs/slurm.log"
        return f"{self.output}\n--- slurm.log\n{log.read_text() if log.exists() else ''}\n{self.cluster.logs()}"


@pytest.fixture
def submit(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., Followed]]:
    """Submits and follows a job on both nodes; nothing of it is left in the queue."""
    made: list[Followed] = []

    def submit(script: str, *options: str, **env: str) -> Followed:
        ranks = ("--instances", "2", "--distribution", "torchrun", "--processes-per-host", "1")
        made.append(Followed(cluster, tmp_path, script, *ranks, *options, **env))
        return made[-1]

    yield submit
    for job in made:
        job.process.kill()
        job.process.wait()
    cluster.clear()


@pytest.mark.spine
def test_a_job_on_two_nodes_is_followed_to_its_end_and_its_model_comes_home(submit: Callable[..., Followed]) -> None:
    script = (
        "import os, socket\n"
        "print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], 'on', socket.gethostname(), flush=True)\n"
        "print('metric loss=0.5')\nopen(os.environ['SM_MODEL_DIR'] + '/' + os.environ['RANK'], 'w').close()\n"
        "print('colour', os.environ['COLOUR'], os.environ['SM_HP_EPOCHS'])\n"
    )
    job = submit(script, "--hp", "epochs=3", "--env", "COLOUR=light blue")

    assert job.end() == 0, job.told()
    for rank in range(2):
        assert f"[node{rank + 1}:{rank}] rank {rank} of 2 on node{rank + 1}\n" in job.output
        assert f"[node{rank + 1}:{rank}] colour light blue 3\n" in job.output
        assert (job.folder / f"run/model/{rank}").exists()
    assert job.status["TrainingJobStatus"] == "Completed" and job.status["Trainshed"]["Nodes"] == "node[1-2]"
    assert (job.folder / "run/output/model.tar.gz").stat().st_size
    assert "light blue" not in (job.folder / "run/slurm/job.sh").read_text()


# Every process but the chief listens where TF_CONFIG has it; the chief asks each for its name.
ROLES = """\
import json, os, socket, time
told = json.loads(os.environ["TF_CONFIG"])
address = lambda text: (text.rpartition(":")[0], int(text.rpartition(":")[2]))
role, index = told["task"]["type"], told["task"]["index"]
if role != "chief":
    listener = socket.create_server(("", address(told["cluster"][role][index])[1]))
    while True:
        listener.accept()[0].sendall(f"{role}{index} on {socket.gethostname()}".encode())
for one in told["cluster"]["worker"] + told["cluster"]["ps"]:
    while True:
        try:
            print("found", socket.create_connection(address(one)).makefile().read(), flush=True)
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
"""


def test_a_chief_finds_its_workers_and_parameter_servers_on_both_nodes(submit: Callable[..., Followed]) -> None:
    job = submit(
        ROLES, "--distribution", "parameter_server", "--processes-per-host", "1", "--hp", "trainshed_servers=script"
    )

    assert job.end() == 0, job.told()
    for found in ("worker0 on node2", "ps0 on node1", "ps1 on node2"):
        assert f"[node1:chief] found {found}\n" in job.output


def test_the_rank_that_fails_gives_its_status_and_reason(submit: Callable[..., Followed]) -> None:
    job = submit("import os, time\nif os.environ['RANK'] == '1':\n    raise ValueError('bad label 17')\ntime.sleep(600)\n")

    assert job.end() == 1, job.told()
    assert "UserError: rank 1 on node2 exited with 1: ValueError: bad label 17\n    at train.py:3" in job.output
    assert job.status["TrainingJobStatus"] == "Failed" and job.status["Trainshed"]["FailedHost"] == "node2"


def _resumed(job: Followed) -> None:
    """It was started a second time, from a checkpoint of the first start, and then ended well."""
    assert job.end() == 0, job.told()
    first, second = (job.folder / "run/logs/node-0.log").read_text().split("start rank=0 step=")[1:]
    assert first.startswith("0\n")
    step = int(second.partition("\n")[0])
    assert step > 0 and f"end rank=0 step={step + 20}\n" in second
    assert job.status["Trainshed"]["Restarts"] == 1


@pytest.mark.exact
@pytest.mark.torch
def test_a_job_that_is_queued_again_resumes_from_its_checkpoint(submit: Callable[..., Followed]) -> None:
    pytest.importorskip("torch")
    job = submit(RESUMES)
    job.until("loss rank=0 step=10", "loss rank=1 step=10")
    job.cluster.run("scontrol", "requeue", job.number)

    _resumed(job)
    assert f"job {job.number} was queued again" in job.output


@pytest.mark.exact
@pytest.mark.torch
def test_a_job_that_is_preempted_saves_makes_room_and_resumes(submit: Callable[..., Followed]) -> None:
    pytest.importorskip("torch")
    job = submit(RESUMES)
    job.until("loss rank=0 step=10", "loss rank=1 step=10")
    job.cluster.run("srun", "--partition=urgent", "--nodes=2", "true")  # waits until it has had the nodes

    _resumed(job)
    assert "asking Slurm to queue the job again" in job.output


@pytest.mark.exact
@pytest.mark.torch
def test_the_warning_before_the_time_limit_has_the_job_save_and_queued_again(submit: Callable[..., Followed]) -> None:
    pytest.importorskip("torch")
    job = submit(RESUMES)
    job.until("loss rank=0 step=10", "loss rank=1 step=10")
    job.cluster.run("scancel", "--signal=USR2", job.number)  # what --signal=USR2@N has Slurm do

    _resumed(job)
    assert "notice: SIGUSR2 received from Slurm" in job.output


@pytest.mark.safety
@pytest.mark.parametrize("detached", [False, True])
def test_a_job_that_is_stopped_ends_and_is_not_queued_again(submit: Callable[..., Followed], detached: bool) -> None:
    job = submit(WAITS)
    job.until("ready 0", "ready 1")
    if detached:  # somebody else's scancel
        job.cluster.run("scancel", job.number)
    else:
        job.process.send_signal(signal.SIGINT)

    assert job.end() == (143 if detached else 130), job.told()
    assert job.status["TrainingJobStatus"] == "Stopped"
    assert "PENDING" not in job.cluster.run("squeue", "--noheader", "--format=%T")


def test_a_job_that_waits_in_the_queue_says_why_and_can_be_stopped(submit: Callable[..., Followed]) -> None:
    job = submit(WAITS, "--sbatch", "dependency=singleton", "--sbatch", "begin=now+3600")
    job.until("pending (BeginTime)")
    job.process.send_signal(signal.SIGTERM)

    assert job.end() == 143, job.told()


def test_what_sbatch_says_of_an_option_is_the_error(submit: Callable[..., Followed]) -> None:
    job = submit(WAITS, "--sbatch", "partition=nowhere")

    assert job.end() == 69
    assert "sbatch refuses the job" in job.output and "nvalid partition" in job.output


def test_a_job_may_be_submitted_and_left_alone(submit: Callable[..., Followed], cluster: Cluster) -> None:
    job = submit("print('ran')\n", "--detach")

    assert job.end() == 0, job.told()
    end = time.monotonic() + LIMIT
    while "JobState=COMPLETED" not in cluster.run("scontrol", "show", "job", job.number):
        assert time.monotonic() < end, job.told()
        time.sleep(0.1)
    assert "ran\n" in (job.folder / "run/logs/node-1.log").read_text()


ONE_THEN_GOES_ON = (
    "import os, pathlib, time\nprint('ready', os.environ['RANK'], flush=True)\n"
    "while not pathlib.Path(os.environ['GO']).exists():\n    time.sleep(0.05)\n"
    "open(os.environ['SM_MODEL_DIR'] + '/' + os.environ['RANK'], 'w').close()\n"
)


@pytest.mark.safety
def test_a_job_whose_follower_was_killed_is_followed_to_its_end_by_the_next_one(
    submit: Callable[..., Followed], tmp_path: Path
) -> None:
    job = submit(ONE_THEN_GOES_ON, "--env", f"GO={tmp_path}/go")
    job.until("ready 0", "ready 1")
    job.process.kill()
    job.process.wait()
    first = job.number

    job.process = job.start("attach", "./run")
    (tmp_path / "go").touch()

    assert job.end() == 0, job.told()
    assert job.status["TrainingJobStatus"] == "Completed" and job.number == first
    assert (job.folder / "run/model/0").exists() and (job.folder / "run/output/model.tar.gz").stat().st_size


@pytest.mark.safety
@pytest.mark.spine
def test_a_job_that_nobody_follows_is_stopped_and_its_end_is_told(submit: Callable[..., Followed]) -> None:
    job = submit(WAITS, "--detach")
    assert job.end() == 0, job.told()
    job.logged("ready 1")

    assert job.start("stop", "./run").wait(LIMIT) == 0, job.told()
    assert job.status["TrainingJobStatus"] == "Stopped"
    assert "PENDING" not in job.cluster.run("squeue", "--noheader", "--format=%T")


@pytest.mark.exact
@pytest.mark.torch
def test_a_job_that_was_stopped_resumes_from_its_checkpoint_as_a_new_job(submit: Callable[..., Followed]) -> None:
    pytest.importorskip("torch")
    job = submit(RESUMES)
    job.until("loss rank=0 step=10", "loss rank=1 step=10")
    job.process.send_signal(signal.SIGINT)
    assert job.end() == 130, job.told()
    first = job.number

    job.process = job.start("resume", "./run")

    assert job.end() == 0, job.told()
    assert job.status["TrainingJobStatus"] == "Completed" and job.number != first
    assert "end rank=0 step=" in (job.folder / "run/logs/node-0.log").read_text().rpartition("start rank=0")[2]


TRIAL = """\
import os, pathlib, sys, time
notes = pathlib.Path(os.environ["NOTES"])
with open(notes / "started", "a") as file:
    file.write(os.environ["SM_HP_LR"] + "\\n")
print(f"metric loss={abs(float(os.environ['SM_HP_LR']) - 0.2)} step=1", flush=True)
while not (notes / "go").exists():
    time.sleep(0.05)
"""


@pytest.mark.safety
def test_trials_are_jobs_of_slurm_and_outlive_their_followers_and_the_tuner(
    submit: Callable[..., Followed], cluster: Cluster, tmp_path: Path
) -> None:
    job = submit("print('ran')\n", "--detach")  # for its environment
    assert job.end() == 0, job.told()
    cluster.clear()
    (tmp_path / "trial.py").write_text(TRIAL)
    (tmp_path / "tune.yaml").write_text(
        f"job: {{program: trial.py, environment: {{NOTES: '{tmp_path}'}}}}\non: slurm\nsearch: {{lr: [0.1, 0.2, 0.3]}}\n"
        "objective: minimize loss\nstrategy: grid\nmax_parallel_jobs: 2\n"
    )
    started = tmp_path / "started"
    tuner = job.start("tune", "tune.yaml", "--sbatch", "comment=tuned")
    end = time.monotonic() + LIMIT
    while not started.exists() or len(started.read_text().split()) < 2:
        assert time.monotonic() < end and tuner.poll() is None, job.told()
        time.sleep(0.05)
    tuner.kill()
    tuner.wait()
    status = json.loads((tmp_path / "tunes/tune/trials/0001/status.json").read_text())
    os.kill(status["Trainshed"]["Runner"]["Pid"], signal.SIGKILL)

    tuner = job.start("tune", "tune.yaml", "--sbatch", "comment=tuned")
    job.until_said("goes on and is watched again")
    (tmp_path / "go").touch()

    assert tuner.wait(LIMIT) == 0, job.told()
    assert sorted(started.read_text().split()) == ["0.1", "0.2", "0.3"]
    assert os.readlink(tmp_path / "tunes/tune/best") == "trials/0002"


def test_nothing_of_the_machine_is_asked_where_there_is_no_slurm(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    done = subprocess.run(
        [sys.executable, "-m", "trainshed.cli", "run", "--on", "slurm", "train.py"],
        cwd=tmp_path,
        env={"PATH": str(tmp_path), "PYTHONPATH": str(TOOLKIT), "HOME": os.environ.get("HOME", "/")},
        capture_output=True,
        text=True,
    )

    assert done.returncode == 69 and "sbatch is not installed" in done.stderr
    assert not (tmp_path / "runs").exists()
