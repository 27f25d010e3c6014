"""The cluster's facts about a job, in words: the states of pods, their containers and the job, and events. Pure.

Sources: the API references of core/v1 (PodStatus, ContainerState, Event) and batch/v1 (JobStatus); the pages "Pod
Lifecycle", "Pod failure policy" (conditions of type DisruptionTarget) and "Images" of Kubernetes' documentation; those of
Kueue and of the cluster autoscaler on their events. An object is the JSON of the API server; any part of it may be absent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from trainshed.base.errors import one_line

CONTAINER = "train"
INDEX = "batch.kubernetes.io/job-completion-index"
MENDS, SELDOM, NEVER = range(3)  # whether waiting helps
Object = Mapping[str, Any]


@dataclass(frozen=True)
class Trouble:
    """Why a pod does not run (any more). lasting: MENDS, SELDOM or NEVER."""

    words: str
    lasting: int = MENDS


@dataclass(frozen=True)
class PodEnd:
    """How `train` ended in a pod.

    code: its exit status. words: what Kubernetes knows beside it, like an eviction, "" for nothing.
    message: what `train` itself has left, the beginning of its failure file. at: seconds since the epoch.
    """

    code: int
    words: str = ""
    message: str = ""
    at: float = 0.0

    @property
    def of_another(self) -> bool:
        """Tells whether it was ended because another host had failed."""
        return self.message.startswith("Stopped:")


_WAITING = {
    "ErrImagePull": ("the image {image} cannot be pulled: {message}", SELDOM),
    "ImagePullBackOff": ("the image {image} cannot be pulled: {message}", SELDOM),
    "RegistryUnavailable": ("the registry of {image} does not answer: {message}", SELDOM),
    "ErrImageNeverPull": ("the image {image} is not on the node, and may not be pulled", NEVER),
    "InvalidImageName": ("{image} is not a valid image name", NEVER),
    "CreateContainerConfigError": ("its container cannot be configured: {message}", SELDOM),
    "CreateContainerError": ("its container cannot be made: {message}", SELDOM),
    "RunContainerError": ("its container cannot be started: {message}", SELDOM),
    "CrashLoopBackOff": ("its container {name} crashes again and again: {message}", SELDOM),
}
_DISRUPTED = {
    "PreemptionByScheduler": "preempted by a pod of higher priority",
    "DeletionByTaintManager": "its node {node} is lost, or was closed to it",
    "EvictionByEvictionAPI": "evicted from {node}, which is drained",
    "DeletionByPodGC": "its node {node} is gone",
    "TerminationByKubelet": "ended by its node {node}",
}
_STATUS = {
    "Evicted": "evicted from {node}",
    "NodeLost": "its node {node} does not answer",
    "Preempting": "preempted by a pod of higher priority",
    "Shutdown": "its node {node} shuts down",
    "Terminated": "its node {node} shuts down",
    "NodeShutdown": "its node {node} shuts down",
    "UnexpectedAdmissionError": "the node {node} refuses it",
    "NodeAffinity": "the node {node} refuses it",
}
_EVENTS = {
    "FailedMount": "a volume cannot be mounted: {message}",
    "FailedAttachVolume": "a volume cannot be attached: {message}",
    "FailedCreatePodSandBox": "its network cannot be set up: {message}",
    "FailedCreate": "pods cannot be made: {message}",
    "NodeNotReady": "its node does not answer",
    "Evicted": "evicted: {message}",
    "Preempted": "preempted: {message}",
    "TriggeredScaleUp": "the cluster adds nodes: {message}",
    "NotTriggerScaleUp": "the cluster cannot add nodes for it: {message}",
    # Kueue's, of the Workload that stands for the job.
    "Pending": "waits in the queue: {message}",
    "QuotaReserved": "{message}",
    "Admitted": "{message}",
    "EvictedDueToPreempted": "preempted in the queue: {message}",
    "EvictedDueToPodsReadyTimeout": "put back into the queue: {message}",
    "EvictedDueToInactiveWorkload": "put out of the queue: {message}",
}
_STUCK = ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox")
# What the objects' own states say better, or what is of no interest.
_SILENT = {
    *("FailedScheduling", "Failed", "BackOff", "InspectFailed", "Unhealthy", "Killing", "TaintManagerEviction"),
    *("BackoffLimitExceeded", "BackOffLimitExceeded", "DeadlineExceeded", "PodFailurePolicy", "TooManyActivePods"),
    "RecreatingFailedPod",
}


def name_of(thing: Object) -> str:
    """Its name."""
    return str(_of(thing, "metadata").get("name", ""))


def uid_of(thing: Object) -> str:
    """Its uid: never that of another object, also where the name is the same."""
    return str(_of(thing, "metadata").get("uid", ""))


def node_of(pod: Object) -> str:
    """The node that it was placed on, "" for none."""
    return str(_of(pod, "spec").get("nodeName") or "")


def index_of(pod: Object) -> int | None:
    """Which host of the job a pod is."""
    metadata = _of(pod, "metadata")
    text = _of(metadata, "annotations").get(INDEX) or _of(metadata, "labels").get(INDEX)
    return int(str(text)) if str(text).isdecimal() else None


def index_in(name: str) -> int | None:
    """The same by the name that the Job controller has given to a pod: `JOB-INDEX-abcde`."""
    match = re.search(r"-(\d+)-[a-z0-9]{5}$", name)
    return int(match[1]) if match else None


def condition(thing: Object, kind: str) -> Object | None:
    """A condition that is true."""
    for one in _of(thing, "status").get("conditions") or []:
        if one.get("type") == kind and one.get("status") == "True":
            return one  # type: ignore[no-any-return]
    return None


def is_running(pod: Object) -> bool:
    """Returns whether `train` runs in it now."""
    return "running" in _state(pod)


def has_log(pod: Object) -> bool:
    """Returns whether `train` was ever started in it."""
    return bool({"running", "terminated"} & set(_state(pod)))


def trouble_of(pod: Object) -> Trouble | None:
    """Why a pod does not run, or is being ended; None where all is as it should be."""
    status, node = _of(pod, "status"), node_of(pod)
    disrupted = condition(pod, "DisruptionTarget")
    if disrupted is not None:
        return Trouble(_disrupted(disrupted, node))
    reason = str(status.get("reason") or "")
    if reason:
        words = _STATUS.get(reason, "the node {node} refuses it" if reason.startswith("OutOf") else reason)
        return Trouble(_and_message(words.format(node=node), status))
    for container in _containers(pod):
        waiting = _of(_of(container, "state"), "waiting")
        if waiting.get("reason") in _WAITING:
            words, lasting = _WAITING[waiting["reason"]]
            last = _of(_of(container, "lastState"), "terminated")
            message = str(waiting.get("message") or "")
            if waiting["reason"] == "CrashLoopBackOff" and last:
                message = f"exit status {last.get('exitCode')}"
            given = {"image": container.get("image"), "name": container.get("name")}
            return Trouble(_text(words.format(message=message, **given)), lasting)
    for one in status.get("conditions") or []:
        if one.get("type") == "PodScheduled" and one.get("status") == "False":
            gated = one.get("reason") == "SchedulingGated"
            said = str(one.get("message") or one.get("reason") or "")
            return Trouble(_text(said if gated else f"cannot be placed: {said}"))
    return None


def end_of(pod: Object) -> PodEnd | None:
    """How `train` ended in a pod; None while it may still run."""
    ended = _state(pod).get("terminated")
    failed = _of(pod, "status").get("phase") == "Failed"
    if not isinstance(ended, Mapping):
        if not failed:
            return None
        trouble = trouble_of(pod)  # it never ran, or its node took the pod away before it could say how it ended
        return PodEnd(1, trouble.words if trouble else "the pod has failed")
    code, reason = int(ended.get("exitCode") or 0), str(ended.get("reason") or "")
    words = ""
    if reason == "OOMKilled":
        words = "OOMKilled: out of memory, more than resources.memory allows"
    elif reason not in ("", "Error", "Completed"):
        words = reason
    if code and (trouble := trouble_of(pod)):
        words = "; ".join(part for part in (trouble.words, words) if part)
    return PodEnd(code, words, str(ended.get("message") or ""), seconds(ended.get("finishedAt")))


def lost_end(pod: Object) -> PodEnd:
    """How a pod ended that is gone without a word."""
    trouble = trouble_of(pod)
    return PodEnd(1, trouble.words if trouble else f"the pod {name_of(pod)} was deleted")


def event_words(event: Object) -> str:
    """Puts an event into words, "" for nothing that anybody needs to know beside the objects' own states."""
    reason, message = str(event.get("reason") or ""), str(event.get("message") or "")
    if reason in _SILENT:
        return ""
    if reason in _EVENTS:
        if reason == "FailedCreate" and "exceeded quota" in message:
            return _text(f"the namespace's quota is used up: {message.partition('exceeded quota: ')[2]}")
        return _text(_EVENTS[reason].format(message=message))
    return _text(f"{reason}: {message}") if event.get("type") == "Warning" else ""


