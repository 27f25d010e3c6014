"""The variables that make a process on a node of Ray a host of the job; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainshed.contract.wire.variables import ENTRYPOINTS, ROSTER_TOKEN, RUN_ID, of_setting
from trainshed.runner.files.run import Run

from ..processes import ranks_by_cpus
from .demand import Bundle

READY = "entrypoints"  # below the actor's folder: ready programs that the job takes from a folder of the caller's


@dataclass(frozen=True)
class RendezvousPoint:
    """The meeting point of hosts: address of the first node, ports of its ranks and `train`; token: what they know each
    other by, new for each start."""

    address: str
    ranks_port: int
    roster_port: int
    token: str


def environment_of(
    run: Run, bundle: Bundle, tree: str, meeting: RendezvousPoint, secrets: Mapping[str, str], ready: str = ""
) -> dict[str, str]:
    """Of one host; the job's own words win.

    Args:
        bundle: what Ray has given to it. tree: its /opt/ml. ready: the folder of ready programs there, "" for none.
    """
    job = run.job
    cpus = max(1, int(bundle["CPU"]))
    ranks = job.distribution.processes_per_host
    own = {"SAGEMAKER_BASE_DIR": tree, "TRAINING_JOB_NAME": run.name, RUN_ID: run.id}
    if not bundle.get("GPU"):
        own["CUDA_VISIBLE_DEVICES"] = ""  # else that of Ray, which has chosen the devices
        if not ranks and ranks_by_cpus(job):  # of all that the node has it would be
            ranks = cpus
            own[of_setting("processes_per_host")] = str(ranks)
    own["OMP_NUM_THREADS"] = str(max(1, cpus // max(1, ranks or int(bundle.get("GPU", 0)))))
    if ready:
        own[ENTRYPOINTS] = ready
    if len(run.hosts) > 1:
        own |= {"MASTER_ADDR": meeting.address, "MASTER_PORT": str(meeting.ranks_port)}
        own |= {of_setting("roster_port"): str(meeting.roster_port), ROSTER_TOKEN: meeting.token}
    return {**own, **job.environment, **secrets}
