"""Polls the platforms' metadata services, one daemon thread each; stops polling one that cannot be reached.

A thread owns its source, and hands what it finds to `announce`, which has to be safe to call from any thread.
"""

from __future__ import annotations

import calendar
import json
import threading
import time

from trainshed.contract.wire.variables import AZURE_METADATA

from .http import Reply, ask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Announce = Callable[[str, str, bool, "float | None"], None]


_WAIT = 60  # seconds that the service may hold a question open
_NOTICE = 30.0  # seconds between the announcement and the end


class Gce:
    """Google's `preempted`, thirty seconds before the end: one question, which the service answers when the value changes.

    Source: Compute Engine documentation, "Preemptible VM instances" and "View and query VM metadata" (wait_for_change).
    """

    seconds = 1.0
    nothing_to_watch = False

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._endpoint = environ.get("GCE_METADATA_HOST") or "metadata.google.internal"
        self._etag = "0"  # answered at once, with the value as it is

    def poll(self, now: float) -> list[tuple[str, str, bool, float | None]]:
        """Returns announcements: (source, reason, stop, deadline). Raises OSError without a usable service."""
        query = f"wait_for_change=true&timeout_sec={_WAIT}&last_etag={self._etag}"
        path = f"/computeMetadata/v1/instance/preempted?{query}"
        reply = ask(self._endpoint, path, {"Metadata-Flavor": "Google"}, timeout=_WAIT + 10)
        if reply.status != 200:
            raise OSError(f"the metadata service answers {reply.status}")
        self._etag = reply.etag or "0"
        if reply.body.strip().upper() != "TRUE":
            return []
        import time

        return [("gce", "Google preempts this machine in 30 s", True, time.time() + _NOTICE)]


_DATA = "/latest/meta-data"


class Ec2:
    """EC2's interruption notice (two minutes) and rebalance recommendation (earlier, if at all): asked every five seconds,
    as the guide advises, and only once on a machine that is not a spot instance.

    Source: EC2 User Guide, "Spot Instance interruption notices", "EC2 instance rebalance recommendations", IMDSv2.
    """

    seconds = 5.0

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._endpoint = environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or "http://169.254.169.254"
        self._token = ""
        self._spot: bool | None = None
        self._rebalanced = False

    @property
    def nothing_to_watch(self) -> bool:
        """Tells whether this machine is known not to be a spot instance."""
        return self._spot is False

    def poll(self, now: float) -> list[tuple[str, str, bool, float | None]]:
        """Returns announcements: (source, reason, stop, deadline). Raises OSError or ValueError without a usable service."""
        if self._spot is None:
            life_cycle = self._get("/instance-life-cycle")
            self._spot = life_cycle is None or life_cycle.strip() == "spot"
            if not self._spot:
                return []
        announcements: list[tuple[str, str, bool, float | None]] = []
        if not self._rebalanced and self._get("/events/recommendations/rebalance") is not None:
            self._rebalanced = True
            reason = "EC2 says that this spot instance is at elevated risk (rebalance recommendation)"
            announcements.append(("ec2-rebalance", reason, False, None))
        action = self._get("/spot/instance-action")
        if action is not None:
            notice = json.loads(action)
            deadline = calendar.timegm(time.strptime(notice["time"], "%Y-%m-%dT%H:%M:%SZ"))
            reason = f"EC2 will {notice['action']} this spot instance in {max(0, deadline - now):.0f} s"
            announcements.append(("ec2", reason, True, float(deadline)))
        return announcements

    def _get(self, path: str) -> str | None:
        """A metadata value; None if it does not exist (404)."""
        for _ in range(2):
            if not self._token:
                lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "21600"}
                self._token = _good(ask(self._endpoint, "/latest/api/token", lifetime, method="PUT")).body
            reply = ask(self._endpoint, _DATA + path, {"X-aws-ec2-metadata-token": self._token})
            if reply.status == 404:
                return None
            if reply.status != 401:
                return _good(reply).body
            self._token = ""  # it has expired
        raise OSError("the metadata service refuses its own token")


def _good(reply: Reply) -> Reply:
    if reply.status != 200:
        raise OSError(f"the metadata service answers {reply.status}")
    return reply


_ENDS = ("Preempt", "Terminate", "Reboot", "Redeploy")  # Freeze pauses the machine for some seconds: nothing to save from
_HEADERS = {"Metadata": "true"}


class Azure:
    """Azure's scheduled events, asked for once a second: a preemption may leave no more than thirty.

    Source: Azure documentation, "Azure Metadata Service: Scheduled Events for Linux VMs".
    """

    seconds = 1.0
    nothing_to_watch = False

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._endpoint = environ.get(AZURE_METADATA) or "http://169.254.169.254"
        self._name: str | None = None
        self._timeout = 130.0  # the first question switches the service on, which takes up to two minutes

    def poll(self, now: float) -> list[tuple[str, str, bool, float | None]]:
        """Returns announcements: (source, reason, stop, deadline). Raises OSError or ValueError without a usable service."""
        if self._name is None:
            reply = ask(self._endpoint, "/metadata/instance/compute/name?api-version=2021-02-01&format=text", _HEADERS)
            self._name = reply.body.strip() if reply.status == 200 else ""
        reply = ask(self._endpoint, "/metadata/scheduledevents?api-version=2020-07-01", _HEADERS, timeout=self._timeout)
        if reply.status != 200:
            raise OSError(f"the metadata service answers {reply.status}")
        self._timeout = 5.0
        for event in json.loads(reply.body)["Events"]:
            names = event.get("Resources") or []
            if event["EventType"] not in _ENDS or (self._name and names and self._name not in names):
                continue
            written = event.get("NotBefore") or ""
            deadline = None
            if written:  # empty once the event has begun
                deadline = float(calendar.timegm(time.strptime(written, "%a, %d %b %Y %H:%M:%S GMT")))
            left = f" in {max(0.0, deadline - now):.0f} s" if deadline else " now"
            return [("azure", f"Azure ends this machine{left} ({event['EventType']})", True, deadline)]
        return []


SOURCES = {"ec2": Ec2, "gce": Gce, "azure": Azure}
PATIENCE = 3  # failures in a row after which a service is out of reach (IMDS behind a hop limit, a firewall)


def start(names: list[str], environ: Mapping[str, str], announce: Announce) -> None:
    """Starts a thread for each platform. The threads end with the process.

    Args:
        names: some of `ec2`, `gce`, `azure`.
        announce: takes (source, reason, whether to stop, deadline in seconds since the epoch or None).
    """
    for name in names:
        source = SOURCES[name](environ)
        threading.Thread(target=follow, args=(source, announce), name=f"notices-{name}", daemon=True).start()


def follow(source: Ec2 | Gce | Azure, announce: Announce, pause: Callable[[float], None] = time.sleep) -> None:
    """Polls one source until it has announced the end, has nothing to watch, or cannot be reached."""
    failures = 0
    while failures < PATIENCE:
        try:
            announcements = source.poll(time.time())
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
        ):  # no service, or an unknown one
            failures += 1
            announcements = []
        else:
            failures = 0
        for source_name, reason, stop, deadline in announcements:
            announce(source_name, reason, stop, deadline)
            if stop:
                return
        if source.nothing_to_watch:
            return
        pause(source.seconds)