def event_is_stuck(event: Object) -> bool:
    """Returns whether it says that a pod cannot start, which the pod's own state does not."""
    return event.get("reason") in _STUCK


def about(event: Object) -> tuple[str, str, str]:
    """(kind, name, uid) of what an event is about."""
    thing = _of(event, "involvedObject")
    return str(thing.get("kind", "")), str(thing.get("name", "")), str(thing.get("uid", ""))


def seconds(text: object) -> float:
    """A time of the API in seconds since the epoch, 0 where it is none."""
    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def _of(thing: Any, name: str) -> Mapping[str, Any]:
    value = thing.get(name) if isinstance(thing, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _containers(pod: Object) -> Iterator[Object]:
    status = _of(pod, "status")
    yield from status.get("initContainerStatuses") or []
    yield from status.get("containerStatuses") or []


def _state(pod: Object) -> Mapping[str, Any]:
    for container in _of(pod, "status").get("containerStatuses") or []:
        if container.get("name") == CONTAINER:
            return _of(container, "state")
    return {}


def _disrupted(found: Object, node: str) -> str:
    reason = str(found.get("reason") or "")
    words = _DISRUPTED.get(reason, reason).format(node=node or "?")
    return _and_message(words, found) if reason == "TerminationByKubelet" or reason not in _DISRUPTED else words


def _and_message(words: str, thing: Object) -> str:
    message = str(thing.get("message") or "")
    return _text(f"{words}: {message}" if message else words)


def _text(text: str) -> str:
    return one_line(text).strip().rstrip(": ")[:600]
