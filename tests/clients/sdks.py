"""A client: an SDK in a virtual environment of its own, fed with jobs; and what comes back from one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Answer:
    """How the client's call ended.

    log: what the SDK logged. printed: what the containers printed.
    """

    ok: bool
    error: str
    log: str
    printed: str = ""
    data: dict[str, Any] = field(default_factory=dict)


@dataclass
class Client:
    """Holds one process of an SDK and gives it one job after the other."""

    python: Path
    folder: Path
    environ: dict[str, str]
    process: subprocess.Popen[str] | None = None
    log: Path = Path()
    jobs: int = 0
    pending: bool = False  # whether a call has not been answered

    def send(self, call: str, **job: Any) -> None:
        """Starts a call (see worker.py); `answer` waits for it."""
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(
                [str(self.python), str(HERE / "worker.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=(self.folder / "stderr").open("a"),
                text=True,
                env=self.environ,
                cwd=self.folder,
                start_new_session=True,
            )
        assert self.process.stdin is not None
        self.jobs += 1
        self.log = self.folder / f"log-{self.jobs}"
        self.log.touch()
        self.process.stdin.write(json.dumps({"call": call, "log": str(self.log), **job}) + "\n")
        self.process.stdin.flush()
        self.pending = True

    def answer(self) -> Answer:
        """What came of the call."""
        assert self.process is not None and self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the client died:\n{(self.folder / 'stderr').read_text()[-3000:]}"
        self.pending = False
        data = json.loads(line)
        return Answer(data.pop("ok"), data.pop("error", ""), self.log.read_text(errors="replace"), data=data)

    def call(self, call: str, **job: Any) -> Answer:
        """Does a call to its end."""
        self.send(call, **job)
        return self.answer()

    def kill(self) -> None:
        """Ends the process, and its compose if a job runs; the next call gets a new one."""
        if self.process is not None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.process.wait()
        self.process, self.pending = None, False


@dataclass(frozen=True)
class Artifacts:
    """The two archives that a local job leaves in its output folder."""

    folder: Path

    def names(self, archive: str) -> list[str]:
        """Files in model.tar.gz or output.tar.gz."""
        with tarfile.open(self.folder / f"{archive}.tar.gz") as tar:
            return sorted(member.name for member in tar if member.isfile())

    def read(self, archive: str, name: str) -> str:
        """A file in one of them."""
        with tarfile.open(self.folder / f"{archive}.tar.gz") as tar:
            file = tar.extractfile(name)
            assert file is not None
            return file.read().decode()

    def json(self, name: str) -> Any:
        """A JSON file of the model."""
        return json.loads(self.read("model", name))


def environment(folder: Path, endpoint: str) -> dict[str, str]:
    """What an SDK needs to run offline: nobody's credentials, S3 and STS at `endpoint`, no telemetry, its own folders."""
    config = folder / "sdk.yaml"
    config.write_text(
        "SchemaVersion: '1.0'\n"
        "SageMaker:\n  PythonSDK:\n    Modules:\n      TelemetryOptOut: true\n"
        f"      Session:\n        DefaultS3Bucket: {BUCKET}\n"
    )
    temporary = folder / "tmp"
    temporary.mkdir()
    others = ("AWS_", "SAGEMAKER_", "SM_", "PYTHON", "COMPOSE_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    return {
        **kept,
        "HOME": str(folder),
        "TMPDIR": str(temporary),
        "SAGEMAKER_USER_CONFIG_OVERRIDE": str(config),
        "SAGEMAKER_ADMIN_CONFIG_OVERRIDE": str(config),
        "SAGEMAKER_SUPPRESS_V2_WARNING": "1",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


BUCKET = "trainshed-test"


def write(folder: Path, **files: str) -> Path:
    """Files of a source folder; `train` becomes train.py, `name_ext` becomes name.ext."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        stem, _, extension = name.rpartition("_")
        (folder / (f"{stem}.{extension}" if stem else f"{name}.py")).write_text(text)
    return folder
