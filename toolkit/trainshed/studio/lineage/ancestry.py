"""What is told of a run's lineage: itself, its parents and theirs, and what came of it, as JSON values."""

from __future__ import annotations

from typing import Any

from trainshed.contract.wire.fingerprints import described as described_fingerprint
from trainshed.runner.state.provenance import Provenance, provenance_of
from trainshed.runner.state.stored import Stored

from .family import TUNING, Family, key_of, plain_origin

DEEPEST = 50  # generations; more are named only
MOST = 500  # runs that are told of


def ancestry(run: Stored, family: Family, *, down: bool = False) -> dict[str, Any]:
    """The lineage of a run.

    Args:
        down: what came of it, too, and of that.

    Returns:
        The run as below, and `parents`: `kind`, `found_by`, `run`, `folder`, and `of` (the parent with its own parents, None
        where it is gone); with `down` also `children`, with `of` likewise. A run that was told of already is `{"run",
        "folder", "again": true}`: bit-equal models and edited files can make circles.
    """
    told = _Told(family)
    found = told.up(run, 0)
    if down:
        found["children"] = told.down(run, 0, {key_of(run)})
    return found


class _Told:
    """Runs are told of once."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.seen: set[str] = set()

    def up(self, run: Stored, depth: int) -> dict[str, Any]:
        if (short := self._again(run, depth)) is not None:
            return short
        found = about(run, self.family)
        found["parents"] = [
            {**plain_origin(one), "of": self.up(one.run, depth + 1) if one.run is not None else None}
            for one in self.family.origins(run)
        ]
        return found

    def down(self, run: Stored, depth: int, above: set[str]) -> list[dict[str, Any]]:
        found = []
        for child, origin in self.family.children(run):
            key = key_of(child)
            entry: dict[str, Any] = {"kind": origin.kind, "found_by": origin.how, "run": child.name, "folder": child.folder}
            if key in above or depth >= DEEPEST or len(self.seen) > MOST:
                entry["of"] = _short(child)
            else:
                above.add(key)
                self.seen.add(key)
                entry["of"] = {**about(child, self.family), "children": self.down(child, depth + 1, above)}
            found.append(entry)
        return found

    def _again(self, run: Stored, depth: int) -> dict[str, Any] | None:
        key = key_of(run)
        if key in self.seen or depth >= DEEPEST or len(self.seen) > MOST:
            return _short(run)
        self.seen.add(key)
        return None


def _short(run: Stored) -> dict[str, Any]:
    return {"run": run.name, "folder": run.folder, "again": True}


def about(run: Stored, family: Family) -> dict[str, Any]:
    """What a run says of itself, without parents and children."""
    known = provenance_of(run)
    return {
        "run": run.name,
        "id": run.id,
        "folder": run.folder,
        "status": run.said[0],
        "started": str(run.status.get("CreationTime", "")),
        "hyperparameters": _mapping(run.status.get("HyperParameters")),
        "code": known.code,
        "git": known.git,
        "image": known.image,
        "environment": {name: value for name, value in known.environment.items() if name != "packages"},
        "packages": len(known.packages),
        "tuning": [{"name": one["run"], "folder": one.get("folder", "")} for one in known.parents if one["kind"] == TUNING],
        "data": _data(run, known, family),
        "model": {name: value for name, value in known.model.items() if name != "files"}
        | ({"files": len(known.model["files"])} if "files" in known.model else {}),
    }


def _data(run: Stored, known: Provenance, family: Family) -> dict[str, Any]:
    """By channel: `fingerprints` (in words, each once), `digests`, `also_in` (other runs that saw the very same data)."""
    found = {}
    for channel, hosts in known.data.items():
        digests = known.data_digests.get(channel, ())
        others = dict.fromkeys(name for digest in digests for name in family.others_with(digest, run))
        words = list(dict.fromkeys(described_fingerprint(one) for one in hosts.values()))
        found[channel] = {"fingerprints": words, "digests": list(digests), "also_in": list(others)}
    return found


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
