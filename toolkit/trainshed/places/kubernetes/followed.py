"""Follows a job in a cluster: one loop over its pods' lines, their states, events and our own signals."""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from trainshed.base.files import write_atomic
from trainshed.base.units import duration
from trainshed.machine.signals import STOP_SIGNALS, SignalPipe
from trainshed.runner.display.screen import Screen
from trainshed.runner.files.grace import CLUSTER_REPORT_SECONDS, KILL_SECONDS
from trainshed.runner.files.metrics import Metrics
from trainshed.runner.files.run import Run

from . import pod_words
from .api_server import ApiServer, ApiServerUnreachable, KubernetesError, Refused
from .cluster_wishes import ClusterOptions
from .manifests import RUN_LABEL
from .pod_log import Mark, PodLines, PodLog
from .pod_words import NEVER, SELDOM, PodEnd
from .watched import Answered, Listed, ObjectChange, Watched

MOST_TIMES = 10_000  # of lines of a log that are noted
NOTE_SECONDS = 1.0  # between two notes of how far logs were read
LOOK_SECONDS = 0.2  # between two turns
LATE_SECONDS = 30.0  # without a line once the job is over
GONE_SECONDS = 20.0  # that killed pods may take to be gone
SILENT_SECONDS = 3600.0  # that the API server may be away
MOST_WAITING = 256  # blocks of lines that are read ahead
SEEN = "kubernetes/seen.json"  # below the run's folder: how far which log was read
JOB, PODS, EVENTS = "job", "pods", "events"


@dataclass(frozen=True)
class ClusterJob:
    """The place of the job: `/apis/batch/v1/namespaces/NAMESPACE/jobs`, its name, its folder of results on volumes."""

    path: str
    name: str
    folder: str = ""

    @property
    def url(self) -> str:
        """The job's own path."""
        return f"{self.path}/{self.name}"


@dataclass(frozen=True)
class JobEnd:
    """How it ended.

    job: its last state, None where it is gone. pods: the last pod of each host that had one, by index.
    stop_signal: the first that came to us. given_up: why nobody waits any more, "" where the cluster has ended it.
    """

    job: dict[str, Any] | None
    pods: dict[int, PodEnd]
    stop_signal: int = 0
    given_up: str = ""
    seconds: float = 0.0


@dataclass
class _Pod:
    """A pod as it is known here."""

    item: dict[str, Any]
    index: int
    log: PodLog | None = None
    end: PodEnd | None = None
    gone: bool = False
    read: bool = False  # all that it has printed
    said: str = ""


