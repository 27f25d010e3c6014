"""What the cluster says, in words."""

from __future__ import annotations

from typing import Any

import pytest

from trainshed.places.kubernetes.followed import ended
from trainshed.places.kubernetes.pod_words import (
    MENDS,
    NEVER,
    SELDOM,
    end_of,
    event_words,
    has_log,
    index_in,
    index_of,
    is_running,
    lost_end,
    trouble_of,
)


def pod(*conditions: dict[str, Any], state: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    container = {"name": "train", "image": "registry.example/train:1", "state": state or {}, "restartCount": 0}
    return {
        "metadata": {"name": "digits-0-abcde", "uid": "1", "labels": {"batch.kubernetes.io/job-completion-index": "0"}},
        "spec": {"nodeName": "node-a"},
        "status": {"phase": "Pending", "conditions": list(conditions), "containerStatuses": [container], **status},
    }


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return pod(state={"waiting": {"reason": reason, "message": message}})


@pytest.mark.parametrize(
    ("made", "words", "lasting"),
    [
        (waiting("ErrImagePull", "rpc error: 401 Unauthorized"), "cannot be pulled: rpc error: 401", SELDOM),
        (waiting("InvalidImageName", "couldn't parse image"), "registry.example/train:1 is not a valid image name", NEVER),
        (waiting("CreateContainerConfigError", 'secret "x" not found'), 'configured: secret "x" not found', SELDOM),
        (
            pod({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}),
            "cannot be placed: 0/3 nodes", MENDS,
        ),
        (
            pod({"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "API"}),
            "evicted from node-a, which is drained", MENDS,
        ),
        (
            pod({"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "message": "shutdown"}),
            "ended by its node node-a: shutdown", MENDS,
        ),
        (pod(reason="OutOfcpu", message="Node didn't have enough resource: cpu"), "the node node-a refuses it", MENDS),
    ],
)  # fmt: skip
def test_why_a_pod_does_not_run(made: dict[str, Any], words: str, lasting: int) -> None:
    trouble = trouble_of(made)
    assert trouble is not None and words in trouble.words and trouble.lasting == lasting


def test_a_sidecar_that_crashes_again_and_again() -> None:
    last = {"terminated": {"exitCode": 7, "reason": "Error"}}
    sidecar = {
        "name": "proxy",
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}},
        "lastState": last,
    }
    trouble = trouble_of(pod(initContainerStatuses=[sidecar]))
    assert trouble is not None and trouble.words == "its container proxy crashes again and again: exit status 7"


def test_pods_that_are_as_they_should_be() -> None:
    assert trouble_of(waiting("ContainerCreating")) is None
    running = pod(state={"running": {"startedAt": "2026-11-23T20:00:00Z"}}, phase="Running")
    assert trouble_of(running) is None and is_running(running) and has_log(running) and end_of(running) is None
    assert index_of(running) == 0 and not has_log(pod())


def test_names_of_pods() -> None:
    assert index_in("digits-2026-11-23-0-abcde") == 0 and index_in("digits-node-0-12-x7z9q") == 12
    assert index_in("digits-2026-11-23-21-28-27-793") is None


def test_how_pods_end() -> None:
    killed = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-11-23T20:00:00Z"}}
    end = end_of(pod(state=killed, phase="Failed"))
    assert end is not None and end.code == 137 and end.words.startswith("OOMKilled") and end.at == 1795464000.0
    stopped = end_of(pod(state={"terminated": {"exitCode": 1, "message": "Stopped: host-1 has failed"}}))
    assert stopped is not None and stopped.of_another
    evicted = end_of(pod(phase="Failed", reason="Evicted", message="low on memory", containerStatuses=[]))
    assert evicted is not None and evicted.words == "evicted from node-a: low on memory"
    assert lost_end(pod()).words == "the pod digits-0-abcde was deleted"


def test_events() -> None:
    def event(reason: str, message: str = "why", kind: str = "Warning") -> dict[str, Any]:
        return {"reason": reason, "message": message, "type": kind}

    quota = 'Error creating: pods "x" is forbidden: exceeded quota: gpu, requested: 8, used: 8, limited: 8'
    assert event_words(event("FailedCreate", quota)) == (
        "the namespace's quota is used up: gpu, requested: 8, used: 8, limited: 8"
    )
    assert event_words(event("SomethingNew", "never\nheard of")).startswith("SomethingNew: never")
    assert event_words(event("Scheduled", kind="Normal")) == "" and event_words(event("Unhealthy")) == ""
    assert event_words({}) == ""


@pytest.mark.parametrize(
    "broken", [{}, {"status": None}, {"status": {"containerStatuses": [{}]}}, {"metadata": {"labels": None}}]
)
def test_objects_that_lack_what_they_should_have(broken: dict[str, Any]) -> None:
    assert trouble_of(broken) is None and end_of(broken) is None and index_of(broken) is None
    assert ended(broken) is None


def test_ends_of_jobs_and_job_sets() -> None:
    def of(kind: str, **more: str) -> dict[str, Any]:
        return {"status": {"conditions": [{"type": kind, "status": "True", **more}]}}

    assert ended(of("Complete")) == (True, "", "") == ended(of("Completed"))
    assert ended(of("Failed", reason="DeadlineExceeded", message="late")) == (False, "DeadlineExceeded", "late")
    assert ended(of("FailureTarget")) is None
