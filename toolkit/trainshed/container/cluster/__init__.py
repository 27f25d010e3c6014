"""Who is in the job: one module a scheduler, chosen by evidence."""

from __future__ import annotations

from trainshed.contract.cluster import Cluster
from trainshed.contract.distributions import DEVICES, NONE, ONE, SEVERAL
from trainshed.contract.wire.variables import HOSTS
from trainshed.machine.hardware import probe

from . import sagemaker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from trainshed.contract.cluster import Hardware
    from trainshed.contract.job import TrainingJob

DEFAULT_MASTER_PORT = 7777  # as the peers have it
# Variables that one of the schedulers other than SageMaker sets; without any of them their modules are not even loaded.
_TRACES = ("OMPI_COMM_WORLD_SIZE", "SLURM_STEP_ID", "PET_NNODES", "KUBERNETES_SERVICE_HOST", "NNODES", HOSTS)


def _schedulers(job: TrainingJob, environ: Mapping[str, str]) -> tuple[ModuleType, ...]:
    """In the order in which their evidence counts: what the job itself lists first, then who started this process."""
    if not any(environ.get(name) for name in _TRACES):
        if job.resources.given:
            return (sagemaker,)
        from . import single

        return (sagemaker, single)
    from . import kubernetes, openmpi, single, slurm, static

    return (sagemaker, openmpi, slurm, kubernetes, static, single)


def resolve(job: TrainingJob, environ: Mapping[str, str]) -> Cluster:
    """The hosts of the job and this host's place among them. Looks at files, variables and /dev, starts nothing."""
    scheduler = next(module for module in _schedulers(job, environ) if module.evidence(job, environ))
    cluster: Cluster = scheduler.cluster(job, environ)
    hardware = probe(environ, job.resources.current_instance_type)
    port = environ.get("MASTER_PORT", "")
    return cluster.replace(
        hardware=hardware,
        evidence=scheduler.evidence(job, environ),
        processes_per_host=_processes_per_host(job, hardware, cluster.participates),
        address=environ.get("MASTER_ADDR") or cluster.address,
        port=int(port) if _is_port(port) else _port(job, cluster),
    )


def _processes_per_host(job: TrainingJob, hardware: Hardware, participates: bool) -> int:
    """What the job asks for, else one for each GPU, else one for each Neuron core, else as follows.

    On CPUs the platform's flags mean one process a host, as they do in Amazon's images; our own settings mean one for each
    CPU, and so do the flags of a pipeline, which one process cannot form. torch_xla starts its processes itself on a TPU,
    and works on a CPU with one process only. A process of TensorFlow or JAX uses all devices of its host.
    """
    distribution, default = job.distribution, job.distribution.traits.default_ranks
    if default == NONE or not participates:
        return 1
    if default == ONE:
        return distribution.processes_per_host or 1
    flagged = distribution.asked_by.startswith("sagemaker_") and default != SEVERAL
    on_cpus = 1 if flagged or default == DEVICES else hardware.cpus
    return distribution.processes_per_host or hardware.gpus or hardware.neurons or on_cpus


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 6 and 0 < int(text) < 65536


def _port(job: TrainingJob, cluster: Cluster) -> int:
    """The agreed port on several hosts; ranks on one host take any free one, since two jobs may start at once."""
    wanted = job.settings.master_port
    if len(cluster.hosts) > 1 or not job.distribution.traits.has_ranks:
        return wanted or DEFAULT_MASTER_PORT
    from trainshed.machine.network import free_port

    return free_port(wanted)