class Followed:
    """The state of the loop; `to_the_end` runs it.

    Args:
        fresh: whether nobody has followed it before.
        changed: called with what `status.json` is to say, (phase, message), whenever that is something new.
    """

    def __init__(
        self,
        run: Run,
        place: ClusterJob,
        api: ApiServer,
        options: ClusterOptions,
        screen: Screen,
        metrics: Metrics,
        signals: SignalPipe,
        changed: Callable[[str, str], None],
        fresh: bool = True,
    ) -> None:
        self.run, self.place, self.api, self.options = run, place, api, options
        self.screen, self.metrics, self.signals, self.changed = screen, metrics, signals, changed
        self.news: queue.Queue[object] = queue.Queue(MOST_WAITING)
        self.woken, self.waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.moved = 0.0  # when the last line came
        self.job: dict[str, Any] | None = None
        self.job_gone = False
        self.pods: dict[str, _Pod] = {}
        self.events: set[str] = set()
        self.told_events = fresh  # else those of before are history
        self.stuck: dict[str, tuple[float, str]] = {}  # uid -> since when, why
        self.state = ("", "")
        self.away: dict[str, float] = {}  # what cannot be asked -> since when
        self.refused: set[str] = set()
        self.stop_signal = 0
        self.deleted = False  # whether we have had the cluster end it
        self.kill_at: float | None = None
        self.killed_at: float | None = None
        self.given_up = ""
        self.seen = LogPositions(run)

    def to_the_end(self) -> JobEnd:
        """Until the job is over and everything it printed has been passed on.

        Raises:
            KubernetesError: the cluster cannot be asked any more.
        """
        start = time.monotonic()
        selector = {"labelSelector": f"{RUN_LABEL}={self.run.id}"}
        core = f"/api/v1/namespaces/{self.api.namespace}"
        one = {"fieldSelector": f"metadata.name={self.place.name}"}
        watched = [
            Watched(self.api, JOB, self.place.path, one, self._put),
            Watched(self.api, PODS, f"{core}/pods", selector, self._put),
            Watched(self.api, EVENTS, f"{core}/events", {}, self._put),
        ]
        for thread in watched:
            thread.start()
        try:
            late: float | None = None
            while True:
                self._take()
                self._act()
                self._tell_state()
                if self._over():
                    if late is None:
                        late = time.monotonic()
                        self._last_look(f"{core}/pods", selector)
                    if self._all_read() or time.monotonic() - max(late, self.moved) > LATE_SECONDS:
                        break
                self.seen.note()
                self._wait()
            self._take()
            self.seen.note(last=True)
        finally:
            for thread in watched:
                thread.close()
            for log in [pod.log for pod in self.pods.values() if pod.log is not None]:
                log.close()
            self._unblock()
            os.close(self.woken)  # not the other end: a thread may still use it
        ends = {pod.index: pod.end or pod_words.lost_end(pod.item) for pod in self._last_pods()}
        job = None if self.job_gone else self.job
        return JobEnd(job, ends, self.stop_signal, self.given_up, time.monotonic() - start)

    # What the threads have seen

    def _take(self) -> None:
        while not self.screen.full:
            try:
                seen = self.news.get_nowait()
            except queue.Empty:
                break
            if isinstance(seen, PodLines):
                self._lines(seen)
            elif isinstance(seen, Answered):
                self._answered(seen)
            elif isinstance(seen, Listed):
                self._listed(seen)
            elif isinstance(seen, ObjectChange):
                self._changed(seen.kind, seen.item, seen.deleted)
        self.screen.flush()

    def _last_look(self, path: str, query: dict[str, str]) -> None:
        """How the pods are now that the job is over: the watches do not wait for each other."""
        with suppress(KubernetesError):
            self._listed(Listed(PODS, tuple(self.api.ask("GET", path, query).get("items") or ())))

    def _put(self, seen: object) -> None:
        """For threads: hands something to the loop, and wakes it."""
        self.news.put(seen)
        with suppress(OSError):  # it is awake already, or over
            os.write(self.waker, b"x")

    def _listed(self, listed: Listed) -> None:
        items = listed.items
        if listed.kind == EVENTS and not self.told_events:
            self.told_events, items = True, ()
        for item in items:
            self._changed(listed.kind, item, False)
        if listed.kind == JOB and not items:
            self.job_gone = True
        if listed.kind == PODS:
            there = {pod_words.uid_of(item) for item in items}
            for uid, pod in self.pods.items():
                if uid not in there and not pod.gone:
                    self._changed(PODS, pod.item, True)

    def _changed(self, kind: str, item: dict[str, Any], deleted: bool) -> None:
        if kind == JOB:
            self.job, self.job_gone = item, deleted
        elif kind == EVENTS:
            if not deleted:
                self._event(item)
        else:
            self._pod(item, deleted)

    def _pod(self, item: dict[str, Any], deleted: bool) -> None:
        uid, index = pod_words.uid_of(item), pod_words.index_of(item)
        if index is None or not uid:
            return
        pod = self.pods.get(uid)
        if pod is None:
            earlier = [one for one in self.pods.values() if one.index == index]
            pod = self.pods[uid] = _Pod(item, index)
            if earlier and not deleted:
                self.screen.say(f"{self._name(index)} starts again, as pod {pod_words.name_of(item)}")
        pod.item, pod.gone = item, deleted
        if pod.end is None:
            pod.end = pod_words.end_of(item) or (pod_words.lost_end(item) if deleted else None)
            if pod.end is not None and pod.end.words and pod.end.words != pod.said:
                pod.said = pod.end.words
                self.screen.say(f"{self._name(index)}: {pod.end.words}")
        if pod.log is None and pod_words.has_log(item):
            mark = self.seen.marks.get(uid, Mark())
            pod.log = PodLog(self.api, pod_words.name_of(item), uid, mark, self._put)
            pod.log.start()
        if pod.log is not None and (pod.end is not None or deleted):
            pod.log.ended.set()
        trouble = pod_words.trouble_of(item) if pod.end is None and not pod_words.is_running(item) else None
        if trouble is None or trouble.lasting < SELDOM:
            if pod_words.has_log(item) or pod.end is not None:
                self.stuck.pop(uid, None)
        else:
            since = self.stuck.get(uid, (time.monotonic(), ""))[0]
            self.stuck[uid] = (since, f"{self._name(index)}: {trouble.words}")
            if trouble.lasting == NEVER:
                self._give_up(self.stuck[uid][1])
        if trouble is None and pod.end is None:
            trouble = pod_words.trouble_of(item)  # a pod that still runs and is to be taken away
        if trouble is not None and trouble.words != pod.said and not self.deleted:
            pod.said = trouble.words
            self.screen.say(f"{self._name(index)}: {trouble.words}")

    def _event(self, item: dict[str, Any]) -> None:
        kind, name, uid = pod_words.about(item)
        name_of_job = self.place.name
        ours = name == name_of_job or name.startswith(f"{name_of_job}-") or (kind == "Workload" and name_of_job in name)
        words = pod_words.event_words(item) if ours and not self.deleted else ""
        if not words:
            return
        pod = self.pods.get(uid)  # not known yet where its event was faster
        index = pod_words.index_in(name) if kind == "Pod" else None
        said = words if index is None else f"{self._name(index)}: {words}"
        waits = pod is None or (pod.end is None and not pod_words.has_log(pod.item))
        if waits and pod_words.event_is_stuck(item):
            self.stuck.setdefault(uid, (time.monotonic(), said))
        if said not in self.events and (pod is None or pod.said != words):
            self.events.add(said)
            self.screen.say(said)

    def _lines(self, lines: PodLines) -> None:
        pod = self.pods[lines.uid]
        pod.read = pod.read or lines.over
        with open(self.run.log(self._name(pod.index)), "ab") as file:
            file.write(lines.data)
            size = file.tell()
        if lines.mark is not None:
            self.seen.marks[lines.uid], self.seen.sizes[self._name(pod.index)] = lines.mark, size
        if not lines.data:
            return
        self.moved = time.monotonic()
        self.metrics.scan(lines.data)
        self.screen.lines(self._tagged(pod.index, lines.data), error=False)

    def _tagged(self, index: int, data: bytes) -> bytes:
        if len(self.run.hosts) < 2:
            return data
        tag = b"[" + self._name(index).encode()
        return b"".join(line if line.startswith(tag) else tag + b"] " + line for line in data.splitlines(keepends=True))

    def _answered(self, answered: Answered) -> None:
        kind, problem = answered.kind, answered.problem
        if problem is None:
            since = self.away.pop(kind, None)
            if since is not None and not self.away:
                self.screen.say(f"the API server is back after {duration(time.monotonic() - since)}")
        elif isinstance(problem, ApiServerUnreachable):
            if not self.away:
                self.screen.say(f"{problem.message}: the job goes on in the cluster; trying again")
            since = self.away.setdefault(kind, time.monotonic())
            if time.monotonic() - since > SILENT_SECONDS:
                raise problem
        elif kind == EVENTS:  # the pods' own states say most of it
            if kind not in self.refused:
                self.screen.say(f"note: events cannot be read: {problem.message}")
            self.refused.add(kind)
        else:
            raise problem

    # What is to be done

    def _act(self) -> None:
        now = time.monotonic()
        if not self.deleted and not self.stop_signal:
            for since, words in self.stuck.values():
                if now - since >= self.options.start_seconds:
                    self._give_up(f"{words} (for {duration(now - since)})")
                    break
        if (self.stop_signal or self.given_up) and not self.deleted:
            self._delete()
        if self.kill_at is not None and now >= self.kill_at and self.killed_at is None:
            self.screen.say("the pods did not end in time: killing them")
            self._kill(0)
        if self.killed_at is not None and now - self.killed_at > GONE_SECONDS and not self.job_gone:
            self.job_gone = True  # nobody in the cluster takes it away: what more can be done?
            self.screen.say(f"warning: the cluster has not ended {self.place.name}; look at: kubectl get pods -n "
                            f"{self.api.namespace} -l {RUN_LABEL}={self.run.id}")  # fmt: skip

    def _give_up(self, words: str) -> None:
        if not self.given_up and not self.stop_signal:
            self.given_up = words
            self.screen.say(f"{words}: giving up")

    def _delete(self) -> None:
        """Has the cluster end the job and its pods, with their grace; again at the next turn where it cannot be asked."""
        try:
            delete(self.api, self.place)
        except ApiServerUnreachable:
            return
        self.deleted = True
        grace = self.run.job.grace_seconds if not self.given_up else 0.0
        if self.kill_at is None:
            self.kill_at = time.monotonic() + grace + CLUSTER_REPORT_SECONDS + KILL_SECONDS

    def _kill(self, grace: int) -> None:
        self.killed_at = time.monotonic()
        for pod in self.pods.values():
            if not pod.gone:
                path = f"/api/v1/namespaces/{self.api.namespace}/pods/{pod_words.name_of(pod.item)}"
                # Its uid, so that no later pod of the name is meant.
                body = {"gracePeriodSeconds": grace, "preconditions": {"uid": pod_words.uid_of(pod.item)}}
                with suppress(KubernetesError):
                    self.api.ask("DELETE", path, body=body)

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self.signals.fd, select.POLLIN)
        poll.register(self.woken, select.POLLIN)
        for fd in self.screen.waiting:
            poll.register(fd, select.POLLOUT)
        # A screen that takes nothing more is waited for, whatever has come.
        poll.poll(LOOK_SECONDS * 1000 if self.news.empty() or self.screen.full else 0)
        with suppress(BlockingIOError):
            os.read(self.woken, 1 << 16)
        for number in self.signals.take():
            if number in STOP_SIGNALS:
                self._stop(number)

    def _stop(self, number: int) -> None:
        """A stop signal from outside: the first has the pods end with their grace, Ctrl-C again kills them."""
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        if not self.stop_signal:
            self.stop_signal = number
            grace = duration(self.run.job.grace_seconds)
            self.screen.say(f"{name}: stopping {self.place.name}; the script has {grace} to end. Ctrl-C again kills it")
            self.changed("Stopping", f"stopped by {name}")
        elif number == signal.SIGINT and self.killed_at is None:
            self.screen.say(f"{name}: killing the pods")
            self._kill(1)

    # How it stands

    def _over(self) -> bool:
        if self.job_gone:
            return True
        return self.job is not None and ended(self.job) is not None and not self.stop_signal

    def _all_read(self) -> bool:
        return self.news.empty() and all(pod.read for pod in self.pods.values() if pod.log is not None)

    def _last_pods(self) -> list[_Pod]:
        """The newest pod of each host."""
        newest: dict[int, _Pod] = {}
        for pod in self.pods.values():
            newest[pod.index] = pod
        return [newest[index] for index in sorted(newest)]

    def _tell_state(self) -> None:
        if self.stop_signal or self.job is None or self._over():
            self.screen.status(" · ".join(["ending", *self.metrics.now()]))
            return
        pods = self._last_pods()
        running = [pod for pod in pods if pod_words.is_running(pod.item) and not pod.gone]
        done = [pod for pod in pods if pod.end is not None and pod.end.code == 0]
        counted = False
        if (running or done) and len(running) + len(done) == len(self.run.hosts):
            nodes = list(dict.fromkeys(pod_words.node_of(pod.item) for pod in running))
            now = ("Training", f"Running on {', '.join(nodes)}") if not done else self.state
        elif (self.job.get("spec") or {}).get("suspend"):
            now = ("Pending", f"waits in the queue {self.options.queue}" if self.options.queue else "suspended")
        else:
            troubles = [pod_words.trouble_of(pod.item) for pod in pods if pod.end is None]
            why = next((trouble.words for trouble in troubles if trouble is not None), "")
            counted = True
            now = ("Pending", why or f"{len(running) + len(done)} of {len(self.run.hosts)} pods run")
        if now != self.state:
            if now[0] != self.state[0] and not counted:  # what is wrong with a pod was told
                self.screen.say(f"{self.place.name}: {now[1][:1].lower()}{now[1][1:]}")
            self.state = now
            self.changed(*now)
        self.screen.status(" · ".join([now[1], *self.metrics.now()]))

    def _name(self, index: int) -> str:
        return self.run.hosts[index].name if index < len(self.run.hosts) else f"pod {index}"

    def _unblock(self) -> None:
        """Lets threads that wait for room go."""
        with suppress(queue.Empty):
            while True:
                self.news.get_nowait()


