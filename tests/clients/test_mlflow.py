"""A real MLflow server: runs are sent while they run, beside what scripts send themselves, and through the server's end."""

from __future__ import annotations

import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clients import venvs
from support.extras import needs
from support.free_ports import free_ports
from support.mlflow_told import in_mlflow
from support.runner_project import LIMIT, Project, wait_until

needs("mlflow")

# It sends `own` and `loss` itself; `loss` is printed as well.
BOTH = """\
import os, time
import mlflow
with mlflow.start_run():
    for step in range(1, 4):
        mlflow.log_metrics({"own": step, "loss": 1 / step}, step=step)
        print(f"metric loss={1 / step} step={step}", flush=True)
        print(f"metric printed={step} step={step}", flush=True)
"""
# Goes on when it is told to.
SLOW = """\
import os, time
for step in range(1, 7):
    print(f"metric loss={1 / step} step={step}", flush=True)
    while step == 3 and not os.path.exists(os.environ["GO"]):
        time.sleep(0.05)
"""
JOB = """\
name: digits
program: train.py
source_dir: src
hyperparameters: {lr: 0.1, api_token: secretsecret}
tags: {who: me}
"""


class Server:
    """An MLflow server on a port of its own; its database outlives it."""

    def __init__(self, python: Path, folder: Path) -> None:
        self.python, self.folder = python, folder
        self.port = free_ports()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Its tracking URI."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        words = [
            "--backend-store-uri",
            f"sqlite:///{self.folder}/mlflow.db",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            *("--workers", "1"),  # of four, each imports all of MLflow
        ]
        self.process = subprocess.Popen(
            [self.python, "-m", "mlflow", "server", *words],
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "PYTHONDONTWRITEBYTECODE": ""},
            cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        wait_until(self.answers, "MLflow answers", LIMIT)

    def answers(self) -> bool:
        """Whether it does."""
        assert self.process is not None and self.process.poll() is None
        try:
            with urllib.request.urlopen(f"{self.address}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def kill(self) -> None:
        """Ends it at once, its workers too."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that answers; its start is what these tests cost."""
    made = Server(venvs.make("mlflow"), tmp_path_factory.mktemp("mlflow"))
    made.start()
    yield made
    made.kill()


@pytest.mark.timeout(300)  # the start of a server included
def test_a_run_is_sent_while_it_runs_beside_what_its_script_sends(server: Server, project: Project) -> None:
    project.write({"src/train.py": BOTH, "job.yaml": JOB})
    variables = {"MLFLOW_TRACKING_URI": server.address, "MLFLOW_EXPERIMENT_NAME": "digits"}
    environment = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]

    done = project.trainshed("run", "job.yaml", "--output", "out", *environment)
    again = project.command("export", "mlflow", "./out", "--model", **variables)

    assert done.status == 0 and f"sending to MLflow at {server.address}, run " in done.stderr, done.output
    assert "warning" not in done.stderr and again.status == 0, done.output + again.output
    (run,) = in_mlflow(server.address)
    assert run["status"] == "FINISHED" and run["params"] == {"lr": "0.1", "api_token": "******"}
    assert run["tags"]["who"] == "me" and run["tags"]["trainshed.status"] == "Completed"
    assert {name: sorted(values) for name, values in run["history"].items()} == {
        "own": [[1, 1.0], [2, 2.0], [3, 3.0]], "printed": [[1, 1.0], [2, 2.0], [3, 3.0]],
        "loss": [[1, 1.0], [2, 0.5], [3, 1 / 3]],
    }, "what the script sends itself is not sent a second time"  # fmt: skip


def killed(server: Server) -> dict[str, Any]:
    """The run of the experiment of that name, {} before it is there."""
    return next((run for run in in_mlflow(server.address, files=False) if run["experiment"] == "killed"), {})


@pytest.mark.heavy
def test_a_server_that_is_killed_and_comes_back_has_everything_at_the_end(server: Server, project: Project) -> None:
    go = project.folder / "go"
    project.write({"src/train.py": SLOW, "job.yaml": JOB})
    running = project.start(
        "run",
        "job.yaml",
        "--output",
        "out",
        "--env",
        f"MLFLOW_TRACKING_URI={server.address}",
        "--env",
        f"GO={go}",
        "--env",
        "MLFLOW_EXPERIMENT_NAME=killed",
    )
    wait_until(lambda: "loss" in killed(server).get("history", {}), "values come", LIMIT)
    server.kill()
    go.touch()
    wait_until((project.folder / "out/output/model.tar.gz").parent.exists, "the run goes on", LIMIT)
    server.start()
    stdout, stderr = running.communicate(timeout=LIMIT)
    if (
        "not all of the run" in stderr
    ):  # the machine was too slow for the time that a run waits: the rest goes by the command
        assert project.command("export", "mlflow", "./out", "--to", server.address, "--experiment", "killed").status == 0

    assert running.returncode == 0, stdout + stderr
    run = killed(server)
    assert sorted(run["history"]["loss"]) == [[step, 1 / step] for step in range(1, 7)] and run["status"] == "FINISHED"
