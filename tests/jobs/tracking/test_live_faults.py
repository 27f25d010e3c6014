"""A run that is to be sent to an MLflow that is not there, or answers with errors: the training never pays for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from support.free_ports import free_ports
from support.runner_project import Project

pytestmark = pytest.mark.safety

TRAIN = """\
import os
print("id", os.environ.get("MLFLOW_RUN_ID"), flush=True)
print("metric loss=0.5 step=1", flush=True)
"""
JOB = "program: train.py\nsource_dir: src\nenvironment: {{MLFLOW_TRACKING_URI: '{}'}}\n"


class _Errors(BaseHTTPRequestHandler):
    """Answers 500 to everything."""

    def do_GET(self) -> None:
        self.send_error(500)

    do_POST = do_PUT = do_GET

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def broken() -> Iterator[str]:
    """Address of a server that knows errors alone."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Errors)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def judge(project: Project, address: str, shown: str) -> None:
    """The job completes, and what went wrong is said once at its start and once at its end."""
    pytest.importorskip("mlflow")
    project.write({"src/train.py": TRAIN, "job.yaml": JOB.format(address)})

    done = project.trainshed("run", "job.yaml", "--output", "out")

    assert done.status == 0, done.output
    assert "id None" in done.output and done.stderr.count("warning: MLflow: ") == 1 and shown in done.stderr
    assert done.stderr.count("warning: not all of the run is in MLflow: ") == 1
    assert "trainshed export mlflow RUN" in done.stderr and "hunter22" not in done.output


def test_a_server_that_is_not_there(project: Project) -> None:
    judge(project, f"http://me:hunter22@127.0.0.1:{free_ports()}", "http://******@127.0.0.1")


def test_a_server_that_answers_with_errors(project: Project, broken: str) -> None:
    judge(project, broken, "500")
