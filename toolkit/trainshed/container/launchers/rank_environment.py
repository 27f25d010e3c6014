"""The environment that all processes of the script share, apart from the platform's own names (`SM_*`)."""

from __future__ import annotations

import os
import sys

import trainshed
from trainshed.contract.settings import COPY_TO_VARIABLE
from trainshed.contract.wire.variables import AUTOPATCH, PROBE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainshed.contract.cluster import Cluster
    from trainshed.contract.job import TrainingJob

    from ..program import Program

_PACKAGE = os.path.dirname(os.path.abspath(trainshed.__file__))
PEERS_MODULES = f"{_PACKAGE}/compat/sagemaker_training_api"
STACKS_HOOK = f"{_PACKAGE}/container/hangs/hook"
TRAINING_HOOKS = f"{_PACKAGE}/autopatch/startup"


def default_variables(job: TrainingJob, cluster: Cluster) -> dict[str, str]:
    """Variables that the user's own value wins over."""
    values = {
        "MASTER_ADDR": cluster.address,
        "MASTER_PORT": str(cluster.port),
        "PYTHONUNBUFFERED": "1",  # else lines sit in the script's buffer while people wait for them
        "PYTHONFAULTHANDLER": "1",  # a crash in native code then shows the Python line that led there
    }
    if len(cluster.hosts) > 1:
        from .network_settings import network_settings  # a table that jobs on one host never need

        values.update(network_settings(cluster, job.resources.current_instance_type).variables)
    if cluster.interface:
        values["NCCL_SOCKET_IFNAME"] = values["GLOO_SOCKET_IFNAME"] = cluster.interface
    return values


def fixed_variables(job: TrainingJob, cluster: Cluster, program: Program, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that win over the user's own value.

    PATH starts with the programs of packages that were installed for the job.
    """
    probe = environ.get(PROBE, "")
    hooks = [name for name, wanted in (("checkpoint", job.settings.checkpoint == "auto"), ("probe", probe)) if wanted]
    training_hooks = bool(hooks) or job.compiler.on
    values = {"PYTHONPATH": _python_path(program, environ, job.settings.stacks == "on", training_hooks)}
    if hooks:
        values[AUTOPATCH] = ",".join(hooks)
    if job.settings.checkpoint_copy_to:
        values[COPY_TO_VARIABLE] = job.settings.checkpoint_copy_to
    if probe.isdigit():
        values[PROBE] = _probe(int(probe), job, cluster)
    if program.scripts:
        values["PATH"] = os.pathsep.join((program.scripts, environ.get("PATH", os.defpath)))
    return values


def _python_path(program: Program, environ: Mapping[str, str], stacks: bool, training_hooks: bool) -> str:
    """The code folder, packages installed for the job, the user's own path, Amazon's module names.

    Our start-up hooks come before all of them. They remove themselves from the path when Python
    starts, and let a `sitecustomize` of the user's run.

    Args:
        stacks: whether ranks answer when `train` asks for their stacks.
        training_hooks: whether something hooks into the training loop.
    """
    hooks = [STACKS_HOOK] if stacks else []
    if training_hooks:
        hooks.append(TRAINING_HOOKS)
    own = [program.folder, program.packages, environ.get("PYTHONPATH", "")]
    return os.pathsep.join(folder for folder in (*hooks, *own, *_peers_modules(own)) if folder)


def _probe(batch_size: int, job: TrainingJob, cluster: Cluster) -> str:
    """What a rank that tries out a batch size needs to know."""
    from trainshed.contract.wire.batch_search import Probe

    memory = cluster.hardware.memory_bytes // cluster.processes_per_host
    folder = f"{job.paths.output_data}/probe"
    return Probe(batch_size, folder, cluster.current_host, memory).to_text()


def _peers_modules(own: list[str]) -> list[str]:
    """The folder that stands for Amazon's toolkit, for scripts that import it; [] where the real one is installed."""
    path = [folder for folders in own for folder in folders.split(os.pathsep) if folder]
    packages = ("sagemaker_training", "sagemaker_containers")
    installed = any(os.path.isdir(f"{folder}/{name}") for folder in (*path, *sys.path) for name in packages)
    return [] if installed else [PEERS_MODULES]
