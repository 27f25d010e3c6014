"""Checks of what the job needs: readable configuration and data, writable folders, its program, its launcher, its hosts."""

from __future__ import annotations

import os
import shutil

from trainshed.base.check import Check, fail, ok, warn
from trainshed.base.errors import JobError, NoJobError, TrainshedError
from trainshed.contract.paths import ARCHIVES
from trainshed.contract.reading import read_job

from .. import planning
from ..cluster import resolve
from ..cluster.hosts import resolves
from ..launchers import launcher_of
from ..program.locate import locate
from ..program.source import fetch_source, has_entries

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainshed.contract.cluster import Cluster
    from trainshed.contract.config import Channel
    from trainshed.contract.job import TrainingJob

    from ..program import Program

MOST_FILES = 2000  # of a channel, looked at one by one
LEAST_FREE = 1 << 30  # bytes


def checks(environ: Mapping[str, str]) -> list[Check]:
    """All checks of the job; a single line if there is no job."""
    try:
        job = read_job(environ)
    except NoJobError as error:
        return [ok("job", f"none here, so only the machine was checked ({error.message})")]
    except JobError as error:
        return [
            fail("job", f"{problem.replace(suggestion='').line()}", problem.suggestion or "correct the file")
            for problem in error.problems
        ]
    except TrainshedError as error:
        return [fail("job", error.message, error.hint)]
    hosts = job.resources.hosts
    # A channel that is missing has a check of its own.
    warnings = [warn("job", text) for text in job.warnings if not text.startswith("channel ")]
    return [
        ok(
            "job", f"{job.name or 'without a name'}: {len(job.hyperparameters.user)} hyperparameter(s), {len(hosts)} host(s)"
        ),
        *warnings,
        *[channel(one, job) for one in job.channels],
        *[folder(name, path) for name, path in writable_folders(job)],
        free_space(job),
        *_run_checks(job, environ),
    ]


def channel(one: Channel, job: TrainingJob) -> Check:
    """Checks whether a channel exists and this user can read it; checks up to MOST_FILES files."""
    name = f"channel {one.name}"
    if one.input_mode == "Pipe":
        return ok(name, f"Pipe: {one.path}_<epoch> appear when the job runs")
    if not os.path.exists(one.path):
        listed = ", ".join(item.name for item in job.channels if os.path.exists(item.path)) or "none"
        return fail(name, f"{one.path} does not exist (there: {listed})", f"mount it: docker run -v DATA:{one.path}:ro")
    count, closed = _readable(one.path)
    if closed:
        return fail(
            name, f"{closed} cannot be read by uid {os.getuid()}", f"chmod -R a+rX {one.path}, or start as its owner"
        )
    if not count:
        return warn(name, f"{one.path} is empty", "check that the right folder is mounted")
    return ok(name, f"{one.input_mode}: {one.path}, {'over ' if count > MOST_FILES else ''}{min(count, MOST_FILES)} file(s)")


def _readable(path: str) -> tuple[int, str]:
    """(files seen, the first that cannot be read or "")."""
    if os.path.isfile(path):
        return 1, "" if os.access(path, os.R_OK) else path
    count = 0
    queue = [path]
    while queue:
        here = queue.pop()
        try:
            entries = list(os.scandir(here))
        except OSError:
            return count, here
        for entry in entries:
            if entry.is_dir():
                if not os.access(entry.path, os.R_OK | os.X_OK):
                    return count, entry.path
                if not entry.is_symlink():
                    queue.append(entry.path)
                continue
            count += 1
            if not os.access(entry.path, os.R_OK):
                return count, entry.path
            if count > MOST_FILES:
                return count, ""
    return count, ""


def writable_folders(job: TrainingJob) -> list[tuple[str, str]]:
    """The folders that the job writes to."""
    return [("model", job.paths.model), ("output", job.paths.output), ("checkpoints", job.paths.checkpoints)]


def folder(name: str, path: str) -> Check:
    """Checks whether files can be created there; for a folder that does not exist yet, whether it can be created."""
    there = path
    while not os.path.exists(there) and there != os.path.dirname(there):
        there = os.path.dirname(there)
    if os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK):
        return ok(name, f"{path} is writable" if there == path else f"{path} can be created")
    fix = f"chown it to uid {os.getuid()}, mount it without :ro, or start the container with --user"
    # Without checkpoints a job still runs.
    return (warn if name == "checkpoints" else fail)(name, f"{there} cannot be written by uid {os.getuid()}", fix)


