"""Objects of one kind, kept up to date by a thread: listed once, watched from there on, listed again where that breaks.

What it sees goes into the queue of the one loop that follows the job. A watch may end at any time: the server closes it
after a while, a version that is too old is `410 Gone`, a connection breaks in the middle of a line. Nothing is lost by that:
the next list says what is there, and what is not is gone.

Source: "Efficient detection of changes", in the API concepts of Kubernetes.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .api_server import ApiServer, ApiServerUnreachable, KubernetesError, Refused, ResponseStream

WATCH_SECONDS = 240  # after which the server ends a watch
SILENT_SECONDS = WATCH_SECONDS + 30.0
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 8.0  # seconds between two tries
_GONE = 410


@dataclass(frozen=True)
class Listed:
    """All objects that there are. kind: whose."""

    kind: str
    items: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class ObjectChange:
    """One object as it is now, or as it was last before it was deleted."""

    kind: str
    item: dict[str, Any]
    deleted: bool = False


@dataclass(frozen=True)
class Answered:
    """The API server answers; or it does not, and why. Refused problems are those of this kind alone."""

    kind: str
    problem: KubernetesError | None = None


class Watched(threading.Thread):
    """One kind.

    Args:
        path, query: where its objects are.
        put: gets what is seen; may block.
    """

    def __init__(
        self, api: ApiServer, kind: str, path: str, query: Mapping[str, str], put: Callable[[object], None]
    ) -> None:
        super().__init__(daemon=True, name=f"watch {kind}")
        self.api, self.kind, self.path, self.query, self.put = api, kind, path, dict(query), put
        self.over = threading.Event()
        self.current: ResponseStream | None = None

    def run(self) -> None:
        """Until `close`."""
        pause = FIRST_PAUSE
        while not self.over.is_set():
            try:
                listed = self.api.ask("GET", self.path, self.query)
                version = str((listed.get("metadata") or {}).get("resourceVersion") or "")
                self.put(Listed(self.kind, tuple(listed.get("items") or ())))
                self.put(Answered(self.kind))
                pause = FIRST_PAUSE
                while version and not self.over.is_set():
                    version = self._watch(version)
            except Refused as error:
                if error.code != _GONE:
                    self._tell(error)
            except ApiServerUnreachable as error:
                self._tell(error)
            self.over.wait(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def close(self) -> None:
        """Ends it soon."""
        self.over.set()
        if self.current is not None:
            self.current.end()

    def _tell(self, error: KubernetesError) -> None:
        if not self.over.is_set():
            self.put(Answered(self.kind, error))

    def _watch(self, version: str) -> str:
        """One watch; the version to go on from, "" where everything has to be listed again. Raises KubernetesError."""
        query = {
            **self.query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        seen = version
        with self.api.stream(self.path, query, SILENT_SECONDS) as stream:
            self.current = stream
            try:
                for line in (line for block in stream.blocks() for line in block):
                    change = _parsed(line)
                    item = change.get("object")
                    if change.get("type") == "ERROR" or not isinstance(item, dict):
                        return ""
                    seen = str((item.get("metadata") or {}).get("resourceVersion") or seen)
                    if change["type"] != "BOOKMARK":
                        self.put(ObjectChange(self.kind, item, change["type"] == "DELETED"))
            finally:
                self.current = None
        if seen == version:  # closed at once: not again without a pause
            self.over.wait(FIRST_PAUSE)
        return seen


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        change = json.loads(line)
    except ValueError:
        return {}
    return change if isinstance(change, dict) else {}
