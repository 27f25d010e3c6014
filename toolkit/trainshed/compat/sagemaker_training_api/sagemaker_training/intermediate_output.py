"""Intermediate output, which `train` itself uploads if the job sets `sagemaker_s3_output`."""

from __future__ import annotations

import os
import subprocess
import sys

from . import environment

intermediate_path = environment.output_intermediate_dir
failure_file_path = os.path.join(environment.output_dir, "failure")
success_file_path = os.path.join(environment.output_dir, "success")
_UPLOADER = "trainshed.container.intermediate.uploader"  # a program of its own: the script's process does not import it


class Sync:
    """An uploader started here; `join` makes it finish."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process, self.pid = process, process.pid

    def is_alive(self) -> bool:
        """Returns whether it still runs."""
        return self._process.poll() is None

    def join(self, timeout: float | None = None) -> None:
        """Waits until everything that was written is uploaded, at most `timeout` seconds."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            pass


def start_sync(s3_output_location: str | None, region: str | None, endpoint_url: str | None = None) -> Sync | None:
    """Uploads what appears in the intermediate folder, to `<location>/<job name>/output/intermediate/`.

    None where no location is given, where it is a `file://` one, or where the folder exists: then somebody, as a rule
    `train`, looks after it.

    Raises:
        ValueError: a location that is neither s3:// nor file://.
    """
    if not s3_output_location or os.path.exists(intermediate_path):
        return None
    if not s3_output_location.startswith(("s3://", "file://")):
        raise ValueError(f"Expecting 's3' scheme, got: {s3_output_location}")
    os.makedirs(intermediate_path)
    if s3_output_location.startswith("file://"):
        return None
    job = os.environ.get("TRAINING_JOB_NAME", "")
    to = "/".join(part for part in (s3_output_location.rstrip("/"), job, "output/intermediate/") if part)
    settings = {"AWS_REGION": region, "S3_ENDPOINT_URL": endpoint_url}
    process = subprocess.Popen(
        [sys.executable, "-m", _UPLOADER, intermediate_path, to],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **{name: value for name, value in settings.items() if value}},
        cwd="/",
    )
    assert process.stdout is not None
    process.stdout.readline()  # it watches now
    return Sync(process)
