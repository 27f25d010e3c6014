"""The command lines of containers: pure functions, so that `--dry-run` shows exactly what would be run."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from trainshed.base.secrets import new_token
from trainshed.contract.wire.variables import PACKAGES, ROSTER_TOKEN, RUN_ID
from trainshed.runner.acting.base import DEFAULT_SHM
from trainshed.runner.files.run import HostTree, Run
from trainshed.runner.job.client_names import is_read_by_client
from trainshed.runner.job.job import S3

from . import gpus
from .container_engine import Engine

LABEL = "org.trainshed"
POOL_PACKAGES = "/opt/trainshed-packages"  # what containers call the packages of their warm pool


@dataclass(frozen=True)
class CommandFacts:
    """The facts that command lines depend on beside the job.

    uid, gid, user: whom the files are to belong to.
    memory: bytes of this machine.
    secrets: variables whose values were looked up.
    copies: whether files are copied into containers and back, because the engine cannot mount this machine's folders.
    devices: its GPUs, none where the engine cannot hand them on.
    token: by which the hosts of a run know each other.
    """

    engine: Engine
    uid: int
    gid: int
    user: str
    memory: int
    devices: tuple[str, ...] = ()
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    copies: bool = False
    token: str = field(default_factory=new_token, repr=False)


def container_name(run: Run, host: HostTree) -> str:
    """Name of a host's container; with a part of the run's id, since runs of one name may be anywhere on this machine."""
    return f"{run.name}-{run.id[:6]}-{host.name}"


def network_name(run: Run) -> str:
    """Name of the run's own network; a single host needs none."""
    return f"trainshed-{run.name}-{run.id[:6]}" if len(run.hosts) > 1 else ""


def labels(run: Run) -> list[str]:
    """By these a later command finds what a dead runner left."""
    pairs = {"job": run.name, "run": run.id, "folder": run.folder}
    return [part for name, value in pairs.items() for part in ("--label", f"{LABEL}.{name}={value}")]


def create_network(run: Run) -> list[str]:
    """Arguments that make the run's network."""
    isolated = ["--internal"] if run.job.network_isolation else []
    return ["network", "create", *labels(run), *isolated, network_name(run)]


def create(
    run: Run, index: int, machine: CommandFacts, addresses: Mapping[str, str] | None = None
) -> tuple[list[str], dict[str, str]]:
    """Arguments that create a host's container, and variables for the client, which hand over values unseen by `ps`.

    Args:
        addresses: those of all hosts, where the engine's networks know no names.
    """
    job, host, engine = run.job, run.hosts[index], machine.engine
    limits = job.resources_of(job.group_of(host.name))
    arguments = ["create", "--name", container_name(run, host), "--hostname", host.name]
    arguments += [*labels(run), "--label", f"{LABEL}.host={host.name}"]
    if network := network_name(run):
        arguments += ["--network", network, "--network-alias", host.name]
        for name, address in (addresses or {}).items():
            arguments += ["--ip", address] if name == host.name else ["--add-host", f"{name}:{address}"]
    elif job.network_isolation:
        arguments += ["--network", "none"]
    if machine.copies:
        pass  # what is copied in is root's, and what is copied out is the caller's anyway
    elif not engine.rootless:
        arguments += ["--user", f"{machine.uid}:{machine.gid}"]
    elif engine.kind == "podman" and machine.uid != 0:
        arguments += ["--userns", "keep-id", "--user", f"{machine.uid}:{machine.gid}"]
    arguments += ["--security-opt", "label=disable"]  # else SELinux hides the mounted folders
    arguments += ["--shm-size", str(limits.shm_size or min(DEFAULT_SHM, machine.memory // 2))]
    arguments += ["--stop-signal", "SIGTERM"]
    if limits.memory:
        arguments += ["--memory", str(limits.memory)]
    if limits.cpus:
        arguments += ["--cpus", f"{limits.cpus:g}"]
    arguments += _gpus(run, index, machine)
    for source, target, read_only in () if machine.copies else mounts(run, host):
        arguments += ["--mount", mount(source, target, read_only)]
    if machine.copies:
        arguments += ["--label", f"{LABEL}.copies=true"]
    given, client = _environment(run, machine)
    arguments += given
    if job.entrypoint:
        return [*arguments, "--entrypoint", job.entrypoint[0], job.image, *job.entrypoint[1:], *job.arguments], client
    return [*arguments, job.image, *(job.arguments or ("train",))], client


def mounts(run: Run, host: HostTree) -> list[tuple[str, str, bool]]:
    """(folder here, folder there, read-only) of a host. Code is mounted only where the job brings some."""
    pairs = [(f"{host.folder}/input", "input", False), (host.output, "output", False)]
    pairs += [(run.model, "model", False), (run.checkpoints, run.job.checkpoint_path, False)]
    if run.job.source_dir and not run.job.source_dir.startswith(S3):
        pairs.append((f"{host.folder}/code", "code", False))
    for channel in run.job.channels_of(host.name):
        if channel.input_mode == "Pipe":
            continue
        target = f"input/data/{channel.name}"
        if not channel.staged and os.path.isfile(channel.path):
            target += f"/{os.path.basename(channel.path)}"
        pairs.append((run.data(host, channel), target, channel.access != "rw"))
    found = [(source, f"{host.base}/{target}", read_only) for source, target, read_only in pairs]
    return [*found, (run.packages, POOL_PACKAGES, False)] if run.packages else found


def mount(source: str, target: str, read_only: bool) -> str:
    """The value of `--mount` for a folder or file of this machine."""
    fields = ["type=bind", f"source={source}", f"target={target}", *(["readonly"] if read_only else [])]
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(fields)  # a path may hold a comma
    return text.getvalue()


def _gpus(run: Run, index: int, machine: CommandFacts) -> list[str]:
    wanted = gpus.wanted(run)[index]
    if wanted == 0 or (wanted is None and not machine.devices):
        return []
    devices = gpus.shares(machine.devices, gpus.wanted(run))[index]
    if machine.engine.kind == "podman":
        return [part for device in devices or ("all",) for part in ("--device", f"nvidia.com/gpu={device}")]
    if not devices:  # asked for, and none seen: the engine's own error says why
        return ["--gpus", "all"]
    return ["--gpus", f'"device={",".join(devices)}"']


def _environment(run: Run, machine: CommandFacts) -> tuple[list[str], dict[str, str]]:
    values = {"TRAINING_JOB_NAME": run.name, RUN_ID: run.id}
    if len(run.hosts) > 1:
        values[ROSTER_TOKEN] = machine.token
    if run.packages and not machine.copies:
        values[PACKAGES] = POOL_PACKAGES
    if machine.uid != 0 and not machine.copies:  # the image knows no such user: caches go to HOME, and getpass asks for USER
        values |= {"HOME": "/tmp", "USER": machine.user}
    values |= {**run.job.environment, **machine.secrets}
    arguments: list[str] = []
    client: dict[str, str] = {}
    for name, value in values.items():
        by_client = is_read_by_client(name)
        arguments += ["--env", f"{name}={value}" if by_client else name]
        if not by_client:
            client[name] = value
    return arguments, client
