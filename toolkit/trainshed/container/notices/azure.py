"""Azure scheduled events: `Preempt` (spot, thirty seconds at least), `Terminate`, `Reboot` and `Redeploy`.

Source: Azure documentation, "Azure Metadata Service: Scheduled Events for Linux VMs".
"""

from __future__ import annotations

import calendar
import json
import time

from trainshed.contract.wire.variables import AZURE_METADATA

from .http import ask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_ENDS = ("Preempt", "Terminate", "Reboot", "Redeploy")  # Freeze pauses the machine for some seconds: nothing to save from
_HEADERS = {"Metadata": "true"}


class Azure:
    """Asks once a second: a preemption may leave no more than thirty."""

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
