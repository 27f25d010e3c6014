"""Reads what a job says of the cluster that is to run it, beside what becomes manifests: its field `kubernetes`."""

from __future__ import annotations

import os
from dataclasses import dataclass

from trainshed.runner.job.job import Job
from trainshed.runner.job.places import KUBERNETES, refused

from ..target import PlaceFields

START_SECONDS = 600.0
_LONGEST = 28 * 86_400.0


@dataclass(frozen=True)
class ClusterOptions:
    """Which cluster, and how long to wait for it.

    kubeconfig: a file, "" for KUBECONFIG's, then ~/.kube/config, then the service account of the pod that we are in.
    context: of that file, "" for its current one.
    namespace: "" for the context's.
    queue: a LocalQueue of Kueue, "" for none.
    jobset: whether the job becomes a JobSet.
    start_seconds: that pods may be unable to start for a reason that seldom mends itself: an image that cannot be pulled,
        a volume that cannot be mounted. Time in a queue, or until nodes are free, does not count.
    """

    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""
    queue: str = ""
    jobset: bool = False
    start_seconds: float = START_SECONDS


def read_options(job: Job) -> ClusterOptions:
    """The job's `kubernetes`, as far as it speaks of the cluster. Raises JobError with everything that is wrong."""
    place = PlaceFields(job, KUBERNETES, KUBERNETES.known)
    seconds = place.values.get("start_seconds", START_SECONDS)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 1 <= seconds <= _LONGEST:
        place.problem("start_seconds", "must be seconds, from 1")
    place.problems += refused(KUBERNETES, job)
    options = ClusterOptions(
        kubeconfig=os.path.expanduser(place.get("kubeconfig", str, "")),
        context=place.get("context", str, ""),
        namespace=place.get("namespace", str, ""),
        queue=place.get("queue", str, ""),
        jobset=place.get("jobset", bool, False),
        start_seconds=float(seconds) if isinstance(seconds, (int, float)) else START_SECONDS,
    )
    if options.kubeconfig and not os.path.isfile(options.kubeconfig):
        place.problem("kubeconfig", f"there is no {options.kubeconfig}")
    place.done()
    return options
