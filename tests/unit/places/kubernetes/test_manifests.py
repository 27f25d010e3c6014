"""`trainshed export kubernetes`: judged by Kubernetes' own schemas, and by our reader of what pods are told."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.paths import TOOLKIT
from trainshed.base.errors import JobError
from trainshed.container.cluster import resolve
from trainshed.contract.reading import read_job
from trainshed.places.kubernetes.manifests import Started, manifests, merged, of_run
from trainshed.runner.job.job import ChannelSpec, InstanceGroupSpec, Job, Resources, SecretReference

VERSION = "1.34"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "src"
    (folder / "package").mkdir(parents=True)
    (folder / "train.py").write_text("import package\n")
    (folder / "package/__init__.py").write_bytes(b"NAME = '\xc3\xa9'\n")
    return folder


def job(source: Path, **fields: Any) -> Job:
    given: dict[str, Any] = {
        "name": "digits",
        "image": "registry.example/train:1",
        "program": "train.py",
        "source_dir": str(source),
        "instances": 3,
        "hyperparameters": {"epochs": 3},
        "channels": (ChannelSpec("train", "/data/train"),),
        "environment": {"NCCL_DEBUG": "WARN", "HF_TOKEN": "hf_of_mine"},
        "resources": Resources(cpus=8, memory=32 << 30, gpus=4, shm_size=8 << 30),
        "max_runtime_seconds": 3600.0,
        "places": {"kubernetes": {"volumes": {"train": "data"}, "output": "results", "namespace": "vision"}},
    }
    return Job(**{**given, **fields})


def check(objects: list[dict[str, Any]]) -> None:
    """By the schemas of Kubernetes; of a JobSet, whose schema is not among them, the Job that it holds."""
    judge = pytest.importorskip("kubernetes_validate", reason="the schemas of Kubernetes are an extra package")
    for made in objects:
        if made["kind"] == "JobSet":
            (inner,) = made["spec"]["replicatedJobs"]
            made = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": inner["template"]["spec"]}
        judge.validate(made, VERSION, strict=True)


def pod_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    spec = objects[-1]["spec"]
    if "replicatedJobs" in spec:
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    return dict(spec["template"]["spec"])


@pytest.mark.parametrize("jobset", [False, True])
@pytest.mark.parametrize("instances", [1, 3])
def test_manifests_are_valid(source: Path, instances: int, jobset: bool) -> None:
    objects, _ = manifests(job(source, instances=instances), jobset=jobset)

    check(objects)
    kinds = [made["kind"] for made in objects]
    service = ["Service"] if instances > 1 and not jobset else []
    token = ["Secret"] if instances > 1 else []
    assert kinds == ["ConfigMap", "ConfigMap", *token, *service, "JobSet" if jobset else "Job"]
    assert all(made["metadata"]["namespace"] == "vision" for made in objects)
    assert yaml.safe_load(json.dumps(objects)) == objects


@pytest.mark.parametrize("jobset", [False, True])
def test_every_pod_finds_its_place_and_the_first_one(source: Path, tmp_path: Path, jobset: bool) -> None:
    objects, _ = manifests(job(source), jobset=jobset)
    container = pod_of(objects)["containers"][0]
    told = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
    (tmp_path / "ml/input/config").mkdir(parents=True)
    for name, text in objects[0]["data"].items():
        (tmp_path / "ml/input/config" / name).write_text(text)
    for index in range(3):
        # The rest of what the system itself puts into a pod of such a job.
        system = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": str(index)}
        environ = {**told, **system, "SAGEMAKER_BASE_DIR": str(tmp_path / "ml")}
        cluster = resolve(read_job(environ), environ)
        assert (cluster.scheduler, cluster.rank, len(cluster.hosts)) == ("kubernetes", index, 3)
        assert cluster.address == ("digits-node-0-0.digits" if jobset else "digits-0.digits") and cluster.port == 7777
    job_spec = objects[-1]["spec"]
    if jobset:
        assert job_spec["network"]["subdomain"] == "digits" and job_spec["replicatedJobs"][0]["name"] == "node"
    else:
        (service,) = [made for made in objects if made["kind"] == "Service"]
        assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]
        assert pod_of(objects)["subdomain"] == service["metadata"]["name"]
        assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": objects[-1]["metadata"]["name"]}


def test_what_the_job_is_reaches_the_pod(source: Path) -> None:
    objects, _ = manifests(job(source))
    pod, container = pod_of(objects), pod_of(objects)["containers"][0]
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}

    assert json.loads(objects[0]["data"]["hyperparameters.json"])["epochs"] == "3"
    assert "resourceconfig.json" not in objects[0]["data"]
    code = {
        item["path"]: base64.b64decode(objects[1]["binaryData"][item["key"]])
        for item in volumes["code"]["configMap"]["items"]
    }
    assert code == {"train.py": b"import package\n", "package/__init__.py": b"NAME = '\xc3\xa9'\n"}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8192Mi"} and "/dev/shm" in mounts
    assert volumes[mounts["/opt/ml/input/data/train"]["name"]]["persistentVolumeClaim"] == {"claimName": "data"}
    assert mounts["/opt/ml/input/data/train"]["readOnly"] and mounts["/opt/ml/model"]["subPath"] == "digits/model"
    assert mounts["/opt/ml/checkpoints"]["subPath"] == "digits/checkpoints"
    assert pod["terminationGracePeriodSeconds"] == 130 and objects[-1]["spec"]["activeDeadlineSeconds"] == 3600
    assert container["resources"]["limits"] == {"cpu": "8", "memory": "32768Mi", "nvidia.com/gpu": 4}
    assert container["args"] == ["train"] and container["readinessProbe"]["exec"] and "livenessProbe" not in container


@pytest.mark.safety
def test_secrets_go_by_reference(source: Path) -> None:
    place = {"volumes": {"train": "data"}, "secrets": {"WANDB_API_KEY": {"name": "wandb", "key": "token"}}}
    objects, notes = manifests(job(source, places={"kubernetes": place}))
    variables = {entry["name"]: entry for entry in pod_of(objects)["containers"][0]["env"]}

    assert variables["HF_TOKEN"]["valueFrom"] == {"secretKeyRef": {"name": "digits-secrets", "key": "HF_TOKEN"}}
    assert variables["WANDB_API_KEY"]["valueFrom"] == {"secretKeyRef": {"name": "wandb", "key": "token"}}
    assert "hf_of_mine" not in json.dumps(objects) and "hf_of_mine" not in "".join(notes)
    assert any('create secret generic digits-secrets --from-literal=HF_TOKEN="$HF_TOKEN"' in note for note in notes)
    with pytest.raises(JobError, match="looks like a secret"):
        manifests(job(source, hyperparameters={"api_token": "x"}))


@pytest.mark.safety
def test_secrets_inside_values_go_by_reference_too_and_so_do_references(source: Path) -> None:
    given = {
        "SETTINGS": '{"deep": {"password": "nested-password"}}',
        "INDEX": "https://me:login-of-index@host/simple",
        "COMMAND": "connect with nested-password",
        "PLAIN": "1",
    }
    references = {"FANCY": SecretReference("env", "MINE")}
    place = {"volumes": {"train": "data"}, "secrets": {"FANCY": {"name": "mine", "key": "fancy"}}}
    (source / "helper.py").write_text("KEY = 'nested-password'")
    objects, notes = manifests(job(source, environment=given, references=references, places={"kubernetes": place}))
    variables = {entry["name"]: entry for entry in pod_of(objects)["containers"][0]["env"]}

    assert "nested-password" not in json.dumps(objects) and "login-of-index" not in json.dumps(objects)
    for name in ("SETTINGS", "INDEX", "COMMAND"):
        assert variables[name]["valueFrom"] == {"secretKeyRef": {"name": "digits-secrets", "key": name}}
    assert variables["FANCY"]["valueFrom"] == {"secretKeyRef": {"name": "mine", "key": "fancy"}}
    assert variables["PLAIN"] == {"name": "PLAIN", "value": "1"}
    assert set(variables["TRAINSHED_SECRET_NAMES"]["value"].split(",")) == {"SETTINGS", "INDEX", "COMMAND", "FANCY"}
    assert any(note.startswith("helper.py holds a secret") for note in notes)


@pytest.mark.safety
@pytest.mark.parametrize(
    "changes",
    [
        {"hyperparameters": {"wandb": {"api_key": "nested-secret"}}},
        {"hyperparameters": {"url": "https://me:nested-secret@host/x"}},
        {"hyperparameters": {"text": "it is nested-secret"}, "environment": {"API_KEY": "nested-secret"}},
        {"pod": {"containers": [{"name": "train", "env": [{"name": "API_KEY", "value": "nested-secret"}]}]}},
        {"pod": {"hostname": "nested-secret"}, "environment": {"API_KEY": "nested-secret"}},
        {"annotations": {"index": "https://me:nested-secret@host/x"}},
    ],
)
def test_a_secret_that_would_stand_in_a_manifest_is_refused(source: Path, changes: dict[str, Any]) -> None:
    place = {name: changes.pop(name) for name in ("pod", "annotations") if name in changes}
    with pytest.raises(JobError, match=r"looks like a secret|in the clear") as caught:
        manifests(job(source, places={"kubernetes": {"volumes": {"train": "data"}, **place}}, **changes))
    assert "nested-secret" not in str(caught.value) + caught.value.details


def test_what_pods_cannot_have_is_told_all_at_once(source: Path) -> None:
    (source / "weights").write_bytes(b"x" * 1_000_000)
    place = {"volume": {}, "volumes": {"test": "data"}, "retries": "many"}
    groups = (InstanceGroupSpec("a", 1), InstanceGroupSpec("b", 1))
    with pytest.raises(JobError) as caught:
        manifests(
            job(
                source,
                name="9-Digits",
                image="",
                instances=2,
                instance_groups=groups,
                resources=Resources(gpus=-1),
                places={"kubernetes": place},
            )
        )
    told = str(caught.value) + caught.value.details
    for text in (
        "name: must be a DNS label",
        "image: is missing",
        "instance_groups: cannot be exported: pods of a Job are all alike",
        "kubernetes.volume: is not a known field",
        "kubernetes.volumes.test: is not a channel",
        "kubernetes.retries: must be a whole number",
        "channels.train: is not on a volume that pods can mount",
        "source_dir: is 1.0 MB",
        "resources.gpus: must be a number",
    ):
        assert text in told, told


def test_the_users_part_of_a_pod_is_merged_into_ours(source: Path) -> None:
    extra = {
        "nodeSelector": {"gpu": "h200"},
        "containers": [
            {"name": "train", "env": [{"name": "EXTRA", "value": "1"}], "securityContext": {"privileged": False}}
        ],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
    }
    objects, _ = manifests(job(source, places={"kubernetes": {"volumes": {"train": "data"}, "pod": extra}}))
    check(objects)
    pod = pod_of(objects)

    assert pod["nodeSelector"] == {"gpu": "h200"} and {"scratch", "shm"} <= {volume["name"] for volume in pod["volumes"]}
    assert pod["containers"][0]["image"] and {"EXTRA", "NNODES"} <= {entry["name"] for entry in pod["containers"][0]["env"]}
    assert merged({"a": [1]}, {"a": [2]}) == {"a": [2]}


def test_the_command_prints_yaml_that_reads_back(source: Path, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        "name: digits\nimage: a/b:1\nprogram: src/train.py\ninstances: 2\ndistribution: torchrun\n"
        "kubernetes: {output: results, retries: 5}\n"
    )
    command = [sys.executable, "-m", "trainshed.cli", "export", "kubernetes", "job.yaml", "--hp", "lr=1.10"]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(TOOLKIT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    objects = list(yaml.safe_load_all(done.stdout))
    check(objects)
    assert json.loads(objects[0]["data"]["hyperparameters.json"])["lr"] == "1.10"
    assert objects[-1]["spec"]["backoffLimit"] == 10 and "&id" not in done.stdout


@pytest.mark.parametrize("jobset", [False, True])
def test_one_start_of_a_run(source: Path, jobset: bool) -> None:
    """Its names, labels and retries are the run's; results are where earlier starts have left them."""
    given = job(source, retries=2)
    place = {**given.places["kubernetes"], "jobset": jobset, "queue": "gpu"}
    made = of_run(replace(given, places={"kubernetes": place}), Started("digits-s2", "0" * 32, "digits"))
    check(made.objects)
    last = made.objects[-1]
    assert last["kind"] == ("JobSet" if jobset else "Job") and last["metadata"]["name"] == "digits-s2"
    assert last["spec"]["suspend"] is True
    assert last["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpu"
    text = json.dumps(made.objects)
    assert '"subPath": "digits/checkpoints"' in text and "digits-s2/" not in text
    assert made.secrets == ["HF_TOKEN"] and made.secrets_name == "digits-s2-secrets" and "hf_of_mine" not in text
    spec = last["spec"]["replicatedJobs"][0]["template"]["spec"] if jobset else last["spec"]
    assert spec["template"]["metadata"]["labels"]["trainshed/run"] == "0" * 32
    assert "suspend" not in spec if jobset else spec["backoffLimit"] == 2 * 3
    assert not any("kubectl create secret" in note for note in made.notes)


def test_a_small_file_of_random_bytes_among_the_code_is_no_secret(source: Path) -> None:
    (source / "table.bin").write_bytes(bytes((one * 73 + 41) % 251 for one in range(48)))

    objects, _ = manifests(job(source))
    assert "table.bin" in str(objects)
