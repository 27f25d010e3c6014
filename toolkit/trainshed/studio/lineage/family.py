"""Which run comes from which: by what runs have noted of their parents, and by the hashes of models and data.

A run's folder may have been moved, copied or removed since. A parent is looked for by its id, then in its folder, then by
the model: the digests that a channel shows are among those that the run noted of the model it made.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from trainshed.runner.state.provenance import Links, links_of
from trainshed.runner.state.stored import Stored, load

ID, FOLDER, HASHES, GONE = "id", "folder", "hashes", "gone"  # how a parent was found
MODEL, RERUN, TUNING = "model", "rerun", "tuning"


@dataclass(frozen=True)
class Origin:
    """One parent of a run.

    kind: `model` (it went on from its model), `rerun` (it makes it again).
    name, folder: of the parent, as the run noted them or as they are now.
    how: `ID`, `FOLDER`, `HASHES`, or `GONE` where there is no such run any more.
    run: the parent, None where it is gone. channel: that has its model. twins: other runs that made the very same model.
    """

    kind: str
    name: str
    folder: str
    how: str
    run: Stored | None = None
    channel: str = ""
    twins: tuple[str, ...] = ()


@dataclass(frozen=True)
class Family:
    """Runs that know of each other. runs: oldest first, by their keys; the rest is found once from what they note."""

    runs: dict[str, Stored]
    links: dict[str, Links]
    by_id: dict[str, str] = field(default_factory=dict)
    makers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    users: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def origins(self, run: Stored) -> tuple[Origin, ...]:
        """The parents of a run, those that it has noted first."""
        own = key_of(run)
        links = self.links.get(own) or links_of(run)
        found: list[Origin] = []
        for noted in links.parents:
            if noted["kind"] != TUNING:
                found.append(self._noted(noted, links, own))
        known = {key_of(one.run) for one in found if one.run is not None}
        for channel, digests in links.data.items():
            makers = self._makers(digests, own)
            noted_model = any(one.kind == MODEL and one.channel == channel for one in found)
            if makers and not noted_model and not known & set(makers):
                first, *others = (self.runs[key] for key in makers)
                twins = tuple(one.name for one in others)
                found.append(Origin(MODEL, first.name, first.folder, HASHES, first, channel, twins))
                known.add(makers[0])
        return tuple(found)

    def children(self, run: Stored) -> tuple[tuple[Stored, Origin], ...]:
        """The runs that come from a run, oldest first."""
        own, found = key_of(run), []
        for key, other in self.runs.items():
            if key == own or not (
                self.links[key].parents or self.links[key].data.keys() & {"model"} or self._shows(key, own)
            ):
                continue
            for origin in self.origins(other):
                if origin.run is not None and key_of(origin.run) == own:
                    found.append((other, origin))
                    break
        return tuple(found)

    def others_with(self, digest: str, run: Stored) -> tuple[str, ...]:
        """Names of the other runs that have seen the very same data, oldest first."""
        own = key_of(run)
        return tuple(self.runs[key].name for key in self.users.get(digest, ()) if key != own)

    def _noted(self, noted: dict[str, str], links: Links, own: str) -> Origin:
        kind, name, folder = noted["kind"], noted["run"], noted.get("folder", "")
        channel = MODEL if kind == MODEL else ""
        key = self.by_id.get(noted.get("id", ""))
        if key is not None and key != own:
            return Origin(kind, self.runs[key].name, self.runs[key].folder, ID, self.runs[key], channel)
        there = load(folder) if folder else None
        if there is not None and key_of(there) != own and there.name == name and there.id in ("", noted.get("id", there.id)):
            return Origin(kind, name, there.folder, FOLDER, there, channel)
        if kind == MODEL and (makers := self._makers(links.data.get(MODEL, ()), own)):
            first, *others = (self.runs[key] for key in makers)
            return Origin(kind, first.name, first.folder, HASHES, first, channel, tuple(one.name for one in others))
        return Origin(kind, name, folder, GONE, None, channel)

    def _makers(self, digests: Iterable[str], own: str) -> list[str]:
        return [key for digest in digests for key in self.makers.get(digest, ()) if key != own]

    def _shows(self, key: str, own: str) -> bool:
        """Whether some channel of a run shows a model of the other one."""
        made = set(self.links[own].made) if own in self.links else set()
        return any(made & set(digests) for digests in self.links[key].data.values())


def family_of(runs: Iterable[Stored]) -> Family:
    """What runs know of each other. runs: in the order in which they are shown."""
    known: dict[str, Stored] = {}
    for run in runs:
        known.setdefault(key_of(run), run)
    links = {key: links_of(run) for key, run in known.items()}
    makers: dict[str, list[str]] = {}
    users: dict[str, list[str]] = {}
    for key, one in links.items():
        for digest in dict.fromkeys(one.made):
            makers.setdefault(digest, []).append(key)
        for digest in dict.fromkeys(digest for digests in one.data.values() for digest in digests):
            users.setdefault(digest, []).append(key)
    return Family(
        known,
        links,
        {run.id: key for key, run in known.items() if run.id},
        {digest: tuple(keys) for digest, keys in makers.items()},
        {digest: tuple(keys) for digest, keys in users.items()},
    )


def key_of(run: Stored) -> str:
    """What tells a run from others: its id; of a copy, or where it has none, its folder."""
    return run.id or run.folder


def plain_origin(origin: Origin) -> dict[str, Any]:
    """A parent as JSON values, without what is told of the run itself."""
    made = {"kind": origin.kind, "run": origin.name, "folder": origin.folder, "found_by": origin.how}
    more = {"channel": origin.channel, "also_made_by": list(origin.twins)}
    return {**made, **{name: value for name, value in more.items() if value}}
