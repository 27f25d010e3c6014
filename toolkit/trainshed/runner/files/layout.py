"""Makes the folders of a run and fills them: configuration, code, links to channels; see `run.py` for what lies where."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace

from trainshed.base.archive import unpack
from trainshed.base.errors import TrainshedError
from trainshed.base.files import write_atomic
from trainshed.base.numerals import whole
from trainshed.base.secrets import is_secret_name
from trainshed.contract.paths import DEFAULT_BASE

from ..job.job import ChannelSpec, Job
from . import code
from .platform_files import config_files, to_json
from .provenance import note_start
from .run import HostTree, Run, hosts_of
from .user_dirs import RUNS, state_folder


def plan(job: Job, *, in_containers: bool, now: float) -> Run:
    """The run that a start at this moment (seconds since the epoch) would be; nothing is made."""
    while True:
        stamp = time.strftime("%Y-%m-%d-%H-%M-%S", time.gmtime(now)) + f"-{int(now * 1000) % 1000:03d}"
        name = job.full_name or f"{job.name}-{stamp}"
        folder = job.output or os.path.join(os.getcwd(), RUNS, name)
        if job.output or not os.path.lexists(folder):
            break
        if job.full_name:  # a request that is run again
            job = replace(job, full_name="")
            continue
        now += 0.001  # another run of this name started in the same millisecond
    return Run(job, name, uuid.uuid4().hex, folder, now, hosts_of(job, folder, in_containers=in_containers))


def claim(run: Run) -> Run:
    """Makes the run's folder. Returns the run, under its next name if another process has just taken this one.

    Raises:
        TrainshedError: the folder cannot be made or is not empty.
    """
    while True:
        try:
            os.makedirs(os.path.dirname(run.folder), exist_ok=True)
            os.mkdir(run.folder)
            return run
        except FileExistsError:
            if run.job.output:
                _check_empty(run.folder)
                return run
            run = plan(run.job, in_containers=run.hosts[0].base == DEFAULT_BASE, now=run.started + 0.001)
        except OSError as error:
            raise unusable(error, run.folder) from error


def place(
    run: Run, *, interface: str, say: Callable[[str], None] = lambda _: None, environ: Mapping[str, str] = os.environ
) -> None:
    """Fills a claimed folder with the run's folders, configuration and code.

    Args:
        interface: network interface that leads to the other hosts.
        say: told what the user should know, as soon as it is known: copying can take long.
        environ: names the home and state folders, which lie in what some people give as code.

    Raises:
        ProgramError: the code cannot be copied.
        TrainshedError: a folder cannot be made.
    """
    job = run.job
    runs = os.path.dirname(run.folder)
    if job.output or os.path.exists(f"{runs}/__init__.py"):  # a package of the user's: only the runs in it stay
        runs = ""
    leave_out = [channel.path for channel in job.channels]
    leave_out += [job.output, job.checkpoints, run.folder, runs, state_folder(environ)]
    source = code.CodeFiles("")
    if os.path.isdir(job.source_dir):
        source = code.survey(job.source_dir, leave_out, home=environ.get("HOME", ""), say=say)
    for note in source.notes:
        say(f"warning: {note}")
    gone: tuple[str, ...] = ()
    try:
        for folder in (run.model, run.checkpoints, run.artifacts, f"{run.folder}/logs"):
            os.makedirs(folder, exist_ok=True)
        for host in run.hosts:
            _place_host(run, host, interface)
            if os.path.isfile(job.source_dir):
                _unpack(job.source_dir, f"{host.folder}/code")
            elif source.folder:
                gone += code.copy(source, f"{host.folder}/code")
    except OSError as error:
        raise unusable(error, run.folder) from error
    if gone:
        say(f"warning: {code.vanished(job.source_dir, gone)}")
    note_start(run, environ, say)


def put_aside(run: Run, attempt: int) -> None:
    """Moves what an attempt left out of the way of the next one, which finds checkpoints and nothing else.

    Raises:
        TrainshedError: it cannot be moved.
    """
    aside = f"{run.folder}/attempts/{attempt}"
    try:
        os.makedirs(aside)
        # The archives too: those of an earlier end must not pass for this one's.
        for path in (run.model, run.artifacts, *(host.folder for host in run.hosts)):
            if os.path.lexists(path):
                os.rename(path, f"{aside}/{os.path.basename(path)}")
    except OSError as error:
        raise TrainshedError(f"cannot move attempt {attempt} aside: {error.filename}: {error.strerror}") from error


def attempts(folder: str) -> int:
    """How many attempts have been put aside."""
    try:
        return max((whole(name) or 0 for name in os.listdir(f"{folder}/attempts")), default=0)
    except OSError:
        return 0


def _unpack(archive: str, folder: str) -> None:
    os.makedirs(folder)
    unpack(archive, folder)


def unusable(error: OSError, folder: str) -> TrainshedError:
    """Says what is wrong with a run's folder, in words."""
    return TrainshedError(
        f"cannot create the run's folder: {error.filename or folder}: {error.strerror}",
        hint="make room there, or name another place with --output",
    )


def _check_empty(folder: str) -> None:
    try:
        held = os.listdir(folder)
    except OSError as error:
        raise unusable(error, folder) from error
    if held:
        what = "an earlier run" if "status.json" in held else f"{len(held)} other things ({', '.join(sorted(held)[:3])})"
        raise TrainshedError(f"{folder} holds {what}", hint="name a new folder with --output, or move the old one away")


def _place_host(run: Run, host: HostTree, interface: str) -> None:
    for part in ("input/config", "input/data", "output/data"):
        os.makedirs(f"{host.folder}/{part}", exist_ok=True)
    for name, value in config_files(run.job, run.name, host.name, host.base, interface).items():
        # Hyperparameters that look secret are for this user alone.
        private = name == "hyperparameters.json" and any(map(is_secret_name, run.job.hyperparameters))
        write_atomic(f"{host.folder}/input/config/{name}", to_json(value), mode=0o600 if private else 0o644)
    if host.base != host.folder:
        # Mount points: were Docker to make them, they would belong to root.
        for channel in _shown(run, host):
            point = f"{host.folder}/input/data/{channel.name}"
            os.makedirs(point, exist_ok=True)
            if not channel.staged and os.path.isfile(channel.path):
                open(f"{point}/{os.path.basename(channel.path)}", "w").close()
        return
    os.symlink(os.path.relpath(run.model, host.folder), f"{host.folder}/model")
    checkpoints = run.checkpoints
    if not run.job.checkpoints:
        checkpoints = os.path.relpath(checkpoints, host.folder)
    link = f"{host.folder}/{run.job.checkpoint_path}"
    os.makedirs(os.path.dirname(link), exist_ok=True)
    os.symlink(run.checkpoints if "/" in run.job.checkpoint_path else checkpoints, link)
    for channel in _shown(run, host):
        link = f"{host.folder}/input/data/{channel.name}"
        if not channel.staged and os.path.isfile(channel.path):  # a channel is a folder, if only of one file
            os.makedirs(link)
            link = f"{link}/{os.path.basename(channel.path)}"
        os.symlink(run.data(host, channel), link)


def _shown(run: Run, host: HostTree) -> list[ChannelSpec]:
    """The host's channels that are folders: those of Pipe mode are FIFOs, made when the hosts start."""
    return [channel for channel in run.job.channels_of(host.name) if channel.input_mode != "Pipe"]
