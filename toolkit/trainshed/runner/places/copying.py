"""For engines that do not see this machine's folders: files are copied into a container, and out when it has ended."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tarfile
import tempfile

from trainshed.base.errors import TrainshedError
from trainshed.machine.archive import unpack

from ..files.run import Host, Run
from ..job.job import S3
from .container_command import container_name
from .container_engine import Engine, EngineError, hint_for, reason


def copy_in(engine: Engine, run: Run, host: Host) -> None:
    """Lays out /opt/ml in a container that has not started. Raises EngineError."""
    container = container_name(run, host)
    with _aside(run) as folder:
        for name in ("model", "output/data"):
            os.makedirs(f"{folder}/ml/{name}")
        for name in ("ml", "ml/model", "ml/output", "ml/output/data"):
            os.chmod(f"{folder}/{name}", 0o777)  # whoever the image's user is
        _copy(engine, f"{folder}/ml", f"{container}:/opt/")
    _copy(engine, f"{host.folder}/input", f"{container}:/opt/ml/")
    _copy(engine, f"{run.checkpoints}/.", f"{container}:/opt/ml/{run.job.checkpoint_path}/")
    if run.job.source_dir and not run.job.source_dir.startswith(S3):
        _copy(engine, f"{host.folder}/code/.", f"{container}:/opt/ml/code/")
    for channel in run.job.channels:
        path = run.data(host, channel)
        source = path if os.path.isfile(path) else f"{path}/."
        _copy(engine, source, f"{container}:/opt/ml/input/data/{channel.name}/", follow=True)


def copy_out(engine: Engine, run: Run, host: Host) -> None:
    """Brings output, model and checkpoints of an ended container home. Raises TrainshedError."""
    container = container_name(run, host)
    for source, target in (
        ("output", host.output),
        ("model", run.model),
        (run.job.checkpoint_path, run.checkpoints),
    ):
        _extract(engine, f"{container}:/opt/ml/{source}/.", target, run)


def _aside(run: Run) -> tempfile.TemporaryDirectory[str]:
    """A folder of the run's, which goes with it even if this process is killed."""
    return tempfile.TemporaryDirectory(prefix=".copying-", suffix=".tmp", dir=run.folder)


def _copy(engine: Engine, source: str, target: str, *, follow: bool = False) -> None:
    """`docker cp`; folders that are missing on the way are made by a tar of them."""
    container, _, path = target.partition(":")
    if not path.endswith("/opt/"):
        _make_folder(engine, container, path)
    options = ["--follow-link"] if follow else []
    engine.checked("cp", *options, source, target, timeout=None)


def _make_folder(engine: Engine, container: str, path: str) -> None:
    with tempfile.TemporaryFile() as file:
        with tarfile.open(fileobj=file, mode="w") as tar:
            parts = path.strip("/").split("/")
            for number in range(3, len(parts) + 1):  # /opt/ml is there
                info = tarfile.TarInfo("/".join(parts[:number]))
                info.type, info.mode = tarfile.DIRTYPE, 0o777
                tar.addfile(info)
        file.seek(0)
        done = subprocess.run([*engine.command, "cp", "-", f"{container}:/"], stdin=file, capture_output=True, text=True)
    if done.returncode != 0:
        raise EngineError(f"cannot create {path} in {container}: {reason(done.stderr)}", hint=hint_for(done.stderr))


def _extract(engine: Engine, source: str, target: str, run: Run) -> None:
    """What a container left is as hostile as any archive: it goes through the same door."""
    with _aside(run) as folder:
        archive = f"{folder}/out.tar"
        with open(archive, "wb") as file:
            command = [*engine.command, "cp", source, "-"]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            if "no such" in done.stderr.lower() or "not find" in done.stderr.lower():
                return
            raise EngineError(f"`{shlex.join(command)}` failed: {reason(done.stderr)}")
        aside = f"{folder}/out"
        os.mkdir(aside)
        try:
            unpack(archive, aside)
            _merge(aside, target)
        except OSError as error:
            raise TrainshedError(f"{target}: {error.strerror}") from error


def _merge(source: str, target: str) -> None:
    os.makedirs(target, exist_ok=True)
    for entry in os.scandir(source):
        place = f"{target}/{entry.name}"
        if entry.is_dir(follow_symlinks=False) and os.path.isdir(place) and not os.path.islink(place):
            _merge(entry.path, place)
            continue
        if os.path.lexists(place):
            shutil.rmtree(place) if os.path.isdir(place) and not os.path.islink(place) else os.unlink(place)
        shutil.move(entry.path, place)