def free_space(job: TrainingJob) -> Check:
    """Free space on the disk of the model."""
    there = job.paths.model
    while not os.path.exists(there):
        there = os.path.dirname(there)
    free = shutil.disk_usage(there).free
    text = f"{free / (1 << 30):.1f} GiB free for {job.paths.model}"
    return ok("disk", text) if free >= LEAST_FREE else warn("disk", text, "free some, or mount a larger disk there")


def _run_checks(job: TrainingJob, environ: Mapping[str, str]) -> list[Check]:
    """What the steps of `train` report before a process is started."""
    found: list[Check] = []
    cluster = resolve(job, environ)
    found.append(_hosts(job, cluster, environ))
    found += [_port(number, what) for number, what in _ports(job, cluster)]
    remote = _unseen_source(job)
    if remote:
        return [*found, ok("program", f"{job.program or 'not named'}, in {remote}, which `train` unpacks at the start")]
    try:
        program = locate(job, fetch_source(job, environ, lambda _: None), environ)
    except TrainshedError as error:
        return [*found, fail("program", error.message, error.hint)]
    found += [ok("program", f"{program.name} ({program.kind}) in {program.folder}"), _requirements(program)]
    try:
        plan = planning.plan(job, cluster, program, dict(environ), "/tmp")
    except TrainshedError as error:
        return [*found, fail("launcher", error.message, error.hint)]
    missing = _missing_launcher(job)
    if missing:
        return [*found, missing]
    here = [spec for spec in plan.processes if spec.rank is not None]
    ranks = f", {len(here)} of {cluster.world_size} rank(s) on this host" if here else ""
    return [*found, *(launcher_of(plan.launcher).check(plan) or [ok("launcher", f"{plan.launcher}{ranks}")])]


def _unseen_source(job: TrainingJob) -> str:
    """Where the code comes from if checking it needed a download or unpacking; "" for a folder."""
    code = job.channel("code")
    if has_entries(job.paths.code):
        return ""
    if job.source:
        return "" if os.path.isdir(job.source.removeprefix("file://")) else job.source
    if code is None or not os.path.isdir(code.path):
        return ""
    names = os.listdir(code.path)
    return code.path if names and all(name.endswith(ARCHIVES) for name in names) else ""


def _hosts(job: TrainingJob, cluster: Cluster, environ: Mapping[str, str]) -> Check:
    place = f"{cluster.current_host} is host {cluster.rank} of {len(cluster.hosts)} ({cluster.scheduler})"
    if len(cluster.hosts) < 2 or environ.get("MASTER_ADDR"):
        return ok("hosts", place)
    missing = [host for host in cluster.hosts if not resolves(host)]
    if missing:
        fix = "start the other hosts on the same network, each with its name (docker run --network NET --network-alias NAME)"
        return warn("hosts", f"{place}; these names do not resolve (yet): {', '.join(missing[:5])}", fix)
    return ok("hosts", f"{place}; all names resolve")


def _ports(job: TrainingJob, cluster: Cluster) -> list[tuple[int, str]]:
    """(port, setting that moves it) of what listens on this host."""
    if not cluster.participates or cluster.rank != 0:
        return []
    ranks = [(cluster.port, "master_port")] if job.distribution.traits.has_ranks else []
    several = len(cluster.hosts) > 1
    return [*ranks, (job.settings.roster_port or cluster.port + 1, "roster_port")] if several else ranks


def _port(number: int, setting: str) -> Check:
    import socket

    whom = "rank 0" if setting == "master_port" else "the hosts' `train`"
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", number))
        except OSError:
            return fail("port", f"{number}, for {whom}, is in use", f"set trainshed_{setting} to a free port, on all hosts")
    return ok("port", f"{number} is free for {whom}")


def _requirements(program: Program) -> Check:
    if not program.requirements:
        what = "the package itself" if program.installs else "nothing"
        return ok("requirements", f"{what} to install")
    try:
        with open(program.requirements, encoding="utf-8", errors="replace") as file:
            lines = [line for line in file if line.strip() and not line.lstrip().startswith("#")]
    except OSError as error:
        return fail("requirements", f"{program.requirements}: {error.strerror}", "make it readable")
    return ok("requirements", f"{len(lines)} line(s) in requirements.txt, installed when the job starts")


def _missing_launcher(job: TrainingJob) -> Check | None:
    """The elastic agent needs torch. Our own supervisor does not, but its ranks without torch are probably a mistake."""
    from importlib.util import find_spec

    if not job.distribution.traits.needs_torch or find_spec("torch") is not None:
        return None
    if job.settings.engine == "torchrun":
        return fail("launcher", "the job asks for torch's elastic agent, but torch is not installed", "pip install torch")
    return warn("launcher", "the job asks for torchrun ranks, but torch is not installed", "pip install torch")
