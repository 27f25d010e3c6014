"""Hosts as processes of this machine: one `train` a host, each with a tree of its own. Needs nothing but Python."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial

import trainshed
from trainshed.base.errors import LaunchError, exit_status
from trainshed.base.secrets import mask_mapping, new_token
from trainshed.contract.choices import DISTRIBUTION_FLAGS
from trainshed.contract.distributions import DEFAULT, find
from trainshed.contract.hyperparameters import truthy
from trainshed.contract.wire.variables import (
    ENTRYPOINTS,
    LOG_LEVEL,
    OWN_PACKAGES_STAY,
    PACKAGES,
    PREFIX,
    ROSTER_TOKEN,
    RUN_ID,
    of_setting,
)
from trainshed.machine.cgroup import cpus
from trainshed.machine.isolation import isolated
from trainshed.machine.network import free_port
from trainshed.machine.processes import die_with_parent
from trainshed.runner.acting.base import Exit, RunningHost
from trainshed.runner.acting.leftovers import end_leftovers, remove_scratch
from trainshed.runner.files.run import HostTree, Run
from trainshed.runner.job.job import Job
from trainshed.runner.job.references import look_up, secrets_of

from . import gpus

# Variables of the caller that would speak of another job: of an outer launcher, or of a container this runs in.
FOREIGN_PREFIXES = ("SM_", "SAGEMAKER_", PREFIX, "TORCHELASTIC_", "OMPI_", "PMIX_", "SLURM_", "PET_")
_FOREIGN = frozenset(
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_NAME",
     "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NNODES", "NODE_RANK", "JOB_COMPLETION_INDEX",
     "TRAINING_JOB_NAME", "TRAINING_JOB_ARN", "CURRENT_HOST",
     "CHECKPOINT_CONFIG_FILE_PATH", "TENSORBOARD_CONFIG_FILE_PATH", "SMDEBUG_CONFIG_FILE_PATH"}
)  # fmt: skip
_KEPT = frozenset({ENTRYPOINTS, LOG_LEVEL})


class ProcessHost:
    """A `train` of ours."""

    def __init__(self, name: str, process: subprocess.Popen[bytes]) -> None:
        self.name, self.process = name, process

    def stop(self, grace: float) -> None:
        """SIGTERM to `train`, which keeps to its own grace."""
        self._send(signal.SIGTERM)

    def hurry(self) -> None:
        """SIGINT, after the SIGTERM."""
        self._send(signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL; its ranks die with it."""
        self._send(signal.SIGKILL)

    def news(self) -> list[str]:
        """Nothing: its pipes say it all."""
        return []

    def exit(self) -> Exit:
        """Its own exit status."""
        code = self.process.returncode
        return Exit(exit_status(code), f"killed by {signal.Signals(-code).name}" if code < 0 else "")

    def _send(self, number: int) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)


