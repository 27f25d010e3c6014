"""A control plane of our own, as far as `--on kubernetes` sees one: an HTTP server that answers as an API server does.

Objects, lists, watches, logs, Status answers and their words have the shapes that Kubernetes' API server sends. It keeps
what is posted, makes the pods of a Job that is not suspended, and lets a test play the nodes.
"""

from __future__ import annotations

import base64
import copy
import json
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

TOKEN = "a-token-that-nobody-may-see"
INDEX = "batch.kubernetes.io/job-completion-index"
Object = dict[str, Any]


def stamp() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class Refusal(Exception):
    """An answer of 400 or more."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        self.code = code
        self.body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
                     "reason": reason, "code": code}  # fmt: skip


class OwnCluster:
    """The state of the cluster. Every change takes the lock and wakes those who watch."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.objects: dict[str, Object] = {}  # by path
        self.history: list[tuple[int, str, str, Object]] = []  # (version, type, path, object)
        self.version, self.oldest = 100, 100
        self.logs: dict[str, list[tuple[str, bytes]]] = {}  # by the pods' uids
        self.forbidden: set[tuple[str, str]] = set()  # (method, plural)
        self.requests: list[tuple[str, str]] = []
        self.answers: dict[str, Object] = {"/version": {"major": "1", "minor": "34", "gitVersion": "v1.34.1"}}
        self.quota = ""  # what the quota says of pods, "" for none
        self.on_stop: Callable[[Object], None] = self.gone  # what a node does with a pod that is to end
        self.cuts: list[socket.socket] = []
        self.lose_answers = 0  # of so many POSTs: they are done, and the connection breaks
        self.server: ThreadingHTTPServer | None = None
        self.port = 0
        self.up()

    # The server

    def up(self) -> None:
        """Answers, at the port of before."""
        cluster = self

        class Handler(_Handler):
            own = cluster

        ThreadingHTTPServer.allow_reuse_address = True
        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def down(self) -> None:
        """Refuses connections, and breaks those that there are."""
        assert self.server is not None
        self.server.shutdown()
        self.server.server_close()
        self.cut()

    def cut(self) -> None:
        """Breaks all connections that stream something."""
        with self.changed:
            cuts, self.cuts = self.cuts, []
        for one in cuts:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """For good."""
        with suppress(OSError):
            self.down()

    def kubeconfig(self, folder: Path, **context: str) -> Path:
        """A file for clients."""
        path = folder / "kubeconfig"
        known = {
            "apiVersion": "v1", "kind": "Config", "current-context": "ours",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "u", "user": {"token": TOKEN}}],
            "contexts": [{"name": "ours", "context": {"cluster": "c", "user": "u", "namespace": "vision", **context}}],
        }  # fmt: skip
        path.write_text(yaml.safe_dump(known))
        return path

    # Objects

    def find(self, plural: str) -> list[Object]:
        with self.changed:
            return [one for path, one in self.objects.items() if f"/{plural}/" in path]

    def put(self, path: str, thing: Object, kind: str = "MODIFIED") -> Object:
        """As it is now."""
        with self.changed:
            self.version += 1
            thing = copy.deepcopy(thing)
            thing["metadata"]["resourceVersion"] = str(self.version)
            if kind == "DELETED":
                self.objects.pop(path, None)
            else:
                self.objects[path] = thing
            self.history.append((self.version, kind, path, thing))
            self.changed.notify_all()
            return thing

    def expire(self) -> None:
        """Forgets what has changed so far, and closes watches: their versions are too old from now on."""
        with self.changed:
            self.version += 1
            self.oldest = self.version
            self.history.clear()
            self.changed.notify_all()
        self.cut()

    def create(self, path: str, thing: Object) -> Object:
        metadata = thing["metadata"]
        with self.changed:
            where = f"{path}/{metadata['name']}"
            plural = path.rpartition("/")[2]
            if where in self.objects:
                raise Refusal(409, "AlreadyExists", f'{plural} "{metadata["name"]}" already exists')
            metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": stamp(), "namespace": "vision"}
            for name, text in thing.pop("stringData", {}).items():
                thing.setdefault("data", {})[name] = base64.b64encode(text.encode()).decode()
            made = self.put(where, thing, "ADDED")
            self._reconcile()
            return made

    def patch(self, path: str, change: Object) -> Object:
        with self.changed:
            made = self.put(path, _merged(self.get(path), change))
            self._reconcile()
            return made

    def get(self, path: str) -> Object:
        if path not in self.objects:
            plural, name = path.split("/")[-2:]
            raise Refusal(404, "NotFound", f'{plural} "{name}" not found')
        return self.objects[path]

    def delete(self, path: str, options: Object) -> Object:
        with self.changed:
            thing = self.get(path)
            if "/pods/" in path:
                if options.get("gracePeriodSeconds", 30) == 0:
                    self.put(path, thing, "DELETED")
                else:
                    self._end_pod(path)
                return thing
            self._reconcile_deleted(path, thing, options)
            return thing

    def _reconcile_deleted(self, path: str, thing: Object, options: Object) -> None:
        """The garbage collector: pods first, then the job."""
        uid = thing["metadata"]["uid"]
        owned = [
            one for one, other in self.objects.items() if uid in json.dumps(other["metadata"].get("ownerReferences", []))
        ]
        thing = copy.deepcopy(thing)
        thing["metadata"] |= {"deletionTimestamp": stamp(), "finalizers": ["foregroundDeletion"]}
        self.put(path, thing)
        for one in owned:
            if "/pods/" in one:
                self._end_pod(one)
            else:
                self.put(one, self.objects[one], "DELETED")
        self._collect()

    def _end_pod(self, path: str) -> None:
        pod = self.objects.get(path)
        if pod is None or "deletionTimestamp" in pod["metadata"]:
            return
        pod = copy.deepcopy(pod)
        pod["metadata"]["deletionTimestamp"] = stamp()
        pod = self.put(path, pod)
        threading.Thread(target=self.on_stop, args=(pod,), daemon=True).start()

    def _collect(self) -> None:
        for path, thing in list(self.objects.items()):
            if "/jobs/" in path and "deletionTimestamp" in thing["metadata"] and not self.pods():
                self.put(path, thing, "DELETED")

    def _reconcile(self) -> None:
        """The Job controller: a pod for each index that has none and has not succeeded."""
        for path, job in list(self.objects.items()):
            spec = job.get("spec", {})
            over = any(one["type"] in ("Complete", "Failed") for one in job.get("status", {}).get("conditions", []))
            if "/jobs/" not in path or spec.get("suspend") or over or "deletionTimestamp" in job["metadata"]:
                continue
            for index in range(spec["completions"]):
                if any(self.index(pod) == index for pod in self.pods()):
                    continue
                if self.quota:
                    name = f"{job['metadata']['name']}-{index}-"
                    message = f'Error creating: pods "{name}" is forbidden: exceeded quota: {self.quota}'
                    self.event("FailedCreate", message, job, kind="Job")
                    continue
                self._make_pod(path, job, index)

    def _make_pod(self, path: str, job: Object, index: int) -> None:
        template = copy.deepcopy(job["spec"]["template"])
        name = f"{job['metadata']['name']}-{index}-{uuid.uuid4().hex[:5]}"
        labels = {**template["metadata"].get("labels", {}), INDEX: str(index), "job-name": job["metadata"]["name"]}
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "uid": job["metadata"]["uid"],
                 "controller": True, "blockOwnerDeletion": True}  # fmt: skip
        pod = {
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "uid": str(uuid.uuid4()), "labels": labels, "annotations": {INDEX: str(index)},
                         "creationTimestamp": stamp(), "namespace": "vision", "ownerReferences": [owner]},
            "spec": template["spec"], "status": {"phase": "Pending", "qosClass": "BestEffort"},
        }  # fmt: skip
        self.put(f"/api/v1/namespaces/vision/pods/{name}", pod, "ADDED")

    # What nodes and controllers say

    @staticmethod
    def index(pod: Object) -> int:
        return int(pod["metadata"]["annotations"][INDEX])

    def pods(self) -> list[Object]:
        """By their index."""
        return sorted(self.find("pods"), key=self.index)

    def until_pods(self, count: int) -> list[Object]:
        """As soon as there are so many."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.pods()) == count, 60), "the pods were not made"
            return self.pods()

    def say(self, pod: Object, **status: Any) -> Object:
        """Fields of a pod's status; `spec` beside them for that of the pod."""
        path = f"/api/v1/namespaces/vision/pods/{pod['metadata']['name']}"
        with self.changed:
            now = copy.deepcopy(self.objects[path])
            now["spec"] |= status.pop("spec", {})
            now["status"] |= status
            return self.put(path, now)

    def container(self, pod: Object, **state: Any) -> Object:
        """The state of its container: waiting={...}, running={...} or terminated={...}."""
        image = pod["spec"]["containers"][0]["image"]
        status = {"name": "train", "state": state, "lastState": {}, "ready": False, "restartCount": 0, "image": image,
                  "imageID": "", "started": "running" in state}  # fmt: skip
        phase = "Running" if "running" in state else "Pending"
        if "terminated" in state:
            phase = "Failed" if state["terminated"]["exitCode"] else "Succeeded"
        return self.say(pod, phase=phase, containerStatuses=[status])

    def run(self, pod: Object, node: str = "node-a") -> Object:
        pod = self.say(pod, spec={"nodeName": node}, conditions=[{"type": "PodScheduled", "status": "True"}])
        return self.container(pod, running={"startedAt": stamp()})

    def print(self, pod: Object, *lines: str, nanos: int | None = None) -> None:
        """Lines of its log."""
        with self.changed:
            log = self.logs.setdefault(pod["metadata"]["uid"], [])
            for line in lines:
                now = time.time_ns()
                when = datetime.fromtimestamp(now // 10**9, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
                log.append((f"{when}.{(now if nanos is None else nanos) % 10**9:09d}Z", line.encode()))
            self.changed.notify_all()

    def exit(self, pod: Object, code: int = 0, reason: str = "", message: str = "") -> Object:
        """Its container ends."""
        told: Object = {"exitCode": code, "reason": reason or ("Error" if code else "Completed"), "startedAt": stamp(),
                        "finishedAt": stamp()}  # fmt: skip
        return self.container(pod, terminated={**told, **({"message": message} if message else {})})

    def gone(self, pod: Object) -> None:
        """Its container has ended by SIGTERM, and it is taken away."""
        with self.changed:
            self.exit(pod, 143)
            path = f"/api/v1/namespaces/vision/pods/{pod['metadata']['name']}"
            self.put(path, self.objects[path], "DELETED")
            self._collect()
            self._reconcile()

    def finish(self, kind: str = "Complete", reason: str = "", message: str = "") -> None:
        """The job is over."""
        (job,) = self.find("jobs")
        told = {"type": kind, "status": "True", "lastTransitionTime": stamp(), "reason": reason, "message": message}
        path = f"/apis/batch/v1/namespaces/vision/jobs/{job['metadata']['name']}"
        with self.changed:
            self.put(path, {**self.objects[path], "status": {"conditions": [told]}})

    def event(self, reason: str, message: str, about: Object, kind: str = "Pod", type: str = "Warning") -> None:
        name, now = f"{about['metadata']['name']}.{uuid.uuid4().hex[:16]}", stamp()
        event = {
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": "vision", "creationTimestamp": now},
            "involvedObject": {"kind": kind, "name": about["metadata"]["name"], "uid": about["metadata"]["uid"],
                               "namespace": "vision"},
            "reason": reason, "message": message, "type": type, "count": 1, "firstTimestamp": now, "lastTimestamp": now,
        }  # fmt: skip
        self.put(f"/api/v1/namespaces/vision/events/{name}", event, "ADDED")


class _Handler(BaseHTTPRequestHandler):
    own: OwnCluster
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        def post(path: str, query: dict[str, str]) -> Object:
            body = self._body()
            made = self.own.create(path, body)
            if self.own.lose_answers:
                self.own.lose_answers -= 1
                raise ConnectionResetError
            return made

        self._answer(post, 201)

    def do_PATCH(self) -> None:
        self._answer(lambda path, query: self.own.patch(path, self._body()))

    def do_DELETE(self) -> None:
        self._answer(lambda path, query: self.own.delete(path, self._body()))

    def _body(self) -> Object:
        length = int(self.headers.get("Content-Length") or 0)
        return json.loads(self.rfile.read(length) or b"{}")

    def _answer(self, what: Callable[[str, dict[str, str]], Object | None], code: int = 200) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self.own.requests.append((self.command, self.path))
        try:
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                raise Refusal(401, "Unauthorized", "Unauthorized")
            plural = next((part for part in re.findall(r"/vision/([a-z]+)", parts.path)), "")
            if parts.path.endswith("/log"):
                plural = "pods/log"
            if (self.command, plural) in self.own.forbidden:
                verb = {"GET": "list", "POST": "create"}.get(self.command, self.command.lower())
                message = f'{plural} is forbidden: User "eva" cannot {verb} resource "{plural}" in the namespace "vision"'
                raise Refusal(403, "Forbidden", message)
            told = what(parts.path, query)
        except Refusal as refusal:
            code, told = refusal.code, refusal.body
        except ConnectionResetError:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        if told is not None:
            data = json.dumps(told).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    def _get(self, path: str, query: dict[str, str]) -> Object | None:
        own = self.own
        if path in own.answers:
            return own.answers[path]
        if path.endswith("/log"):
            return self._log(path.removesuffix("/log"), query)
        if path.startswith("/apis/") and path.count("/") == 2:
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        if not re.search(r"/(pods|jobs|events|configmaps|secrets|services)$", path):
            return own.get(path)
        if query.get("watch") == "true":
            return self._watch(path, query)
        with own.changed:
            items = [one for where, one in own.objects.items() if where.startswith(f"{path}/") and _selected(one, query)]
            return {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": str(own.version)}, "items": items}

    def _stream(self) -> None:
        with self.own.changed:
            self.own.cuts.append(self.connection)
        self.close_connection = True
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _watch(self, path: str, query: dict[str, str]) -> None:
        own, seen = self.own, int(query["resourceVersion"])
        end = time.monotonic() + int(query["timeoutSeconds"])
        self._stream()
        with suppress(OSError):
            while time.monotonic() < end:
                with own.changed:
                    if seen < own.oldest:
                        gone = Refusal(410, "Expired", f"too old resource version: {seen} ({own.oldest})").body
                        self._chunk(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
                        break
                    news = [one for one in own.history if one[0] > seen]
                    if not news:
                        own.changed.wait(0.2)
                        if self.connection not in own.cuts:
                            return
                        continue
                for version, kind, where, thing in news:
                    seen = version
                    if where.startswith(f"{path}/") and _selected(thing, query):
                        self._chunk(json.dumps({"type": kind, "object": thing}).encode() + b"\n")
            self._chunk(b"")

    def _log(self, path: str, query: dict[str, str]) -> None:
        own = self.own
        pod = own.get(path)
        state = pod["status"].get("containerStatuses", [{"state": {}}])[0]["state"]
        if not {"running", "terminated"} & set(state):
            name = pod["metadata"]["name"]
            raise Refusal(400, "BadRequest", f'container "train" in pod "{name}" is waiting to start: ContainerCreating')
        self._stream()
        with suppress(OSError):
            for stamp_of, line in self._lines(path, pod, query):
                self._chunk(f"{stamp_of} ".encode() + line + b"\n")
            self._chunk(b"")

    def _lines(self, path: str, pod: Object, query: dict[str, str]) -> Iterator[tuple[str, bytes]]:
        own, number, since = self.own, 0, query.get("sinceTime", "")[:19]
        while True:
            with own.changed:
                lines = own.logs.get(pod["metadata"]["uid"], [])[number:]
                state = own.objects.get(path, pod)["status"]["containerStatuses"][0]["state"]
                over = "running" not in state or path not in own.objects or query["follow"] == "false"
                if not lines and not over:
                    own.changed.wait(0.2)
                    if self.connection not in own.cuts:
                        return
            for when, line in lines:
                number += 1
                if when[:19] >= since:
                    yield when, line
            if not lines and over:
                return


def _selected(thing: Object, query: dict[str, str]) -> bool:
    metadata = thing["metadata"]
    label, _, value = query.get("labelSelector", "").partition("=")
    if label and metadata.get("labels", {}).get(label) != value:
        return False
    field = query.get("fieldSelector", "").partition("metadata.name=")[2]
    return not field or metadata["name"] == field


def _merged(thing: Object, change: Object) -> Object:
    result = copy.deepcopy(thing)
    for name, value in change.items():
        result[name] = _merged(result.get(name, {}), value) if isinstance(value, dict) else value
    return result
