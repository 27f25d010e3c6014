"""`trainshed run --on ssh` on one machine with a real sshd: from the start to the end."""

from __future__ import annotations

import hashlib
import json
import os
import shutil

import pytest

from jobs.ssh.machines import Lab, needs_sshd

pytestmark = needs_sshd

TRAINS = """
import os, sys, pathlib
print("hello from", os.environ["SM_CURRENT_HOST"], sorted(os.listdir(os.environ["SM_CHANNEL_TRAIN"])), flush=True)
print("to stderr", file=sys.stderr, flush=True)
print("epochs", sys.argv[1:], "secret", os.environ["API_KEY"])
print("loss=0.5;")
pathlib.Path(os.environ["SM_MODEL_DIR"], "weights").write_text("w")
pathlib.Path(os.environ["SM_OUTPUT_DATA_DIR"], "notes").write_text("n")
base = pathlib.Path(os.environ["SAGEMAKER_BASE_DIR"], "checkpoints")
print("before:", sorted(path.name for path in base.iterdir()))
(base / "step-1").write_text("c")
"""


@pytest.mark.safety
@pytest.mark.spine
def test_a_job_goes_there_and_its_results_come_home(lab: Lab) -> None:
    lab.add("a")
    data = lab.folder / "data"
    (data / "inner").mkdir(parents=True)
    (data / "x.csv").write_text("1,2\n")
    (data / "inner/y").symlink_to(data / "x.csv")
    job = lab.job(
        TRAINS, channels={"train": str(data)}, hyperparameters={"epochs": 3},
        environment={"API_KEY": "hush-hush-hush"}, metric_definitions={"loss": "loss=([0-9.]+);"},
    )  # fmt: skip
    done = lab.trainshed("run", str(job), "--on", "ssh")
    assert done.returncode == 0, done.stdout + done.stderr
    log = (lab.run / "logs/algo-1.log").read_text()
    assert "hello from algo-1 ['inner', 'x.csv']" in log and "to stderr" in log
    assert "epochs ['--epochs', '3']" in log
    assert "hush" not in log + done.stdout + done.stderr
    assert (lab.run / "model/weights").read_text() == "w"
    assert (lab.run / "algo-1/output/data/notes").read_text() == "n"
    assert (lab.run / "checkpoints/step-1").read_text() == "c"
    assert (lab.run / "output/model.tar.gz").is_file()
    status = json.loads((lab.run / "status.json").read_text())
    assert status["TrainingJobStatus"] == "Completed"
    assert status["FinalMetricDataList"][0]["Value"] == 0.5
    assert lab.left == []
    assert not (lab.run / "ssh/hosts.json").exists()


@pytest.mark.heavy
def test_hosts_may_be_one_machine(lab: Lab) -> None:
    """They meet on loopback, in folders of their own; a failed start is repeated, from the checkpoints."""
    lab.add("a")
    script = """
import os, pathlib, socket, sys
host, port = os.environ["SM_CURRENT_HOST"], int(os.environ["MASTER_PORT"])
kept = pathlib.Path(os.environ["SAGEMAKER_BASE_DIR"], "checkpoints")
first = not list(kept.iterdir())
(kept / host).write_text(host)
if first:
    sys.exit("not yet")
if host == "algo-1":
    door = socket.create_server((os.environ["MASTER_ADDR"], port))
    print("told:", door.accept()[0].recv(99).decode())
else:
    import time
    while True:
        try:
            socket.create_connection((os.environ["MASTER_ADDR"], port)).sendall(b"hello from " + host.encode())
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
"""
    job = lab.job(script, hosts=["a", "a"], retries=1)
    done = lab.trainshed("run", str(job), "--on", "ssh")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "told: hello from algo-2" in (lab.run / "logs/algo-1.log").read_text()
    assert "not yet" in done.stdout and "attempt 2" in done.stderr
    assert lab.left == []


