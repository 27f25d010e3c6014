"""Hosts on several machines: real sshds in network namespaces, a cable to the runner's machine and one among them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable

import psutil
import pytest

from jobs.ssh.machines import Lab, needs_namespaces, needs_sshd

pytestmark = [needs_sshd, needs_namespaces, pytest.mark.safety]

LIMIT = 240.0  # seconds; a hang must not hang the tests
# Prints numbers until the file `go` is there, or it is stopped.
COUNTS = """
import os, pathlib, signal, sys, time
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
number, rank = 0, os.environ["SM_CURRENT_HOST"]
print("started", os.getpid(), flush=True)
while not pathlib.Path(sys.argv[-1]).exists() and not stopped:
    print("line", number, flush=True)
    number += 1
    time.sleep(0.02)
print("last", number, "stopped" if stopped else "", flush=True)
pathlib.Path(os.environ["SM_MODEL_DIR"], rank).write_text(str(number))
pathlib.Path(os.environ["SM_MODEL_DIR"], "same").write_text(rank)
"""
TRAINS = """
import os, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = torch.load(os.path.join(os.environ["SM_CHANNEL_TRAIN"], "data.pt"))
for step in range(20):
    x, y = data[step, dist.get_rank() :: dist.get_world_size(), :4], data[step, dist.get_rank() :: dist.get_world_size(), 4:]
    loss = ((model(x) - y) ** 2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
total = loss.detach().clone()
dist.all_reduce(total)
print(f"loss={total.item() / dist.get_world_size():.6f}; rank {dist.get_rank()} of {dist.get_world_size()}")
if dist.get_rank() == 0:
    torch.save(model.module.state_dict(), os.path.join(os.environ["SM_MODEL_DIR"], "model.pt"))
dist.destroy_process_group()
"""


def until(condition: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        assert process is None or process.poll() is None, process.communicate()[0]
        time.sleep(0.05)


@pytest.fixture
def pair(lab: Lab) -> Lab:
    for number, name in enumerate("ab"):
        lab.add_space(name, number + 1)
    return lab


def counting(lab: Lab) -> str:
    return str(lab.job(COUNTS, grace_seconds=30, hyperparameters={"until": str(lab.folder / "go")}))


def printed(lab: Lab, host: str) -> bytes:
    found = list(lab.folder.glob(f"runs/*/logs/{host}.log"))
    return found[0].read_bytes() if found else b""


def started(lab: Lab) -> subprocess.Popen[str]:
    process = lab.start("run", counting(lab), "--on", "ssh")
    until(lambda: all(b"line 3\n" in printed(lab, host) for host in ("algo-1", "algo-2")), process)
    return process


def assert_whole(lab: Lab) -> None:
    """Each host's log has every line once, in order, and the number that the script ended with."""
    for host in ("algo-1", "algo-2"):
        lines = printed(lab, host).decode().splitlines()
        numbers = [int(line.split()[1]) for line in lines if line.startswith("line ")]
        (last,) = [line for line in lines if line.startswith("last ")]
        assert numbers == list(range(int(last.split()[1])))


def status(lab: Lab) -> dict[str, object]:
    return dict(json.loads((lab.run / "status.json").read_text()))


@pytest.mark.exact
@pytest.mark.spine
def test_ranks_on_three_machines_train_one_model(lab: Lab) -> None:
    import torch

    for number, name in enumerate("abc"):
        lab.add_space(name, number + 1)
    data = torch.randn(20, 12, 5, generator=torch.Generator().manual_seed(1))
    (lab.folder / "data").mkdir()
    torch.save(data, lab.folder / "data/data.pt")
    job = lab.job(TRAINS, channels={"train": str(lab.folder / "data")},
                  distribution={"kind": "torchrun", "processes_per_host": 1})  # fmt: skip
    far = lab.trainshed("run", str(job), "--on", "ssh")
    assert far.returncode == 0, far.stdout + far.stderr
    ours = torch.load(lab.run / "model/model.pt")
    assert sorted(line.split()[-3] for line in far.stdout.splitlines() if "rank " in line and "loss=" in line) == [
        "0",
        "1",
        "2",
    ]
    near = lab.trainshed("run", str(job), "--name", "near")
    assert near.returncode == 0, near.stdout + near.stderr
    (folder,) = (lab.folder / "runs").glob("near-*")
    theirs = torch.load(folder / "model/model.pt")
    for name, value in ours.items():
        assert torch.equal(value, theirs[name])
    assert lab.left == []


@pytest.mark.heavy
def test_a_lost_connection_does_not_end_the_job(pair: Lab) -> None:
    process = started(pair)
    pair.cable("b", "down")
    time.sleep(20)  # the cut itself, as long as the issue asks for
    until(lambda: "the connection to b is lost" in (pair.run / "runner.log").read_text(), process)
    pair.cable("b", "up")
    until(lambda: "b is back after" in (pair.run / "runner.log").read_text(), process)
    (pair.folder / "go").touch()
    text = process.communicate(timeout=LIMIT)[0]
    assert process.returncode == 0, text
    assert text.count("the connection to b is lost") == text.count("b is back after") == 1
    assert "the connection to a" not in text
    assert_whole(pair)
    assert {"algo-1", "algo-2"} < set(os.listdir(pair.run / "model"))
    assert pair.left == []


@pytest.mark.heavy
def test_a_killed_train_is_named_with_its_host(pair: Lab) -> None:
    process = started(pair)
    script = int(printed(pair, "algo-2").split()[1])
    trains = [one for one in psutil.Process(script).parents() if "trainshed.container.main" in " ".join(one.cmdline())]
    trains[-1].kill()
    text = process.communicate(timeout=LIMIT)[0]
    assert process.returncode == 137, text
    said = status(pair)
    assert said["TrainingJobStatus"] == "Failed"
    assert "algo-2 exited with 137 (killed by SIGKILL)" in str(said["FailureReason"])
    assert not psutil.pid_exists(script)
    assert pair.left == []


@pytest.mark.heavy
def test_ctrl_c_stops_with_grace(pair: Lab) -> None:
    process = started(pair)
    process.send_signal(signal.SIGINT)
    text = process.communicate(timeout=LIMIT)[0]
    assert process.returncode == 130, text
    assert_whole(pair)
    # Two hosts wrote one file: neither is lost.
    assert (pair.run / "model/same").read_text() == "algo-1"
    assert (pair.run / "model/algo-2_/same").read_text() == "algo-2"
    assert pair.left == []


@pytest.mark.heavy
def test_a_second_ctrl_c_kills(pair: Lab) -> None:
    job = pair.job(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(600)\n"
    )
    process = pair.start("run", str(job), "--on", "ssh")
    until(lambda: all(b"ready" in printed(pair, host) for host in ("algo-1", "algo-2")), process)
    process.send_signal(signal.SIGINT)
    until(lambda: b"SIGTERM received" in printed(pair, "algo-1"), process)
    process.send_signal(signal.SIGINT)
    text = process.communicate(timeout=LIMIT)[0]
    assert process.returncode == 130, text
    assert "killing the job" in text
    assert pair.left == []


@pytest.mark.heavy
def test_a_run_outlives_its_runner_and_is_taken_up_again(pair: Lab) -> None:
    process = started(pair)
    process.kill()
    process.communicate()
    assert "Training, on a, b" in pair.trainshed("ps").stdout
    before = len(printed(pair, "algo-1"))
    attached = pair.start("attach")
    until(lambda: len(printed(pair, "algo-1")) > before + 100, attached)
    (pair.folder / "go").touch()
    text = attached.communicate(timeout=LIMIT)[0]
    assert attached.returncode == 0, text
    assert status(pair)["TrainingJobStatus"] == "Completed"
    assert_whole(pair)
    assert {"algo-1", "algo-2"} < set(os.listdir(pair.run / "model"))
    assert pair.left == []


@pytest.mark.spine
def test_stop_of_a_run_whose_runner_was_killed(pair: Lab) -> None:
    process = started(pair)
    process.kill()
    process.communicate()
    done = pair.trainshed("stop")
    assert done.returncode == 0, done.stdout + done.stderr
    assert status(pair)["TrainingJobStatus"] == "Stopped", status(pair)
    assert_whole(pair)
    assert pair.left == []


@pytest.mark.heavy
def test_resume_goes_on_from_the_checkpoints(pair: Lab) -> None:
    script = """
import os, pathlib, sys
kept = pathlib.Path(os.environ["SAGEMAKER_BASE_DIR"], "checkpoints")
steps = sorted(int(one.name) for one in kept.iterdir())
print("found", steps, flush=True)
whole = pathlib.Path("whole")  # the other host's end may stop this one in the middle of a write
whole.write_text("step")
whole.replace(kept / str(len(steps)))
sys.exit(0 if steps else 3)
"""
    job = pair.job(script)
    assert pair.trainshed("run", str(job), "--on", "ssh").returncode == 3
    assert pair.left == []
    done = pair.trainshed("resume")
    assert done.returncode == 0, done.stdout + done.stderr
    assert b"found [0]" in printed(pair, "algo-1") and b"found [0]" in printed(pair, "algo-2")
    assert pair.left == []


@pytest.mark.heavy
def test_hosts_that_do_not_reach_each_other(pair: Lab) -> None:
    for name in "ab":
        subprocess.run(["ip", "-n", pair.machines[name].space, "link", "set", "lan", "down"], check=True)
        subprocess.run(["ip", "-n", pair.machines[name].space, "addr", "flush", "dev", "lan"], check=True)
    done = pair.trainshed("run", str(pair.job("print(1)")), "--on", "ssh")
    assert done.returncode == 69
    assert "a does not reach b" in done.stderr and "b does not reach a" in done.stderr
    assert "open the ports between the hosts" in done.stderr
    assert pair.left == []
    done = pair.trainshed("doctor", "--cluster", str(pair.job("print(1)")))
    assert done.returncode == 1 and "ok    a " in done.stdout and "ok    b " in done.stdout
    assert "fail  ports" in done.stdout and "a does not reach b" in done.stdout and "b does not reach a" in done.stdout


@pytest.mark.heavy
def test_a_machine_that_stays_away_does_not_keep_the_runner(pair: Lab) -> None:
    process = started(pair)
    script = int(printed(pair, "algo-2").split()[1])
    pair.cable("b", "down")
    process.send_signal(signal.SIGINT)
    until(lambda: b"last " in printed(pair, "algo-1"), process)
    process.send_signal(signal.SIGINT)  # a has ended, b does not hear
    text = process.communicate(timeout=LIMIT)[0]
    assert process.returncode == 1, text
    assert "the results of algo-2 are not all here" in text and "may still run" in text
    assert "kept on b in" in text
    assert (pair.run / "model/algo-1").is_file()
    (left,) = pair.left
    assert os.listdir(left) == ["algo-2"]
    if psutil.pid_exists(script):
        psutil.Process(script).kill()


@pytest.mark.heavy
def test_patience_ends(pair: Lab) -> None:
    job = pair.job(COUNTS, hyperparameters={"until": str(pair.folder / "go")}, grace_seconds=5, ssh={"patience": 5})
    process = pair.start("run", str(job), "--on", "ssh")
    until(lambda: all(b"line 3\n" in printed(pair, host) for host in ("algo-1", "algo-2")), process)
    script = int(printed(pair, "algo-2").split()[1])
    pair.cable("b", "down")
    text = process.communicate(timeout=LIMIT)[0]
    assert process.returncode == 69, text
    assert "b has been out of reach for" in str(status(pair)["FailureReason"])
    if psutil.pid_exists(script):
        psutil.Process(script).kill()
