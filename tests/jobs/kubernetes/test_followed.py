"""`trainshed run --on kubernetes` against an API server of our own: what people see, and what is left in the cluster."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest

from jobs.kubernetes.conftest import Followed
from support.own_cluster import TOKEN, OwnCluster

Submit = Callable[..., Followed]
FAILURE = "UserError: rank 0 on host-1: ValueError: no more data\n  at train.py:7 in main\n\nTraceback ...\n"


@pytest.mark.spine
def test_a_job_of_two_hosts_from_its_manifest_to_its_end(cluster: OwnCluster, submit: Submit) -> None:
    """Its lines with their hosts, its pods' places in words, its results' place; and nothing of it stays."""
    job = submit(instances=2)
    first, second = cluster.until_pods(2)
    assert len(cluster.find("secrets")) == 2 and len(cluster.find("services")) == 1
    cluster.say(first, conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                                    "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."}])  # fmt: skip
    job.until("host-0: cannot be placed: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")
    assert job.status["SecondaryStatus"] == "Pending"
    first, second = cluster.run(first), cluster.run(second, "node-b")
    cluster.print(first, "epoch 1", "[host-0] tagged by train")
    cluster.print(second, "epoch 1")
    job.until("[host-0] epoch 1", "[host-1] epoch 1", "running on node-a, node-b")
    assert "[host-0] [host-0]" not in job.output
    assert job.status["SecondaryStatus"] == "Training"
    cluster.print(first, "the last line")
    cluster.exit(first), cluster.exit(second)
    cluster.finish()
    assert job.end() == 0, job.output
    assert "[host-0] the last line" in job.output and "completed" in job.output
    assert job.status["TrainingJobStatus"] == "Completed"
    name = job.status["Trainshed"]["KubernetesJob"].partition("/")[2]
    assert job.status["ModelArtifacts"]["S3ModelArtifacts"] == f"pvc://results/{name}/model"
    assert (job.folder / "run/logs/host-0.log").read_text() == "epoch 1\n[host-0] tagged by train\nthe last line\n"
    assert cluster.find("jobs") == [] and cluster.find("secrets") == [] and cluster.find("configmaps") == []


@pytest.mark.safety
def test_secrets_are_in_a_secret_alone(cluster: OwnCluster, submit: Submit) -> None:
    job = submit()
    (pod,) = cluster.until_pods(1)
    secret = "hf_of_mine_1234567890"
    (made,) = [one for one in cluster.find("secrets") if one["metadata"]["name"].endswith("-secrets")]
    assert list(made["data"]) == ["HF_TOKEN"]
    env = {one["name"]: one for one in pod["spec"]["containers"][0]["env"]}
    assert env["HF_TOKEN"]["valueFrom"]["secretKeyRef"]["name"] == made["metadata"]["name"]
    cluster.exit(cluster.run(pod))
    cluster.finish()
    assert job.end() == 0
    kept = "".join(path.read_text(errors="replace") for path in (job.folder / "run").rglob("*") if path.is_file())
    assert secret not in job.output + kept and TOKEN not in job.output + kept
    job.process = job.start("run", "job.yaml", "--on", "kubernetes", "--dry-run")
    assert job.end() == 0
    assert "kind: Secret" in job.output and "kind: Job" in job.output and secret not in job.output


def test_the_first_host_that_failed_says_why(cluster: OwnCluster, submit: Submit) -> None:
    job = submit(instances=2)
    first, second = (cluster.run(pod) for pod in cluster.until_pods(2))
    cluster.exit(first, 3, message=FAILURE)  # each host reports the first cause
    cluster.exit(second, 3, message=FAILURE)
    cluster.finish("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    assert job.end() == 3, job.output
    assert job.status["TrainingJobStatus"] == "Failed" and job.status["Trainshed"]["FailedHost"] == "host-1"
    assert job.status["FailureReason"].startswith("UserError: rank 0 on host-1: ValueError: no more data")
    assert "no more data" in job.output


def test_trouble_in_words(cluster: OwnCluster, submit: Submit) -> None:
    """Out of memory, preemption, eviction, a lost node: told while the Job controller makes new pods."""
    job = submit("--retries", "9")
    (pod,) = cluster.until_pods(1)

    def replaced() -> dict[str, Any]:
        cluster.put(f"/api/v1/namespaces/vision/pods/{pod['metadata']['name']}", cluster.pods()[0], "DELETED")
        cluster._reconcile()
        return cluster.run(cluster.until_pods(1)[0])

    pod = cluster.run(pod)
    cluster.exit(pod, 137, "OOMKilled")
    job.until("algo-1: OOMKilled: out of memory, more than resources.memory allows")
    pod = replaced()
    job.until("algo-1 starts again, as pod digits")
    target = {"type": "DisruptionTarget", "status": "True", "message": "low on priority"}
    cluster.say(pod, conditions=[{**target, "reason": "PreemptionByScheduler"}])
    job.until("algo-1: preempted by a pod of higher priority")
    cluster.exit(pod, 143)
    pod = replaced()
    cluster.say(pod, conditions=[{**target, "reason": "DeletionByTaintManager"}])
    job.until("algo-1: its node node-a is lost, or was closed to it")
    pod = replaced()
    cluster.say(pod, phase="Failed", reason="Evicted", message="The node was low on resource: memory.", containerStatuses=[])
    job.until("algo-1: evicted from node-a: The node was low on resource: memory.")
    pod = replaced()
    cluster.event("FailedMount", 'MountVolume.SetUp failed for volume "code": object not registered', pod)
    job.until("algo-1: a volume cannot be mounted: MountVolume.SetUp failed")
    cluster.exit(pod)
    cluster.finish()
    assert job.end() == 0


def test_an_image_that_cannot_be_pulled_ends_the_job(cluster: OwnCluster, submit: Submit) -> None:
    job = submit(start_seconds=1)
    (pod,) = cluster.until_pods(1)
    cluster.container(pod, waiting={"reason": "ImagePullBackOff", "message": "Back-off pulling image: not found"})
    assert job.end() == 1
    assert "the image registry.example/train:1 cannot be pulled: Back-off pulling image: not found" in job.output
    assert "giving up" in job.output and job.status["TrainingJobStatus"] == "Failed"
    assert "cannot be pulled" in job.status["FailureReason"] and cluster.find("jobs") == []


def test_a_quota_that_is_used_up(cluster: OwnCluster, submit: Submit) -> None:
    cluster.quota = "gpu, requested: requests.nvidia.com/gpu=8, used: requests.nvidia.com/gpu=8, limited: 8"
    job = submit()
    job.until("the namespace's quota is used up: gpu, requested: requests.nvidia.com/gpu=8")
    job.signal(signal.SIGINT)
    assert job.end() == 130


def test_an_api_server_that_is_away_does_not_end_the_job(cluster: OwnCluster, submit: Submit) -> None:
    """No line is lost or told twice: not of a connection that breaks within a line, nor where versions are too old."""
    job = submit()
    pod = cluster.run(cluster.until_pods(1)[0])
    cluster.print(pod, "line 1", "line 2")
    job.until("line 2")
    cluster.down()
    job.until("does not answer", "the job goes on in the cluster; trying again")
    cluster.print(pod, "line 3")
    cluster.print(pod, "line 4", "line 5", nanos=5)  # of the same moment, and before line 3
    cluster.up()
    job.until("line 5", "the API server is back")
    cluster.expire()
    cluster.print(pod, "line 6")
    cluster.exit(pod)
    cluster.finish()
    assert job.end() == 0, job.output
    lines = (job.folder / "run/logs/algo-1.log").read_text().splitlines()
    assert sorted(lines) == [f"line {number}" for number in range(1, 7)], lines


def test_many_lines_at_the_end_are_all_there(cluster: OwnCluster, submit: Submit) -> None:
    """Each comes in a packet of its own, as API servers send them."""
    job = submit()
    pod = cluster.run(cluster.until_pods(1)[0])
    cluster.print(pod, *(f"line {number}" for number in range(3000)))
    cluster.exit(pod)
    cluster.finish()
    assert job.end() == 0
    assert (job.folder / "run/logs/algo-1.log").read_text().split("\n")[:-1] == [f"line {number}" for number in range(3000)]


@pytest.mark.safety
def test_ctrl_c_has_the_pods_end_and_leaves_nothing(cluster: OwnCluster, submit: Submit) -> None:
    job = submit(instances=2)
    for pod in cluster.until_pods(2):
        cluster.run(pod)
    ended = []

    def on_stop(pod: dict[str, Any]) -> None:
        cluster.print(pod, "saved a checkpoint")
        ended.append(pod)
        cluster.gone(pod)

    cluster.on_stop = on_stop
    job.until("running on node-a")
    job.signal(signal.SIGINT)
    assert job.end() == 130, job.output
    assert len(ended) == 2 and cluster.pods() == [] and cluster.find("jobs") == []
    assert job.status["TrainingJobStatus"] == "Stopped"


@pytest.mark.safety
def test_pods_that_do_not_end_are_killed_at_a_second_ctrl_c(cluster: OwnCluster, submit: Submit) -> None:
    cluster.on_stop = lambda pod: None  # a node that is lost
    job = submit()
    cluster.run(cluster.until_pods(1)[0])
    job.until("running on node-a")
    job.signal(signal.SIGINT)
    job.until("Ctrl-C again kills it")
    job.wait_for(lambda: "deletionTimestamp" in cluster.find("jobs")[0]["metadata"], "the job was not deleted")
    cluster.on_stop = cluster.gone
    (pod,) = cluster.pods()
    job.signal(signal.SIGINT)
    job.until("killing the pods")
    cluster.gone(pod)
    assert job.end() == 130


def test_a_job_that_somebody_deletes(cluster: OwnCluster, submit: Submit) -> None:
    job = submit()
    cluster.run(cluster.until_pods(1)[0])
    job.until("running on node-a")
    (made,) = cluster.find("jobs")
    cluster.delete(f"/apis/batch/v1/namespaces/vision/jobs/{made['metadata']['name']}", {})
    assert job.end() == 143
    assert "the job was deleted in the cluster, not by trainshed" in job.output


@pytest.mark.safety
def test_a_killed_follower_is_replaced(cluster: OwnCluster, submit: Submit) -> None:
    """`ps` says who has the job; the next follower goes on behind the last line."""
    job = submit()
    pod = cluster.run(cluster.until_pods(1)[0])
    cluster.print(pod, "line 1")
    job.until("line 1", "running on node-a")
    job.signal(signal.SIGKILL)
    job.end()
    cluster.print(pod, "line 2")
    job.process = job.start("ps")
    job.end()
    assert "of Kubernetes" in job.output
    job.take_up()
    job.until("line 2")
    cluster.print(pod, "line 3")
    cluster.exit(pod)
    cluster.finish()
    assert job.end() == 0, job.output
    assert (job.folder / "run/logs/algo-1.log").read_text() == "line 1\nline 2\nline 3\n"
    assert job.status["TrainingJobStatus"] == "Completed"


@pytest.mark.safety
@pytest.mark.spine
def test_detached_and_stopped(cluster: OwnCluster, submit: Submit) -> None:
    job = submit("--detach")
    assert job.end() == 0
    cluster.run(cluster.until_pods(1)[0])
    job.process = job.start("stop", "./run")
    assert job.end() == 0, job.output
    assert cluster.find("jobs") == [] and job.status["TrainingJobStatus"] == "Stopped"


@pytest.mark.safety
def test_a_stopped_run_goes_on_with_its_checkpoints(cluster: OwnCluster, submit: Submit) -> None:
    job = submit()
    first = cluster.run(cluster.until_pods(1)[0])
    job.until("running on node-a")
    job.signal(signal.SIGTERM)
    assert job.end() == 143
    job.process = job.start("resume", "./run", "--env", "HF_TOKEN=hf_of_mine_1234567890")
    (again,) = cluster.until_pods(1)
    mounts = [
        {one["mountPath"]: one.get("subPath") for one in pod["spec"]["containers"][0]["volumeMounts"]}
        for pod in (first, again)
    ]
    assert mounts[0]["/opt/ml/checkpoints"] == mounts[1]["/opt/ml/checkpoints"] is not None
    assert again["metadata"]["labels"]["job-name"].endswith("-s2")
    cluster.exit(cluster.run(again))
    cluster.finish()
    assert job.end() == 0, job.output


@pytest.mark.safety
def test_an_answer_that_is_lost_does_not_make_a_job_twice(cluster: OwnCluster, submit: Submit) -> None:
    cluster.lose_answers = 1
    job = submit()
    cluster.exit(cluster.run(cluster.until_pods(1)[0]))
    cluster.finish()
    assert job.end() == 0, job.output
    assert len([one for one in cluster.requests if one[0] == "POST" and one[1].endswith("/jobs")]) == 2


def test_a_queue_of_kueue(cluster: OwnCluster, submit: Submit) -> None:
    job = submit(queue="gpu")
    assert job.end() == 69
    assert "Kueue is not installed" in job.output and cluster.find("jobs") == []
    cluster.answers["/apis/kueue.x-k8s.io"] = {"preferredVersion": {"groupVersion": "kueue.x-k8s.io/v1beta1"}}
    path = "/apis/kueue.x-k8s.io/v1beta1/namespaces/vision/localqueues/gpu"
    cluster.answers[path] = {"metadata": {"name": "gpu"}}
    job.process = job.start("run", "job.yaml", "--on", "kubernetes", "--output", "run")
    job.until("waits in the queue gpu")
    (made,) = cluster.find("jobs")
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpu" and cluster.pods() == []
    cluster.patch(f"/apis/batch/v1/namespaces/vision/jobs/{made['metadata']['name']}", {"spec": {"suspend": False}})
    cluster.exit(cluster.run(cluster.until_pods(1)[0]))
    cluster.finish()
    assert job.end() == 0


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("plural", "method", "said"),
    [
        ("jobs", "POST", 'cannot create resource "jobs"'),
        ("secrets", "POST", 'cannot create resource "secrets"'),
        ("pods", "GET", 'cannot list resource "pods"'),
    ],
)
def test_what_an_account_may_not_do(cluster: OwnCluster, submit: Submit, plural: str, method: str, said: str) -> None:
    cluster.forbidden.add((method, plural))
    job = submit()
    assert job.end() == 69
    assert said in job.output and "the account may not do this in the namespace vision" in job.output
    assert "Traceback" not in job.output and cluster.find("secrets") == [] and cluster.find("configmaps") == []


def test_without_a_cluster(cluster: OwnCluster, submit: Submit) -> None:
    """No kubeconfig, one that is none, a context that is missing, credentials that are refused, nobody who answers."""
    job = submit("--dry-run")
    job.end()

    def run(*said: str) -> None:
        job.process = job.start("run", "job.yaml", "--on", "kubernetes", "--output", "run")
        assert job.end() == 69
        assert all(text in job.output for text in said) and "Traceback" not in job.output, job.output
        assert not (job.folder / "run").exists()

    good = job.config.read_text()
    job.config.write_text(good.replace("current-context: ours", "current-context: theirs"))
    run("cannot be used", "kubectl config get-contexts")
    job.config.write_text("{")
    run("cannot be used")
    job.config.write_text(good.replace(TOKEN, "expired"))
    run("the credentials are refused")
    job.config.write_text(good)
    cluster.down()
    run("does not answer: Connection refused")
    job.config.unlink()
    run("there is no kubeconfig")


def test_events_that_may_not_be_read_cost_words_alone(cluster: OwnCluster, submit: Submit) -> None:
    cluster.forbidden.add(("GET", "events"))
    job = submit()
    job.until("note: events cannot be read")
    cluster.exit(cluster.run(cluster.until_pods(1)[0]))
    cluster.finish()
    assert job.end() == 0
    assert json.loads((job.folder / "run/job.json").read_text())["engine"] == "kubernetes"