class Processes:
    """The backend."""

    in_containers = False
    interface = "lo"
    place = ""

    def __init__(self, job: Job, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
        self.job, self.environ, self.say = job, environ, say
        self.run_id = ""
        self.secrets: dict[str, str] = {}
        self.image: dict[str, str] = {}
        self.hosts: list[ProcessHost] = []

    def prepare(self) -> None:
        """Nothing is needed; limits that only containers can hold are named."""
        self.secrets = look_up(self.job, self.environ)
        limits = [self.job.resources, *(group.resources for group in self.job.instance_groups)]
        given = [name for name in ("cpus", "memory", "shm_size") if any(getattr(one, name) is not None for one in limits)]
        if given:
            self.say(f"warning: resources.{', resources.'.join(given)}: only containers can be limited; set an image")
        for channel in self.job.channels:
            if channel.access == "ro" and not channel.staged:
                self.say(
                    f"warning: channels.{channel.name}.access: ro: only containers are kept from writing; "
                    f"what the script writes to the channel changes {channel.path}"
                )

    def mount_obstacle(self) -> str:
        """None: what this process mounts, they see."""
        return ""

    def pool_obstacle(self) -> str:
        """None."""
        return ""

    def where(self, job: Job) -> str:
        """How many processes."""
        return f"{'1 process' if job.instances == 1 else f'{job.instances} processes'} of this machine"

    def start(self, run: Run) -> list[RunningHost]:
        """One child a host; a child whose runner dies is asked to end by the kernel."""
        self.run_id = run.id
        self.hosts = []
        ports = _two_free_ports() if len(run.hosts) > 1 else ("", "")
        token = new_token()
        for index, host in enumerate(run.hosts):
            environment = {**inherited(self.environ), **_own(run, index, host, self.environ, ports, token), **self.secrets}
            try:
                process = subprocess.Popen(
                    _command(self.job.python),
                    env=environment,
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,  # the terminal's Ctrl-C is for the runner alone
                    preexec_fn=partial(_end_with_runner, os.getpid()),
                )
            except OSError as error:
                self.clear()
                raise LaunchError(f"cannot start {host.name}: {error.strerror}") from error
            self.hosts.append(ProcessHost(host.name, process))
        return list(self.hosts)

    def clear(self) -> None:
        """Ends what is left of the hosts, and whatever a killed one left behind."""
        for host in self.hosts:
            host.kill()
            host.process.wait()
        if self.run_id:
            end_leftovers(self.run_id)
        for host in self.hosts:
            remove_scratch(host.process.pid)

    def roots(self) -> list[int]:
        """The hosts' processes."""
        return [host.process.pid for host in self.hosts if host.process.returncode is None]

    def fetch(self, run: Run) -> tuple[str, ...]:
        """Everything is here already."""
        return ()

    def describe(self, run: Run) -> list[tuple[str, str]]:
        """The variables that make the host what it is, and the command."""
        rows = []
        for index, host in enumerate(run.hosts):
            own = _own(run, index, host, self.environ, ("(a free one)", "(another)"), "(a random one)")
            shown = [f"{name}={value}" for name, value in sorted(mask_mapping(own, secrets_of(self.job, {})).items())]
            rows.append((host.name, " ".join([*shown, "train"])))
        return rows


def _two_free_ports() -> tuple[str, str]:
    first = second = free_port(0)
    while second == first:
        second = free_port(0)
    return str(first), str(second)


def _command(python: str) -> list[str]:
    return isolated("trainshed.container.main", python=python)


def _end_with_runner(runner: int) -> None:
    die_with_parent(signal.SIGTERM)
    if os.getppid() != runner:  # it died before the line above took effect
        os._exit(1)


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment without what describes other jobs; PYTHONPATH holds for any working directory."""
    kept = {
        name: value
        for name, value in environ.items()
        if name in _KEPT or (name not in _FOREIGN and not name.startswith(FOREIGN_PREFIXES))
    }
    paths = [os.path.abspath(path) for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    root = os.path.dirname(os.path.dirname(os.path.abspath(trainshed.__file__)))
    if root not in [os.path.abspath(path) for path in sys.path[1:]] and root not in paths:
        paths.append(root)  # found through the working directory or the script's own folder
    if paths:
        kept["PYTHONPATH"] = os.pathsep.join(paths)
    return kept


def _own(
    run: Run, index: int, host: HostTree, environ: Mapping[str, str], ports: tuple[str, str], token: str
) -> dict[str, str]:
    """What makes a process this host: its tree, where ranks meet, its part of the machine; the job's own words win.

    ports: of rank 0, and of host 0's `train`.
    token: by which the hosts know each other, new for each start.
    """
    job = run.job
    own = {"SAGEMAKER_BASE_DIR": host.base, "TRAINING_JOB_NAME": run.name, RUN_ID: run.id}
    if run.packages:
        own |= {PACKAGES: run.packages, OWN_PACKAGES_STAY: "1"}
    if len(run.hosts) > 1:
        ranks = max(1, job.distribution.processes_per_host) * len(run.hosts)
        own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": ports[0], of_setting("roster_port"): ports[1]}
        own |= {ROSTER_TOKEN: token}
        own |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo"}
        if "OMP_NUM_THREADS" not in environ:
            own["OMP_NUM_THREADS"] = str(max(1, cpus() // ranks))
    wanted, devices = gpus.wanted(run), gpus.present(environ)
    if len(run.hosts) > 1 and not devices and not job.distribution.processes_per_host and ranks_by_cpus(job):
        # Otherwise each host would take all CPUs.
        own[of_setting("processes_per_host")] = str(max(1, cpus() // len(run.hosts)))
    if wanted[index] == 0 or (devices and (wanted[index] is not None or len(run.hosts) > 1)):
        own["CUDA_VISIBLE_DEVICES"] = ",".join(gpus.shares(devices, wanted)[index])
    return {**own, **job.environment}


def ranks_by_cpus(job: Job) -> bool:
    """Returns whether a host has a rank for each CPU by default: not with one process for all of its devices."""
    given = job.hyperparameters
    flagged = (kind for flag, kind in DISTRIBUTION_FLAGS if truthy(given.get(flag)))
    kind = given.get("trainshed_distribution") or job.distribution.kind
    traits = find(str(next(flagged, kind) if kind == DEFAULT else kind))
    return traits is None or not traits.uses_all_devices
