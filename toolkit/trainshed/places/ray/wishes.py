"""A job's options of Ray: the mapping `ray` of its file, read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from trainshed.base.errors import JobError, Problem, did_you_mean
from trainshed.base.numerals import whole
from trainshed.runner.job.job import Job
from trainshed.runner.job.places import RAY, refused

from ..target import PlaceFields

PLACEMENTS = ("auto", "strict_spread", "spread", "pack", "strict_pack")
ADDRESS = "RAY_ADDRESS"  # Ray's own variable


@dataclass(frozen=True)
class RayOptions:
    """How a job runs on Ray.

    address: HOST:PORT of the cluster's head, ray://HOST:PORT of its door for clients, or `auto`, that of this machine.
    placement: a strategy of Ray's placement groups, or `auto`: a node for each host where there are enough of them.
    resources: what each host needs beside CPUs, GPUs and memory, by Ray's names.
    python: the interpreter that runs the job on the nodes, "" for that of Ray's workers.
    folder: where nodes keep the job while it runs, "" for their folder for temporary files.
    shared: folders that all nodes see under the same path as this machine: channels and checkpoints in them stay there.
    wait_seconds: that the job may wait for resources, 0 for any time.
    autoscaling: whether the cluster grows when it is asked for more than it has.
    """

    address: str = "auto"
    placement: str = "auto"
    resources: dict[str, float] = field(default_factory=dict)
    python: str = ""
    folder: str = ""
    shared: tuple[str, ...] = ()
    wait_seconds: float = 0.0
    autoscaling: bool = False

    def sees(self, path: str) -> bool:
        """Returns whether all nodes see a path."""
        path = os.path.abspath(path)
        return any(path == one or path.startswith(one.rstrip("/") + "/") for one in self.shared)


def with_address(job: Job, address: str) -> Job:
    """The job with an address over the one that it names; "" changes nothing."""
    given = {**job.places.get(RAY.name, {}), "address": address}
    return replace(job, places={**job.places, RAY.name: given}) if address else job


def read_options(job: Job, environ: Mapping[str, str]) -> RayOptions:
    """The job's `ray` mapping. Raises JobError, also for what jobs cannot have on Ray."""
    place = PlaceFields(job, RAY, RAY.known)
    placement = place.get("placement", str, "auto")
    if placement not in PLACEMENTS:
        near = did_you_mean(placement, PLACEMENTS)
        place.problem("placement", f"must be one of {', '.join(PLACEMENTS)}", near)
    resources = place.get("resources", dict, {})
    for name, count in resources.items():
        if isinstance(count, bool) or not isinstance(count, (int, float)) or count <= 0:
            place.problem(f"resources.{name}", "must be a number above 0")
        if name.upper() in ("CPU", "GPU", "MEMORY"):
            place.problem(f"resources.{name}", "is Ray's own", "the job's resources say cpus, gpus and memory")
    shared = place.get("shared", list, [])
    folder = place.get("folder", str, "")
    python = place.get("python", str, "")
    for name, paths in (("shared", shared), ("folder", [folder] if folder else []), ("python", [python] if python else [])):
        if not all(isinstance(path, str) and os.path.isabs(path) for path in paths):
            place.problem(name, "must be absolute")
    wait = place.values.get("wait_seconds", 0.0)
    if isinstance(wait, bool) or not isinstance(wait, (int, float)) or wait < 0:
        place.problem("wait_seconds", "must be a number of seconds, 0 or more")
    place.problems += refused(RAY, job)
    address = place.get("address", str, "") or environ.get(ADDRESS) or "auto"
    autoscaling = place.get("autoscaling", bool, False)
    place.done()
    return RayOptions(
        address=_checked(address),
        placement=placement,
        resources={name: float(count) for name, count in resources.items()},
        python=python,
        folder=folder,
        shared=tuple(os.path.abspath(path) for path in shared),
        wait_seconds=float(wait),
        autoscaling=autoscaling,
    )


def _checked(address: str) -> str:
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if address == "auto" or (colon and host and "/" not in host and 0 < (whole(port) or 0) < 65536):
        return address
    raise JobError(
        [Problem(RAY.name, "must be HOST:PORT, ray://HOST:PORT or auto", "address", address, "Ray's own port is 6379")]
    )
