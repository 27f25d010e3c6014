"""Where runs come from, and which data they have seen: `trainshed lineage`, of one run as a graph, of data for all runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from trainshed.runner.state.stored import load
from trainshed.studio.lineage.ancestry import about, ancestry
from trainshed.studio.lineage.drawing import boxes_of
from trainshed.studio.lineage.family import Family, family_of
from trainshed.studio.lineage.outline import outline
from trainshed.studio.pages.timeline import instant

from .kind import Kind
from .known import Known
from .parts import MOST_ROWS, Part, box, graph, link, moment, pill, table, text, view

ADDRESS = "#/data/"
KEPT = 10.0  # seconds for which it is not read again what each run notes
_PART = 50.0  # or so many times as long as that has taken
_SHORT = 16  # characters of a digest


class _Families(Kind):
    """What the runs know of each other, as it was a moment ago."""

    def __init__(self, known: Known, environ: Mapping[str, str]) -> None:
        super().__init__(known, environ)
        self._held: tuple[float, Family] | None = None
        self._words: dict[str, str] = {}
        self._lock = threading.Lock()

    def family(self) -> Family:
        """Of all runs that are shown."""
        with self._lock:
            began = time.monotonic()
            if self._held is None or began > self._held[0]:
                found = family_of(map(load, self.known.folders().values()))
                took = time.monotonic() - began
                self._held = (began + max(KEPT, _PART * took), found)
            return self._held[1]


class Lineage(_Families):
    """Where a run comes from, and what came of it."""

    def keys(self) -> list[str]:
        """Of all runs."""
        return [*self.known.folders()]

    def one(self, key: str) -> Part | None:
        """The lineage of a run."""
        folder = self.known.folders().get(key)
        if folder is None:
            return None
        run = load(folder)
        told = ancestry(run, self.family(), down=True)
        boxes, edges = boxes_of(told)
        drawn = [
            box(place, name, more, state=more[0].partition(",")[0], link=self._link(place), marked=kind == "me")
            for place, (_, (name, *more), kind, _) in boxes.items()
        ]
        data = [
            (channel, link(said, _address(said, held["digests"])), len(held["also_in"]) + 1)
            for channel, held in told["data"].items()
            for said in held["fingerprints"]
        ]
        parts = [
            graph("Where it comes from, and what came of it", drawn, edges),
            table("Data seen", ("channel", "what", "runs that saw it"), data, empty="none that is known"),
            text("In words", outline(told)),
        ]
        return view(run.name, parts)

    def _link(self, folder: str) -> str:
        address = self.known.address(folder)
        return f"{address}/lineage" if address else ""


class Data(_Families):
    """The data that runs have seen, by its fingerprints."""

    def keys(self) -> list[str]:
        """Of all data: digests."""
        return [*self.family().users]

    def listed(self) -> Part:
        """A row for each, what most runs have seen first."""
        family = self.family()
        held = sorted(family.users.items(), key=lambda one: -len(one[1]))[:MOST_ROWS]
        rows = [(*self._about(family, digest), len(runs)) for digest, runs in held]
        empty = "no data that is known: runs note a fingerprint of each channel"
        return view("Data", [table("", ("digest", "what", "channels", "runs"), rows, empty=empty)])

    def one(self, key: str) -> Part | None:
        """The runs that have seen it."""
        family = self.family()
        if key not in family.users:
            return None
        _, words, channels = self._about(family, key)
        rows = []
        for one in family.users[key]:
            run = family.runs[one]
            began = moment(instant(run.status.get("CreationTime")) or 0.0)
            rows.append((link(run.name, self.known.address(run.folder)), pill(run.said[0]), began, run.folder))
        facts = [("what", words), ("channels", channels), ("digest", key)]
        return view(
            key[:_SHORT],
            [table("Runs that have seen it", ("run", "state", "began", "folder"), rows)],
            facts=facts,
            up="data",
        )

    def _about(self, family: Family, digest: str) -> tuple[object, ...]:
        users = family.users[digest]
        channels = {name: None for one in users for name, held in family.links[one].data.items() if digest in held}
        if digest not in self._words:
            told = about(family.runs[users[0]], family)["data"].values()
            said = [one for held in told for one in held["fingerprints"] if digest in one]
            self._words[digest] = said[0] if said else ""
        return (link(digest[:_SHORT], ADDRESS + digest), self._words[digest], ", ".join(channels))


def _address(said: str, digests: list[str]) -> str:
    """The address of the data of a fingerprint in words, which hold its digest."""
    return next((ADDRESS + digest for digest in digests if digest in said), "")
