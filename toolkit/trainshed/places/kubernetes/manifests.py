"""A job as Kubernetes manifests: ConfigMaps with its files, and an Indexed Job with a headless Service, or a JobSet.

Each pod is one host and runs the image's `train`. It learns its place from the variables that `container.cluster.kubernetes`
reads: NNODES and MASTER_ADDR from here, JOB_COMPLETION_INDEX from the Job controller. The names by which pods find each
other are those that the Job controller gives them (`<job>-<index>.<service>`), published before they are ready.

A pod that ends is not restarted in place: a new one takes its index, and all meet again through the roster. What must not
count as a failure of the job (a drained node, an interruption that `train` reports with status 75) does not; what cannot get
better (status 2, the job cannot be read) ends it at once. With a JobSet all pods are made anew together.

Sources: the API references of batch/v1, core/v1 and jobset.x-k8s.io/v1alpha2.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from trainshed.base.errors import EXIT_INTERRUPTED, EXIT_JOB
from trainshed.base.secrets import mask_bytes, new_token
from trainshed.contract.paths import DEFAULT_BASE
from trainshed.contract.wire.secret_names import secret_bytes
from trainshed.contract.wire.variables import ROSTER_TOKEN, RUN_ID, SECRET_NAMES, of_setting
from trainshed.runner.acting.base import DEFAULT_SHM
from trainshed.runner.files import code
from trainshed.runner.files.grace import CLUSTER_REPORT_SECONDS
from trainshed.runner.files.platform_files import config_files, to_json
from trainshed.runner.job.job import ALL_GPUS, Job
from trainshed.runner.job.places import KUBERNETES
from trainshed.runner.job.references import secrets_of

from ..disclosure import disclosed, disclosures, secret_variables
from ..target import PlaceFields

RUN_LABEL, QUEUE_LABEL = "trainshed/run", "kueue.x-k8s.io/queue-name"
PORT = 7777  # of rank 0; the hosts' own is the next one
RETRIES = 3
MOST_CODE = 1_000_000  # bytes that a ConfigMap may hold: 1 MiB, of which some goes to names
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LONGEST_NAME = 40  # pods' names are host names (63), and JobSet adds `-node-0-<index>`


@dataclass(frozen=True)
class Made:
    """A run's objects.

    objects: the last one is the Job or JobSet, which owns the others.
    notes: what the user should know. secrets: variables that the Secret of `secrets_name` has to hold.
    """

    objects: list[dict[str, Any]]
    notes: list[str]
    secrets: list[str]
    secrets_name: str


@dataclass(frozen=True)
class Started:
    """The facts that make a manifest that of one start of a run.

    id: of the run, for labels and the environment. folder: of its results, on volumes, the same for each start.
    """

    name: str
    id: str
    folder: str


def of_run(job: Job, started: Started) -> Made:
    """The objects of one start of a run. Raises as `manifests`."""
    place = PlaceFields(job, KUBERNETES, KUBERNETES.known)
    made = _Export(job, place, bool(place.values.get("jobset")), started)
    return Made(_checked(made, job), made.notes, made.wanted, f"{made.name}-secrets")


def manifests(job: Job, *, jobset: bool = False) -> tuple[list[dict[str, Any]], list[str]]:
    """(objects in the order in which they are to be made, what the user should know).

    Raises:
        JobError: the job lacks something that pods need; holds every problem.
        ProgramError: its code cannot be read.
    """
    place = PlaceFields(job, KUBERNETES, KUBERNETES.known)
    made = _Export(job, place, jobset or place.get("jobset", bool, False))
    return _checked(made, job), made.notes


def _checked(made: _Export, job: Job) -> list[dict[str, Any]]:
    objects = made.objects()
    if not made.place.problems:
        for where in disclosures(objects, job):
            made.place.problem("pod", f"{where} would hold a secret in the clear", "give it as a variable of the job")
    made.place.done()
    return objects


class _Export:
    def __init__(self, job: Job, place: PlaceFields, jobset: bool, started: Started | None = None) -> None:
        self.job, self.place, self.jobset, self.started = job, place, jobset, started
        self.notes: list[str] = []
        self.wanted: list[str] = []  # variables that the job's Secret holds
        self.name = started.name if started else job.name.lower()
        self.folder = started.folder if started else self.name
        if not _NAME.fullmatch(self.name) or len(self.name) > LONGEST_NAME:
            place.problem("job.name", f"must be a DNS label of at most {LONGEST_NAME} characters, first a letter")
        if job.instance_groups:
            place.problem(
                "job.instance_groups", "cannot be exported: pods of a Job are all alike", "export a job for each group"
            )
        if not job.image:
            place.problem("job.image", "is missing: pods need an image")
        self.labels = {
            "app.kubernetes.io/name": self.name,
            "app.kubernetes.io/component": "training",
            "app.kubernetes.io/managed-by": "trainshed",
            **{name: str(value) for name, value in place.get("labels", dict, {}).items()},
        }
        if started:
            self.labels[RUN_LABEL] = started.id
        self.queue = place.get("queue", str, "")

    def objects(self) -> list[dict[str, Any]]:
        several = self.job.instances > 1
        made = [self.config_map("config", self.config())]
        files = self.code()
        if files:
            made.append(self.config_map("code", {}, {_key(number): data for number, (_, data) in enumerate(files)}))
        if several:
            token = {"token": new_token()}  # by which the hosts know each other
            made.append(self.object("v1", "Secret", f"{self.name}-roster", type="Opaque", stringData=token))
        if several and not self.jobset:  # a JobSet makes its own
            made.append(self.service())
        template = self.job_spec(self.pod([name for name, _ in files]))
        job = self.job_set(template) if self.jobset else self.object("batch/v1", "Job", self.name, spec=template)
        if self.queue:  # Kueue lets it go when there is room
            job["metadata"]["labels"][QUEUE_LABEL] = self.queue
            job["spec"]["suspend"] = True
        return [*made, job]

    @property
    def retries(self) -> int:
        """Starts of the whole job beyond the first: a run's are those of its job, as everywhere."""
        return self.place.get("retries", int, self.job.retries if self.started else RETRIES)  # type: ignore[no-any-return]

    # --- objects ---

    def object(self, version: str, kind: str, name: str, **fields: Any) -> dict[str, Any]:
        metadata: dict[str, Any] = {"name": name, "labels": dict(self.labels)}
        namespace = self.place.get("namespace", str, "")
        if namespace:
            metadata["namespace"] = namespace
        return {"apiVersion": version, "kind": kind, "metadata": metadata, **fields}

    def config_map(self, part: str, data: dict[str, str], binary: dict[str, bytes] | None = None) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        if data:
            fields["data"] = data
        if binary:
            fields["binaryData"] = {name: base64.b64encode(value).decode() for name, value in binary.items()}
        return self.object("v1", "ConfigMap", f"{self.name}-{part}", **fields)

    def service(self) -> dict[str, Any]:
        spec = {
            "clusterIP": "None",
            "selector": {"batch.kubernetes.io/job-name": self.name},
            "publishNotReadyAddresses": True,  # hosts look for each other before anything is ready
            "ports": [{"name": "ranks", "port": PORT}, {"name": "train", "port": PORT + 1}],
        }
        return self.object("v1", "Service", self.name, spec=spec)

    def job_spec(self, pod: dict[str, Any]) -> dict[str, Any]:
        job, retries = self.job, self.retries
        spec: dict[str, Any] = {
            "completionMode": "Indexed",
            "completions": job.instances,
            "parallelism": job.instances,
            # When one host fails, all end: so many pods are used up at a time.
            "backoffLimit": 0 if self.jobset else retries * job.instances,
        }
        if not self.jobset:
            on_exit = {"containerName": "train", "operator": "In"}
            spec["podFailurePolicy"] = {
                "rules": [
                    {"action": "FailJob", "onExitCodes": {**on_exit, "values": [EXIT_JOB]}},
                    {"action": "Ignore", "onExitCodes": {**on_exit, "values": [EXIT_INTERRUPTED]}},
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                ]
            }
        if job.max_runtime_seconds:
            spec["activeDeadlineSeconds"] = math.ceil(job.max_runtime_seconds)
        return {**spec, "template": pod}

    def job_set(self, template: dict[str, Any]) -> dict[str, Any]:
        spec = {
            "network": {"enableDNSHostnames": True, "subdomain": self.name, "publishNotReadyAddresses": True},
            "failurePolicy": {"maxRestarts": self.retries},
            "replicatedJobs": [
                {"name": "node", "replicas": 1, "template": {"metadata": {"labels": dict(self.labels)}, "spec": template}}
            ],
        }
        return self.object("jobset.x-k8s.io/v1alpha2", "JobSet", self.name, spec=spec)

    def pod(self, files: list[str]) -> dict[str, Any]:
        job = self.job
        volumes, mounts = self.volumes(files)
        container: dict[str, Any] = {
            "name": "train",
            "image": job.image,
            "args": ["train"],
            "env": self.environment(),
            "volumeMounts": mounts,
            "resources": self.resources(),
            "ports": [{"name": "ranks", "containerPort": PORT}, {"name": "train", "containerPort": PORT + 1}],
            # READY once the script runs: the run record says so from then on. There is no liveness probe: `train` itself
            # ends ranks that stand still, with a report, and a kubelet that kills it would leave none.
            "readinessProbe": {
                "exec": {"command": ["sh", "-c", f"ls {DEFAULT_BASE}/output/data/run/*.json"]},
                "periodSeconds": 10,
                "timeoutSeconds": 5,
            },
            "terminationMessagePolicy": "FallbackToLogsOnError",  # whose last lines are our report
        }
        spec: dict[str, Any] = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": math.ceil(job.grace_seconds + CLUSTER_REPORT_SECONDS),
            "containers": [container],
            "volumes": volumes,
            "enableServiceLinks": False,  # variables of other services would be in the script's way
        }
        if job.instances > 1 and not self.jobset:
            spec["subdomain"] = self.name
        spec = merged(spec, self.place.get("pod", dict, {}))
        metadata: dict[str, Any] = {"labels": dict(self.labels)}
        annotations = self.place.get("annotations", dict, {})
        if annotations:
            metadata["annotations"] = {name: str(value) for name, value in annotations.items()}
        return {"metadata": metadata, "spec": spec}

    # --- what is in the container ---

    def config(self) -> dict[str, str]:
        """The files of input/config but the one that lists hosts: the cluster's variables tell."""
        leaks = "holds what looks like a secret, and would be stored in a ConfigMap"
        for name in disclosed(self.job.hyperparameters, self.job):
            hint = f"give it as a variable (environment.{name.upper()}), which becomes a reference to a Secret"
            self.place.problem(f"job.hyperparameters.{name}", leaks, hint)
        for name in disclosed(self.job.config, self.job):
            self.place.problem(f"job.config.{name}", leaks)
        files = config_files(self.job, self.name, self.name, DEFAULT_BASE, "")
        files.pop("resourceconfig.json", None)
        return {name: to_json(value) for name, value in files.items()}

    def code(self) -> list[tuple[str, bytes]]:
        """(path below /opt/ml/code, content) of the job's code."""
        if not self.job.source_dir or "code" in self.place.get("volumes", dict, {}):
            return []
        source = code.survey(self.job.source_dir, [channel.path for channel in self.job.channels])
        if source.size * 4 / 3 > MOST_CODE:
            hint = "put it into the image, or on a volume: kubernetes.volumes.code names a claim"
            self.place.problem("job.source_dir", f"is {source.size / 1e6:.1f} MB, more than a ConfigMap can hold", hint)
            return []
        found = []
        for path, name in source.files:
            with open(path, "rb") as file:
                found.append((name, file.read()))
            if mask_bytes(found[-1][1], secret_bytes(secrets_of(self.job, {}))) != found[-1][1]:
                self.notes.append(f"{name} holds a secret of the job, and becomes part of a ConfigMap")
        return found

    def environment(self) -> list[dict[str, Any]]:
        job = self.job
        named: dict[str, Any] = {"TRAINING_JOB_NAME": self.name, of_setting("interrupted_exit_code"): str(EXIT_INTERRUPTED)}
        if self.started:
            named[RUN_ID] = self.started.id
        if job.instances > 1:
            first = f"{self.name}-node-0-0" if self.jobset else f"{self.name}-0"
            named |= {"NNODES": str(job.instances), "MASTER_ADDR": f"{first}.{self.name}", "MASTER_PORT": str(PORT)}
            named[ROSTER_TOKEN] = {"secretKeyRef": {"name": f"{self.name}-roster", "key": "token"}}
        given = self.place.get("secrets", dict, {})
        wanted = [name for name in secret_variables(job) if name not in given]
        references = {name: {"name": f"{self.name}-secrets", "key": name} for name in wanted}
        for name, where in given.items():
            if isinstance(where, dict) and set(where) == {"name", "key"}:
                references[name] = {"name": str(where["name"]), "key": str(where["key"])}
            else:
                self.place.problem(f"secrets.{name}", "must have the form {name: SECRET, key: KEY}")
        self.wanted = wanted
        if wanted and not self.started:
            values = " ".join(f'--from-literal={name}="${name}"' for name in wanted)
            self.notes.append(f"create the Secret first: kubectl create secret generic {self.name}-secrets {values}")
        named |= {name: value for name, value in job.environment.items() if name not in references}
        named |= {name: {"secretKeyRef": where} for name, where in references.items()}
        if references:
            named[SECRET_NAMES] = ",".join(references)  # whose values `train` masks
        return [
            {"name": name, "valueFrom": value} if isinstance(value, dict) else {"name": name, "value": value}
            for name, value in named.items()
        ]

    def volumes(self, files: list[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """(volumes, mounts): configuration and code from ConfigMaps, channels and results from claims, shared memory."""
        shm = self.job.resources.shm_size or DEFAULT_SHM
        volumes: list[dict[str, Any]] = [
            {"name": "config", "configMap": {"name": f"{self.name}-config"}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": _size(shm)}},
        ]
        mounts: list[dict[str, Any]] = [
            {"name": "config", "mountPath": f"{DEFAULT_BASE}/input/config", "readOnly": True},
            {"name": "shm", "mountPath": "/dev/shm"},
        ]
        if files:
            items = [{"key": _key(number), "path": name} for number, name in enumerate(files)]
            volumes.append({"name": "code", "configMap": {"name": f"{self.name}-code", "items": items}})
            mounts.append({"name": "code", "mountPath": f"{DEFAULT_BASE}/code", "readOnly": True})
        claims = self.claims()
        for claim in sorted({claim for claim, _, _, _ in claims}):
            volumes.append({"name": f"claim-{claim}"[:63], "persistentVolumeClaim": {"claimName": claim}})
        for claim, path, target, read_only in claims:
            mount = {"name": f"claim-{claim}"[:63], "mountPath": f"{DEFAULT_BASE}/{target}"}
            mounts.append({**mount, **({"subPath": path} if path else {}), **({"readOnly": True} if read_only else {})})
        return volumes, mounts

    def claims(self) -> list[tuple[str, str, str, bool]]:
        """(claim, folder in it, folder below /opt/ml, read-only)."""
        found = []
        given = self.place.get("volumes", dict, {})
        channels = [channel.name for channel in self.job.channels]
        written = [channel.name for channel in self.job.channels if channel.access == "rw"]
        for name, where in given.items():
            claim, path = (where.get("claim"), where.get("path", "")) if isinstance(where, dict) else (where, "")
            if name not in (*channels, "code"):
                self.place.problem(f"volumes.{name}", "is not a channel of the job")
            elif not isinstance(claim, str) or not isinstance(path, str):
                self.place.problem(f"volumes.{name}", "must name a claim, or {claim: NAME, path: FOLDER}")
            else:
                found.append(
                    (claim, path.strip("/"), "code" if name == "code" else f"input/data/{name}", name not in written)
                )
        for name in channels:
            if name not in given:
                hint = f"kubernetes.volumes.{name} names a PersistentVolumeClaim that holds it"
                self.place.problem(f"job.channels.{name}", "is not on a volume that pods can mount", hint)
        output, checkpoints = self.place.get("output", str, ""), self.place.get("checkpoints", str, "")
        if output:
            found += [(output, f"{self.folder}/{folder}", folder, False) for folder in ("model",)]
        else:
            self.notes.append("kubernetes.output is not set: the model is lost when the pods end")
        if checkpoints or output:
            found.append((checkpoints or output, f"{self.folder}/checkpoints", "checkpoints", False))
        else:
            self.notes.append("kubernetes.checkpoints is not set: a replacement pod starts training from the beginning")
        return found

    def resources(self) -> dict[str, Any]:
        wanted = self.job.resources
        limits: dict[str, Any] = {}
        if wanted.cpus is not None:
            limits["cpu"] = f"{wanted.cpus:g}"
        if wanted.memory is not None:
            limits["memory"] = _size(wanted.memory)
        if wanted.gpus == ALL_GPUS:
            self.place.problem("job.resources.gpus", "must be a number: pods request a number of GPUs")
        elif wanted.gpus:
            limits[self.place.get("gpu_resource", str, "nvidia.com/gpu")] = wanted.gpus
        return {"requests": dict(limits), "limits": limits} if limits else {}


def to_yaml(objects: list[dict[str, Any]]) -> str:
    """Several objects as one YAML stream, fields in our order, text of several lines as a block."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: object) -> bool:  # `&id001` is for machines
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    return yaml.dump_all(objects, Dumper=Dumper, sort_keys=False, explicit_start=True, width=120)  # type: ignore[no-any-return]


def merged(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """The user's fields over ours: mappings field by field, lists of named things by name, all else replaced."""
    result = dict(ours)
    for name, value in theirs.items():
        present = result.get(name)
        if isinstance(present, dict) and isinstance(value, dict):
            result[name] = merged(present, value)
        elif _named(present) and _named(value):
            result[name] = _merged_lists(present or [], value)
        else:
            result[name] = value
    return result


def _named(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) and "name" in item for item in value)


def _merged_lists(ours: Iterable[dict[str, Any]], theirs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    known = {item["name"]: item for item in ours}
    for item in theirs:
        known[item["name"]] = merged(known.get(item["name"], {}), item)
    return list(known.values())


def _key(number: int) -> str:
    return f"file-{number}"


def _size(count: int) -> str:
    return f"{count >> 20}Mi" if count % (1 << 20) == 0 else str(count)
