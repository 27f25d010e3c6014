"""The environment that all processes of the script share, apart from the platform's own names (`SM_*`)."""

from __future__ import annotations

import os
import sys

import trainshed
from trainshed.contract.settings import COPY_TO_VARIABLE, EVERY_VARIABLE, MEMORY_VARIABLE, OPTIONS_VARIABLE, REDUCE_VARIABLE
from trainshed.contract.wire.metric_lines import LOGGERS
from trainshed.contract.wire.variables import AUTOPATCH, PROBE, STEP_PROFILE, TENSORS

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
    return {**values, **interface_variables(cluster)}


def interface_variables(cluster: Cluster) -> dict[str, str]:
    """The interface for connections between ranks; {} to leave it to NCCL and gloo."""
    if not cluster.interface:
        return {}
    return {"NCCL_SOCKET_IFNAME": cluster.interface, "GLOO_SOCKET_IFNAME": cluster.interface}


def fixed_variables(job: TrainingJob, cluster: Cluster, program: Program, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that win over the user's own value.

    PATH starts with the programs of packages that were installed for the job.
    """
    probe = environ.get(PROBE, "")
    steps = job.measures_steps
    asked = {
        "checkpoint": job.settings.checkpoint == "auto",
        "metrics": job.settings.metrics == LOGGERS,
        "probe": probe,
        "reduce": job.settings.reduce not in ("", "off"),
        "steps": steps,
        "tensors": _looks_at_tensors(job.settings.rules),
    }
    hooks = [name for name, wanted in asked.items() if wanted]
    training_hooks = bool(hooks) or job.compiler.on
    values = {"PYTHONPATH": _python_path(program, environ, job.settings.stacks == "on", training_hooks)}
    if hooks:
        values[AUTOPATCH] = ",".join(hooks)
    if asked["tensors"]:
        values[TENSORS] = f"{_tensor_steps(job)}:{job.paths.tensors}"
    if steps:
        values[STEP_PROFILE] = _step_profile(job, cluster)
    if job.settings.checkpoint_copy_to:
        values[COPY_TO_VARIABLE] = job.settings.checkpoint_copy_to
    if job.settings.checkpoint_every:
        values[EVERY_VARIABLE] = job.settings.checkpoint_every
    if job.settings.checkpoint_memory:
        values[MEMORY_VARIABLE] = job.settings.checkpoint_memory
    if job.settings.reduce:
        values[REDUCE_VARIABLE] = job.settings.reduce
    if job.settings.checkpoint_options != "saved":
        values[OPTIONS_VARIABLE] = job.settings.checkpoint_options
    if probe.isdigit():
        values[PROBE] = _probe(int(probe), job, cluster)
    if program.scripts:
        values["PATH"] = os.pathsep.join((program.scripts, environ.get("PATH", os.defpath)))
    return values


def _looks_at_tensors(rules: str) -> bool:
    if not rules:
        return False
    from trainshed.contract.wire.rules import looks_at_tensors, wanted_rules

    return looks_at_tensors(wanted_rules(rules))


def _tensor_steps(job: TrainingJob) -> int:
    """Optimizer steps between two looks at tensors."""
    from trainshed.contract.wire.rules import TENSOR_STEPS

    hook = job.debug_hook.hook_parameters if job.debug_hook is not None else {}
    asked = str({name.lower(): value for name, value in hook.items()}.get("save_interval", ""))
    return job.settings.tensor_steps or (int(asked) if asked.isdecimal() else 0) or TENSOR_STEPS


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


def _step_profile(job: TrainingJob, cluster: Cluster) -> str:
    """What a rank that measures its steps needs to know."""
    from trainshed.contract.wire.step_profile import StepProfile

    traced = job.profiler.traced if job.profiler is not None else None
    return StepProfile(
        folder=job.profiler_folder,
        host=cluster.current_host,
        cpus=cluster.hardware.cpus,
        ranks=cluster.processes_per_host,
        trace_start=traced.start if traced is not None else 0,
        trace_steps=traced.steps if traced is not None else 0,
    ).to_text()


def _peers_modules(own: list[str]) -> list[str]:
    """The folder that stands for Amazon's toolkit, for scripts that import it; [] where the real one is installed."""
    path = [folder for folders in own for folder in folders.split(os.pathsep) if folder]
    packages = ("sagemaker_training", "sagemaker_containers")
    installed = any(os.path.isdir(f"{folder}/{name}") for folder in (*path, *sys.path) for name in packages)
    return [] if installed else [PEERS_MODULES]
