"""What a step depends on, as one hash: its job, its code, its data. The same hash means that it need not run again.

Channels of this machine count by their content: what another step has made is read whole, other data as the job's
`fingerprint` says. Channels elsewhere count by their address; models of the store by their version, which does not change.
What does not change a result does not count: limits, resources, retries, tags.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

from trainshed.base.errors import TrainshedError
from trainshed.contract.wire.variables import MODEL_STORE
from trainshed.machine.fingerprint import INCOMPLETE, SAMPLED, WHOLE, of_files, of_folder
from trainshed.machine.hashing import hashes_of
from trainshed.runner.job.channels import glob_root
from trainshed.runner.job.job import ChannelSpec, Job
from trainshed.runner.state.job_json import masked

from .steps_folder import StepsFolder

_NOT_COUNTED = (
    *("source_dir", "output", "full_name", "notes", "tags", "grace_seconds", "max_runtime_seconds", "retries"),
    *("resources", "channels", "parent", "checkpoint_copy_to", "profile", "spot"),
)


def key_of(job: Job, code_digest: str, folder: StepsFolder) -> tuple[str, str]:
    """(the hash, why the step must not be reused): one of them is "".

    Args:
        job: with all links resolved. code_digest: of its code.
    """
    plain = {name: value for name, value in masked(job).items() if name not in _NOT_COUNTED}
    channels = {}
    for channel in job.channels:
        digest = _content(channel, job.fingerprint, folder)
        if digest.startswith(INCOMPLETE):
            return "", f"the data of the channel {channel.name} cannot be read as a whole"
        told = {name: value for name, value in vars(channel).items() if name not in ("path", "files")}
        channels[channel.name] = {**told, "content": digest}
    if code_digest.startswith(INCOMPLETE):
        return "", "its code cannot be read as a whole"
    text = json.dumps([plain, channels, code_digest, job.from_run], sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(), ""


def _content(channel: ChannelSpec, how: str, folder: StepsFolder) -> str:
    if channel.remote:
        return channel.path
    ours = os.path.realpath(channel.path).startswith(f"{os.path.realpath(folder.path)}/")
    method = WHOLE if ours or how == WHOLE else SAMPLED
    if channel.files:
        root = glob_root(channel.path)
        return of_files([(os.path.relpath(path, root), path) for path in channel.files], method).digest
    return of_folder(channel.path, method).digest


class Codes:
    """Copies of the code of steps, as it was when the command began; one for each content.

    file: the pipeline's own, which is not code though it lies there.
    """

    def __init__(self, folder: StepsFolder, file: str, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
        self.folder, self.environ, self.say = folder, environ, say
        self.file = file
        self._made: dict[tuple[str, ...], tuple[str, str]] = {}
        self._lock = threading.Lock()

    def of(self, job: Job) -> tuple[Job, str]:
        """(the job with the copy as its code, the digest of that). Raises TrainshedError where it cannot be copied."""
        if not job.source_dir or not os.path.isdir(job.source_dir):
            return job, job.source_dir
        data = [channel.path for channel in job.channels if not channel.remote]
        known = (os.path.realpath(job.source_dir), *sorted(data))
        with self._lock:
            if known not in self._made:
                self._made[known] = self._copy(job.source_dir, [*data, job.checkpoints])
            path, digest = self._made[known]
        return replace(job, source_dir=path), digest

    def _copy(self, source: str, data: list[str]) -> tuple[str, str]:
        leave_out = [*data, self.file, *filter(None, [self.environ.get(MODEL_STORE)])]
        aside = self.folder.copy_code(source, leave_out, self.environ, self.say)
        with self.folder.guarded():
            digest = hashes_of(aside).digest
            path = f"{self.folder.code}/{digest.partition(':')[2][:16]}"
            if os.path.isdir(path) and hashes_of(path).digest == digest:
                shutil.rmtree(aside)
            else:
                shutil.rmtree(path, ignore_errors=True)
                os.makedirs(self.folder.code, exist_ok=True)
                os.rename(aside, path)
        return path, digest


def model_changed(run: str, digest: str) -> bool:
    """Whether the model of a run is not what the run has noted.

    Args:
        run: its folder. digest: of its model, "" where it has noted none.
    """
    try:
        held = os.path.isdir(f"{run}/model") and bool(os.listdir(f"{run}/model"))
    except OSError:
        return True
    return (hashes_of(f"{run}/model").digest if held else "") != digest


def best_run(path: str, step: str) -> str:
    """The folder of the run of a tuning job's best trial. Raises TrainshedError where there is none.

    Args:
        path: of the tuning job.
    """
    found = os.path.realpath(f"{path}/best")
    if not os.path.islink(f"{path}/best") or not os.path.isdir(found):
        raise TrainshedError(f"the step {step} has no best trial: {path}/best does not lead to a run")
    return found


def require_model(run: str, step: str) -> str:
    """The folder with the model that a step has left. Raises TrainshedError where there is none."""
    path = f"{run}/model"
    if not os.path.isdir(path) or not os.listdir(path):
        raise TrainshedError(f"the step {step} has left no model", hint="its script has to write to SM_MODEL_DIR")
    return path
