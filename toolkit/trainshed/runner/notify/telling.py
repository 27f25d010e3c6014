"""What is told of a run, and when. A process beside the runner sends it, and outlives it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from trainshed.base.errors import one_line
from trainshed.base.secrets import mask_leaves
from trainshed.base.units import duration
from trainshed.contract.wire.findings import Finding, findings_in

from ..job.fields import EVENTS
from ..job.job import Notify

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LOOK_SECONDS = 5.0  # between two looks at what rules have found
MOST_FINDINGS = 20  # of a run that are told
MOST_METRICS = 5
LONGEST = 1000  # characters of a field
_WORDS = {"start": "has started", "failure": "has failed", "interruption": "was interrupted", "rule": "a rule has fired"}


class Telling:
    """Tells of one run or tuning job.

    Args:
        log: the file that says what could not be sent; "" for none.
        secrets: values that are masked in what is told.
    """

    def __init__(self, ways: Iterable[Notify], name: str, folder: str, log: str = "", secrets: tuple[str, ...] = ()) -> None:
        self._ways, self._secrets = tuple(ways), secrets
        self._about = {"name": name, "folder": folder}
        self._log = log
        self._found: dict[tuple[str, str], None] = {}
        self._looked = 0.0

    def tell(self, event: str, state: str, reason: str = "", started: float = 0.0, metrics: str = "") -> None:
        """Sends a notice by all ways that ask for the event; returns at once, whatever becomes of it.

        Args:
            state: how it stands, in the platform's words.
            reason: why, or what was found.
            started: seconds since 1970, 0 where nobody knows.
        """
        ways = [way for way in self._ways if event in (way.on or EVENTS)]
        if not ways:
            return
        took = duration(max(0.0, time.time() - started)) if started else ""
        said = {**self._about, "event": event, "state": state, "reason": _first(reason), "took": took, "metrics": metrics}
        said = {name: text[:LONGEST] for name, text in mask_leaves(said, self._secrets).items()}
        said["title"] = f"{said['name']}: {_WORDS.get(event, state.lower())}"
        rows = (said["title"], said["reason"], said["metrics"], f"after {took}" if took else "", said["folder"])
        _start({"ways": [vars(way) for way in ways], "notice": {**said, "text": "\n".join(filter(None, rows))}}, self._log)

    def look(self, outputs: Iterable[str], state: str, *, now: bool = False) -> None:
        """Tells what rules have found since the last time; looks now and then, or `now`."""
        if not self._ways or not (now or time.monotonic() - self._looked >= LOOK_SECONDS):
            return
        self._looked = time.monotonic()
        for finding in (one for output in outputs for one in findings_in(output)):
            key = (finding.rule, finding.text)
            if key not in self._found and len(self._found) < MOST_FINDINGS:
                self._found[key] = None
                self.tell("rule", state, _told(finding))


def some_metrics(values: Mapping[str, float]) -> str:
    """The first metrics in a line."""
    return ", ".join(f"{name} {value:.6g}" for name, value in list(values.items())[:MOST_METRICS])


def _told(finding: Finding) -> str:
    return f"{finding.rule}: {finding.text}" + (f" ({finding.place})" if finding.place else "")


def _first(text: str) -> str:
    return one_line(next((line for line in text.splitlines() if line.strip()), ""))


def _start(message: dict[str, Any], log: str) -> None:
    """Hands it to a process that nobody waits for; where there is none, nothing is told."""
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "trainshed.runner.notify", log],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert process.stdin is not None
        with process.stdin as pipe:
            pipe.write(json.dumps(message).encode())
        process.returncode = 0  # it is nobody's child to wait for
    except OSError:
        pass