def test_data_that_is_there_already_is_not_sent(lab: Lab) -> None:
    lab.add("a")
    (lab.folder / "large").mkdir()
    (lab.folder / "large/there.bin").write_text("x" * 1000)
    (lab.folder / "small").mkdir()
    script = """
import os
for name in ("TRAIN", "EXTRA"):
    folder = os.environ[f"SM_CHANNEL_{name}"]
    print(name, os.listdir(folder), os.path.realpath(folder))
"""
    large = str(lab.folder / "large")
    job = lab.job(script, channels={"train": str(lab.folder / "small")}, ssh={"data": {"train": large, "extra": large}})
    done = lab.trainshed("run", str(job), "--on", "ssh")
    assert done.returncode == 0, done.stderr
    assert f"TRAIN ['there.bin'] {large}" in done.stdout and f"EXTRA ['there.bin'] {large}" in done.stdout
    assert (lab.folder / "large/there.bin").is_file()
    assert lab.trainshed("run", str(job)).returncode == 1  # here it has the small one, and no other


@pytest.mark.safety
@pytest.mark.heavy
def test_what_cannot_be_brought_home_is_kept(lab: Lab) -> None:
    lab.add("a")
    script = (
        "import os; os.mkfifo(os.environ['SM_MODEL_DIR'] + '/pipe'); open(os.environ['SM_MODEL_DIR'] + '/m', 'w').write('m')"
    )
    done = lab.trainshed("run", str(lab.job(script)), "--on", "ssh")
    assert done.returncode == 0, done.stderr
    assert "left out of what came from a:" in done.stderr and "pipe" in done.stderr
    assert (lab.run / "model/m").read_text() == "m"
    shutil.rmtree(lab.folder / "runs")
    agent = next(lab.there.glob("agent-*.py"))
    kept = agent.read_text()
    # From here on the agent cannot pack: it is put in order again by the next run.
    text = f"import os\nopen(os.environ['SM_MODEL_DIR'] + '/m', 'w').write('m')\nopen({str(agent)!r}, 'w').write("
    text += (
        repr(kept.replace("def pack(folder: str) -> None:", "def pack(folder: str) -> None:\n    raise OSError(28, 'full')"))
        + ")\n"
    )
    done = lab.trainshed("run", str(lab.job(text)), "--on", "ssh")
    assert done.returncode == 1
    assert "the results of algo-1 are not all here" in done.stderr and "kept on a in" in done.stderr
    (left,) = lab.left
    assert (left / "algo-1/ml/model/m").read_text() == "m"


@pytest.mark.skipif(not shutil.which("rsync"), reason="needs rsync")
def test_a_channel_that_was_sent_before_is_not_sent_again(lab: Lab) -> None:
    lab.add("a")
    data = lab.folder / "some data's folder"
    (data / "inner").mkdir(parents=True)
    (data / "empty").mkdir()
    for name in ("x.bin", "inner/y.bin", "gone.bin", "*odd\nname"):
        (data / name).write_bytes(os.urandom(5000))
    (data / "link").symlink_to(data / "x.bin")
    (data / "inner/circle").symlink_to(data)
    script = """
import hashlib, os, pathlib
top = pathlib.Path(os.environ["SM_CHANNEL_TRAIN"])
for path in sorted(top.rglob("*")):
    is_file = path.is_file()
    print("found", ascii(str(path.relative_to(top))), hashlib.md5(path.read_bytes()).hexdigest() if is_file else "",
          path.stat().st_ino if is_file else "")
"""
    job = str(lab.job(script, channels={"train": str(data)}))

    def found() -> dict[str, tuple[str, str]]:
        done = lab.trainshed("run", job, "--on", "ssh")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "and what is new in the channels train" in done.stderr
        rows = [line.rsplit(" ", 2) for line in done.stdout.splitlines() if line.startswith("found ")]
        return {name.removeprefix("found "): (digest, inode) for name, digest, inode in rows}

    first = found()
    assert {"'x.bin'", "'inner/y.bin'", "'gone.bin'", "'link'", "'empty'", "'*odd\\nname'"} <= first.keys()
    assert not any("circle/" in name for name in first)
    assert first["'link'"][0] == hashlib.md5((data / "x.bin").read_bytes()).hexdigest()
    (data / "gone.bin").unlink()
    (data / "inner/y.bin").write_bytes(os.urandom(6000))
    second = found()
    assert "'gone.bin'" not in second
    assert second["'x.bin'"] == first["'x.bin'"]  # the same file, its number included
    assert second["'inner/y.bin'"][0] == hashlib.md5((data / "inner/y.bin").read_bytes()).hexdigest()
    assert lab.left == []
