"""Actions on Kubernetes: the job's objects made in a cluster, followed to the end; and a run taken up again."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trainshed.base.errors import EXIT_SIGNAL_BASE, EXIT_TIMEOUT, TrainshedError
from trainshed.base.files import read_object, remove, write_atomic
from trainshed.base.secrets import MASK
from trainshed.base.units import duration
from trainshed.contract.outcome import REASON_BYTES, clip
from trainshed.machine.signals import SignalPipe
from trainshed.runner.acting.submission import Follow, Queue, Submission
from trainshed.runner.display.screen import Screen
from trainshed.runner.display.summary import render, shown
from trainshed.runner.files import layout
from trainshed.runner.files.ending import Ending, HostEnd, RunEnd
from trainshed.runner.files.metrics import Metrics
from trainshed.runner.files.run import Run
from trainshed.runner.job.job import Job
from trainshed.runner.job.places import KUBERNETES
from trainshed.runner.state.status import StatusFile
from trainshed.runner.state.stored import Stored

from .api_server import MERGE, ApiServer, ApiServerUnreachable, KubernetesError, Refused
from .cluster_wishes import ClusterOptions, read_options
from .followed import SEEN, ClusterJob, Followed, JobEnd, delete, ended
from .manifests import LONGEST_NAME, RUN_LABEL, Made, Started, of_run, to_yaml
from .pod_words import PodEnd

CLUSTER_JOB = "kubernetes/job.json"  # below the run's folder: where the job is
PATIENCE_SECONDS = 60.0  # that the API server may be away while objects are made
KEPT_SECONDS = 7 * 86_400  # that a finished job stays in the cluster where nobody takes it away
_PLURALS = {"Job": "jobs", "JobSet": "jobsets", "ConfigMap": "configmaps", "Secret": "secrets", "Service": "services"}


class ClusterSubmission(Submission):
    """One job on its way to a cluster, and to its end."""

    in_containers = True

    def check(self) -> None:
        """Checks whether the manifests can be made, the cluster answers, and has what the job asks for."""
        self.options = read_options(self.job)
        of_run(self.job, Started("x", "", "x"))  # its problems, before the run has a folder
        self.api = ApiServer(self.options, self.environ)
        for path in ("/apis/batch/v1/namespaces/{}/jobs", "/api/v1/namespaces/{}/pods"):
            self.api.ask("GET", path.format(self.api.namespace), {"limit": "1"})  # what following needs
        if self.options.queue:
            _check_queue(self.api, self.options.queue)
        if self.options.jobset and not _has_group(self.api, "jobset.x-k8s.io"):
            raise KubernetesError("JobSet is not installed in the cluster", hint="leave kubernetes.jobset out")

    def fill(self) -> None:
        """The run's folder, and what is to be made in the cluster."""
        before = _known(self.run.folder)
        for name in (CLUSTER_JOB, SEEN):
            remove(f"{self.run.folder}/{name}")
        os.makedirs(f"{self.run.folder}/{os.path.dirname(CLUSTER_JOB)}", exist_ok=True)
        layout.place(self.run, interface="", say=self.screen.say)
        self.start = int(before.get("start") or 0) + 1
        self.started_as = _started(self.run, self.start)
        self.made = of_run(self.job, self.started_as)
        for note in self.made.notes:
            self.screen.say(f"note: {note}")

    def submit(self, secrets: Mapping[str, str]) -> str:
        """Makes the objects: the job first, suspended, then what it owns; then it may run."""
        job = self.made.objects[-1]
        name = job["metadata"]["name"]
        self.place = ClusterJob(_path(self.api, job), name, self.started_as.folder)
        self._note(whole=False)
        self.status.data["Trainshed"] |= {KUBERNETES.key: f"{self.api.namespace}/{name}"}
        self.status.to("Pending", "Making its objects in the cluster")
        held = bool(job["spec"].get("suspend"))
        job["spec"] |= {"suspend": True}
        if job["kind"] == "Job":
            job["spec"] |= {"ttlSecondsAfterFinished": KEPT_SECONDS}
        try:
            owner = self._made(job)
            values = {name: secrets.get(name, self.job.environment.get(name, "")) for name in self.made.secrets}
            for one in (*_secrets(self.made, values), *self.made.objects[:-1]):
                reference = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": name, "uid": owner}
                one["metadata"]["ownerReferences"] = [reference]
                self._made(one)
            if not held:
                self._asked("PATCH", self.place.url, {"spec": {"suspend": False}}, MERGE)
        except BaseException:
            try:
                delete(self.api, self.place)
            except KubernetesError as error:
                self.screen.say(f"warning: {name} may be left in the cluster: {error.message}")
            raise
        self._note(whole=True)
        what = f"{job['kind']} {self.api.namespace}/{name}"
        self.screen.say(f"{self.run.name}: {what}, {self.job.instances} pod(s), in {shown(self.run.folder)}")
        return f"The cluster has it as {what}"

    def follow(self, signals: SignalPipe) -> int:
        """Until the cluster has ended it."""
        return _to_the_end(self.run, self.place, self.api, self.options, self.screen, signals, self.status)

    def _note(self, *, whole: bool) -> None:
        """What who takes the run up has to know. whole: whether all objects are there."""
        file = self.api.file
        known = {
            "namespace": self.api.namespace,
            "context": self.options.context,
            "kubeconfig": os.path.abspath(file) if file and os.pathsep not in file else file,
            "path": self.place.path,
            "name": self.place.name,
            "folder": self.place.folder,
            "start": self.start,
            "whole": whole,
        }
        write_atomic(f"{self.run.folder}/{CLUSTER_JOB}", json.dumps(known, indent=2) + "\n")

    def _made(self, thing: dict[str, Any]) -> str:
        """Makes one object; its uid. One that is there already is ours if an answer to us was lost."""
        path = _path(self.api, thing)
        thing["metadata"]["namespace"] = self.api.namespace
        name = thing["metadata"]["name"]
        try:
            answer = self._asked("POST", path, thing)
        except Refused as error:
            if error.reason != "AlreadyExists":
                raise
            answer = self._asked("GET", f"{path}/{name}")
            if ((answer.get("metadata") or {}).get("labels") or {}).get(RUN_LABEL) != self.run.id:
                raise KubernetesError(
                    f"there is a {thing['kind']} {name} in the namespace {self.api.namespace} already, of somebody else",
                    hint="give the job another name",
                ) from None
        return str((answer.get("metadata") or {}).get("uid") or "")

    def _asked(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> dict[str, Any]:
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return self.api.ask(method, path, body=body, kind=kind)
            except ApiServerUnreachable as error:
                if time.monotonic() > end:
                    raise
                self.screen.say(f"{error.message}: trying again")
                time.sleep(2)


class Kubernetes(Queue):
    """Runs jobs on a Kubernetes cluster."""

    submits = ClusterSubmission

    def check(self, job: Job, environ: Mapping[str, str]) -> None:
        """Raises JobError where an option is wrong."""
        read_options(job)

    def preview(self, job: Job, environ: Mapping[str, str]) -> str:
        """The manifests."""
        made = of_run(job, _started(layout.plan(job, in_containers=True, now=time.time()), 1))
        return to_yaml([*_secrets(made, dict.fromkeys(made.secrets, MASK)), *made.objects])

    def reach(self, stored: Stored, run: Run, environ: Mapping[str, str]) -> Follow:
        """Follows it in the cluster that its submission has noted."""
        api, place, options = _reached(stored, run, environ)
        api.ask("GET", "/version")

        def follow(screen: Screen, signals: SignalPipe, status: StatusFile) -> int:
            if _known(stored.folder).get("whole"):
                return _to_the_end(run, place, api, options, screen, signals, status, fresh=False)
            delete(api, place)
            verdict = RunEnd("Failed", "Failed", 1, reason="whoever submitted it was killed before the job could start")
            status.ended(verdict, None, Metrics.of(()), "")
            screen.say(verdict.reason)
            return verdict.exit_code

        return follow

    def stop(self, stored: Stored, environ: Mapping[str, str], *, kill: bool = False) -> None:
        """Deletes the job in the cluster; its pods get their grace."""
        api, place, _ = _reached(stored, stored.run(), environ)
        delete(api, place)


def _reached(stored: Stored, run: Run, environ: Mapping[str, str]) -> tuple[ApiServer, ClusterJob, ClusterOptions]:
    known = _known(stored.folder)
    if not known:
        raise TrainshedError(f"{stored.folder}/{CLUSTER_JOB} was not written by trainshed")
    options = replace(
        read_options(run.job),
        kubeconfig=str(known.get("kubeconfig") or ""),
        context=str(known.get("context") or ""),
        namespace=str(known.get("namespace") or ""),
    )
    return ApiServer(options, environ), ClusterJob(*(str(known[name]) for name in ("path", "name", "folder"))), options


def _known(folder: str) -> dict[str, Any]:
    """What the submission has noted, {} for nothing that it could have written."""
    known = read_object(f"{folder}/{CLUSTER_JOB}", 1 << 16, links=False)
    good = {"path": r"/apis/[a-z0-9./-]+", "name": r"[a-z0-9-]+", "folder": r"[a-z0-9-]+"}
    return known if all(re.fullmatch(form, str(known.get(name))) for name, form in good.items()) else {}


def _started(run: Run, start: int) -> Started:
    """The name in the cluster: the run's, where that is short enough, and the number of a later start."""
    name = re.sub(r"[^a-z0-9]+", "-", run.name.lower()).strip("-")
    if not name[:1].isalpha():
        name = f"job-{name}"
    if len(name) > LONGEST_NAME - 3:
        name = f"{name[: LONGEST_NAME - 12].rstrip('-')}-{run.id[:8]}"
    return Started(name if start == 1 else f"{name}-s{start}", run.id, name)


def _path(api: ApiServer, thing: dict[str, Any]) -> str:
    """Where objects of its kind are."""
    version = thing["apiVersion"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    return f"{root}/namespaces/{api.namespace}/{_PLURALS[thing['kind']]}"


def _secrets(made: Made, values: Mapping[str, str]) -> list[dict[str, Any]]:
    """The Secret with the job's secret variables, [] where it has none."""
    if not made.secrets:
        return []
    labels = dict(made.objects[0]["metadata"]["labels"])
    metadata = {**made.objects[0]["metadata"], "name": made.secrets_name, "labels": labels}
    return [{"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "stringData": dict(values)}]


def _has_group(api: ApiServer, group: str) -> str:
    """The version of an API group that the cluster prefers, "" where it does not have the group."""
    try:
        answer = api.ask("GET", f"/apis/{group}")
    except Refused as error:
        if error.code == 404:
            return ""
        raise
    return str((answer.get("preferredVersion") or {}).get("groupVersion") or group)


def _check_queue(api: ApiServer, queue: str) -> None:
    """Without Kueue, or in a queue that is not there, the job would wait for ever. Raises KubernetesError."""
    version = _has_group(api, "kueue.x-k8s.io")
    if not version:
        raise KubernetesError("Kueue is not installed in the cluster: nobody would start a job in a queue",
                              hint="leave kubernetes.queue out")  # fmt: skip
    path = f"/apis/{version}/namespaces/{api.namespace}/localqueues"
    try:
        api.ask("GET", f"{path}/{queue}")
    except Refused as error:
        if error.code == 404:
            raise KubernetesError(
                f"there is no queue {queue} in the namespace {api.namespace}", hint="kubectl get localqueues lists them"
            ) from None
        if error.code != 403:  # who may not see queues may still use them
            raise


def _to_the_end(
    run: Run,
    place: ClusterJob,
    api: ApiServer,
    options: ClusterOptions,
    screen: Screen,
    signals: SignalPipe,
    status: StatusFile,
    *,
    fresh: bool = True,
) -> int:
    """Follows a job until it is over, takes it away, writes how it ended; its exit status."""
    if len(run.hosts) > 1:  # `train` calls them so
        run = replace(run, hosts=tuple(replace(host, name=f"host-{number}") for number, host in enumerate(run.hosts)))
    metrics = Metrics.of(run.job.metric_definitions)

    def changed(phase: str, message: str) -> None:
        status.to(phase, message)

    end = Followed(run, place, api, options, screen, metrics, signals, changed, fresh).to_the_end()
    verdict = judge(run, end)
    try:
        delete(api, place)  # its objects are its own and go with it, secrets among them
    except KubernetesError as error:
        screen.say(f"warning: {place.name} is left in the cluster: {error.message}")
    known = [(index, pod) for index, pod in end.pods.items() if index < len(run.hosts)]
    ends = tuple(HostEnd(run.hosts[index].name, pod.code, pod.words) for index, pod in known)
    model = _model(run, place) if verdict.status == "Completed" else ""
    status.ended(verdict, Ending(ends, end.stop_signal, seconds=end.seconds), metrics, model)
    screen.block(render(run, verdict, {}, metrics, None, time.time() - run.started))
    if model:
        screen.say(f"the model is on the volume: {model}")
    return verdict.exit_code


def _model(run: Run, place: ClusterJob) -> str:
    """Where the model is, as `pvc://CLAIM/PATH`; "" where no volume keeps it."""
    claim_name = (run.job.places.get(KUBERNETES.name) or {}).get("output")
    return f"pvc://{claim_name}/{place.folder}/model" if isinstance(claim_name, str) and claim_name else ""


def _said(pod: PodEnd) -> str:
    """What `train` has left; of one that could not leave anything, the last line that Kubernetes has kept."""
    told = pod.message.strip()
    if _is_ours(pod):
        return told.split("\n\n")[0]
    return f"last output: {told.splitlines()[-1]}" if told else ""


def _is_ours(pod: PodEnd) -> bool:
    """Whether the message is a failure file's text."""
    return re.match(r"[A-Z][A-Za-z]+: ", pod.message) is not None


def judge(run: Run, end: JobEnd) -> RunEnd:
    """How the job ended, from its last state and its pods'."""
    if end.stop_signal:
        name = signal.Signals(end.stop_signal).name
        return RunEnd("Stopped", "Stopped", EXIT_SIGNAL_BASE + end.stop_signal, reason=f"stopped by {name}")
    if end.given_up:
        return RunEnd("Failed", "Failed", 1, reason=clip(end.given_up, REASON_BYTES))
    if end.job is None:
        reason = "the job was deleted in the cluster, not by trainshed"
        return RunEnd("Stopped", "Stopped", EXIT_SIGNAL_BASE + signal.SIGTERM, reason=reason)
    succeeded, why, message = ended(end.job) or (False, "", "the cluster does not say how it ended")
    if succeeded:
        return RunEnd("Completed", "Completed", 0)
    if why == "DeadlineExceeded":
        limit = duration(run.job.max_runtime_seconds or 0)
        return RunEnd("Stopped", "MaxRuntimeExceeded", EXIT_TIMEOUT, reason=f"it reached its time limit, {limit}")
    failed = [(pod.of_another, pod.at, index, pod) for index, pod in end.pods.items() if pod.code]
    if not failed:
        return RunEnd("Failed", "Failed", 1, reason=clip(f"Kubernetes: {why}: {message}", REASON_BYTES))
    _, _, index, pod = min(failed, key=lambda one: one[:3])
    name = run.hosts[index].name if index < len(run.hosts) else f"pod {index}"
    # All hosts report the first cause, and name where it was.
    named = re.search(r" on (host-\d+)\b", pod.message.partition("\n")[0]) if _is_ours(pod) else None
    if named is not None and named[1] in {host.name for host in run.hosts}:
        name = named[1]
    reason = "\n".join(part for part in (pod.words, _said(pod)) if part) or f"exit status {pod.code}"
    return RunEnd("Failed", "Failed", pod.code, name, clip(reason, REASON_BYTES))
