"""`trainshed run --on ssh` on one machine with a real sshd: from the start to the end."""

from __future__ import annotations

import json

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
