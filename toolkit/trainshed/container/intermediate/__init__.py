"""Intermediate output: uploads what the script writes to output/intermediate to S3 while the job runs.

The SDKs ask for it with the hyperparameter `sagemaker_s3_output`. On the platform, and where the SDK mounts a folder of its
own, the folder exists already and is uploaded from outside. Elsewhere the image uploads it, to
`<sagemaker_s3_output>/<job name>/output/intermediate/`, as `sagemaker-training` has it.

    this module   decides, starts the uploader, and waits for it at the end
    uploader      a process of its own, since S3's client has no place in the supervising one; keeps files that wait open
    inotify       tells which files were written
"""

from __future__ import annotations

import os
import time

from trainshed.machine.isolation import isolated

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping

    from trainshed.contract.job import TrainingJob

LAST_SECONDS = 600.0  # for what is left at the end of a job
STOPPED_SECONDS = 5.0  # the same after a stop signal
SAY_EVERY = 10.0


def destination(job: TrainingJob) -> str:
    """The URI to upload to, `s3://bucket/prefix/`; "" if nothing is to be uploaded, or something outside does it."""
    uri = job.hyperparameters.get("sagemaker_s3_output")
    if not isinstance(uri, str) or not uri.startswith("s3://") or os.path.isdir(job.paths.intermediate):
        return ""
    return "/".join(part for part in (uri.rstrip("/"), job.name, "output/intermediate/") if part)


class Uploads:
    """The uploader process, as `train` sees it."""

    def __init__(self, process: subprocess.Popen[bytes], say: Callable[[str], None]) -> None:
        self.process, self.say = process, say

    @property
    def pid(self) -> int:
        """The uploader, which is not a process of the script."""
        return self.process.pid

    def finish(self, stopped: bool) -> str:
        """Waits until all that was written is uploaded, or for as long as there is; the uploader is gone afterwards.

        Args:
            stopped: whether somebody wants the job to end.

        Returns:
            What is not on S3 that should be, "" if nothing is missing or nothing could be uploaded from the start.
        """
        import subprocess

        assert self.process.stdin is not None
        self.process.stdin.close()
        start = said = time.monotonic()
        limit = STOPPED_SECONDS if stopped else LAST_SECONDS
        while True:
            try:
                status = self.process.wait(0.2)
                return "files of the intermediate output could not be uploaded" if status not in (0, 1) else ""
            except subprocess.TimeoutExpired:
                now = time.monotonic()
            if now - start > limit:
                break
            if now - said > SAY_EVERY:
                said = now
                self.say(f"uploading the last of the intermediate output ({now - start:.0f} s of {limit:.0f} s)")
        self.give_up()
        self.say("the upload of the intermediate output did not finish in time and was cancelled")
        return f"the intermediate output was not uploaded within {limit:.0f} s"

    def give_up(self) -> None:
        """Ends the uploader at once."""
        self.process.kill()
        self.process.wait()


def start(job: TrainingJob, environ: Mapping[str, str], say: Callable[[str], None]) -> Uploads | None:
    """Makes the folder and starts to upload what appears in it; None if the job does not ask for it.

    If the folder or the uploader cannot be made, the job goes on without these uploads.
    """
    to = destination(job)
    if not to:
        return None
    import subprocess

    try:
        os.makedirs(job.paths.intermediate)
        process = subprocess.Popen(
            isolated("trainshed.container.intermediate.uploader", job.paths.intermediate, to),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # whoever interrupts `train` at a terminal does not mean this
            env=dict(environ),
            cwd="/",
        )
    except OSError as error:
        say(f"warning: intermediate output stays in this container: {error.strerror}")
        return None
    assert process.stdout is not None
    process.stdout.readline()  # it watches now, or has ended: a file that the script writes first is not missed
    return Uploads(process, say)