def delete(api: ApiServer, place: ClusterJob) -> bool:
    """Has the cluster end a job with its pods and all that it owns; False where there is none. Raises KubernetesError."""
    try:
        api.ask("DELETE", place.url, body={"propagationPolicy": "Foreground"})
    except Refused as error:
        if error.code != 404:
            raise
        return False
    return True


def ended(job: dict[str, Any]) -> tuple[bool, str, str] | None:
    """(whether it succeeded, reason, message) of a Job or JobSet that is over; None while it is not."""
    for kind in ("Complete", "Completed"):
        if pod_words.condition(job, kind) is not None:
            return True, "", ""
    failed = pod_words.condition(job, "Failed")
    return None if failed is None else (False, str(failed.get("reason") or ""), str(failed.get("message") or ""))


def _mark(times: list[list[int]]) -> Mark:
    return Mark({int(time): int(count) for time, count in times})


class LogPositions:
    """How far the logs were read, on disk: who takes a run up goes on from there, with logs cut to what was noted then."""

    def __init__(self, run: Run) -> None:
        self.path = f"{run.folder}/{SEEN}"
        self.marks: dict[str, Mark] = {}  # by the pods' uids
        self.sizes: dict[str, int] = {}  # bytes of each host's log
        self.noted = (0.0, "")
        try:
            with open(self.path, encoding="utf-8") as file:
                told = json.load(file)
            self.marks = {str(uid): _mark(times) for uid, times in told["marks"].items()}
            self.sizes = {str(name): int(size) for name, size in told["sizes"].items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            self.marks, self.sizes = {}, {}
        for host in run.hosts:
            with suppress(OSError):
                if os.path.getsize(run.log(host.name)) > self.sizes.get(host.name, 0):
                    os.truncate(run.log(host.name), self.sizes.get(host.name, 0))

    def note(self, *, last: bool = False) -> None:
        """Writes it, now and then."""
        now = time.monotonic()
        if now - self.noted[0] < NOTE_SECONDS and not last:
            return
        marks = {uid: list(mark.times.items())[-MOST_TIMES:] for uid, mark in self.marks.items()}
        text = json.dumps({"marks": marks, "sizes": self.sizes})
        if text != self.noted[1]:
            with suppress(OSError):
                write_atomic(self.path, text)
        self.noted = (now, text)
