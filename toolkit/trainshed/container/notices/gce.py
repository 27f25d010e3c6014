"""Google Compute Engine: `preempted` turns TRUE, thirty seconds before the machine ends.

Source: Compute Engine documentation, "Preemptible VM instances" and "View and query VM metadata" (wait_for_change).
"""

from __future__ import annotations

from .http import ask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_WAIT = 60  # seconds that the service may hold a question open
_NOTICE = 30.0  # seconds between the announcement and the end


class Gce:
    """Asks one question, which the service answers when the value changes."""

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
