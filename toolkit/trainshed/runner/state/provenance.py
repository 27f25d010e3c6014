"""Reads where a run comes from and what it made: code, git, image, packages, parents, data, model.

Put together from `provenance.json` (files/provenance.py writes it), `train`'s run records and `job.json`; what is missing,
damaged or of another kind is left out: anybody may have written it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trainshed.base.errors import TrainshedError
from trainshed.base.files import read_object
from trainshed.contract.wire.fingerprints import in_shape as in_shape_of_fingerprints

from ..files.provenance import LARGEST
from ..files.run import CODE, PROVENANCE, HostTree
from .records import fingerprints_of, record_of
from .stored import Stored

KINDS = ("model", "rerun", "tuning")
LARGEST_COUNT = 1 << 62  # of files or bytes
_CODE: dict[str, type] = {
    "digest": str, "files": int, "bytes": int, "source": str, "kept": str, "earlier": list, "note": str,
}  # fmt: skip
_GIT: dict[str, type] = {
    "commit": str, "branch": str, "dirty": bool, "changes": int, "changed": list, "repository": str, "remote": str,
    "note": str,
}  # fmt: skip
_IMAGE: dict[str, type] = {"name": str, "id": str, "digest": str}
_ENVIRONMENT: dict[str, type] = {"python": str, "executable": str, "platform": str}
_MODEL: dict[str, type] = {"digest": str, "bytes": int, "digests": list, "note": str}


@dataclass(frozen=True)
class Provenance:
    """The origin of a run.

    code: `digest`, `files`, `bytes`, `source` (folder that it was copied from), `kept` (below the run's folder),
        `earlier` (digests of other code that earlier attempts ran), `note`.
    git: `commit`, `branch`, `dirty`, `changes`, `changed`, `repository`, `remote`, `note` (files/git_state.py).
    image: `name`, `id`, `digest` (`NAME@sha256:...`, where the image came from a registry).
    environment: `python`, `executable`, `platform`, `packages`, `sources` (machine/installed.py), of the first host.
    parents: `kind` (`model`, `rerun`, `tuning`), `run`, `id`, `folder`, `sha256`; of a tuning job its name and folder.
    data: fingerprints by channel and host, as in `status.json`.
    model: `digest`, `files` (`size`, `sha256` by name), `bytes`, `digests` (all under which a channel may show it), `note`.
    """

    code: dict[str, Any] = field(default_factory=dict)
    git: dict[str, Any] = field(default_factory=dict)
    image: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    parents: tuple[dict[str, str], ...] = ()
    data: dict[str, dict[str, Any]] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)

    @property
    def packages(self) -> dict[str, str]:
        """Versions by normalized name."""
        return dict(self.environment.get("packages", {}))

    @property
    def data_digests(self) -> dict[str, tuple[str, ...]]:
        """The digests of each channel, of all hosts together; those that say for sure which data it was."""
        found = {}
        for channel, hosts in self.data.items():
            digests = dict.fromkeys(str(one["digest"]) for one in hosts.values())
            if sure := tuple(one for one in digests if one and not one.startswith("incomplete:")):
                found[channel] = sure
        return found

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        return {**vars(self), "parents": list(self.parents)}


def provenance_of(run: Stored) -> Provenance:
    """The origin of a run, as far as its folder says."""
    said = read_object(f"{run.folder}/{PROVENANCE}", LARGEST, links=False)
    hosts = _hosts(run)
    return Provenance(
        code=_in_shape(said.get("code"), _CODE),
        git=_in_shape(said.get("git"), _GIT),
        image=_in_shape(said.get("image"), _IMAGE),
        environment=_environment(record_of(hosts[0]).get("environment")) if hosts else {},
        parents=tuple(_parents(said.get("parents"))),
        data=fingerprints_of(hosts),
        model=_model(said.get("model")),
    )


def code_files(run: Stored) -> dict[str, dict[str, Any]]:
    """`size` and `sha256` of each file of the code as it was at the start, by its path; {} where that is not known."""
    return _files(read_object(f"{run.folder}/{CODE}", LARGEST, links=False).get("files"))


def _hosts(run: Stored) -> tuple[HostTree, ...]:
    try:
        return run.run().hosts
    except TrainshedError:
        return ()


def _in_shape(value: Any, kinds: dict[str, type]) -> dict[str, Any]:
    """The fields that are of the kind that a runner writes; of lists their texts."""
    good: dict[str, Any] = {}
    for name, kind in kinds.items():
        one: Any = value.get(name) if isinstance(value, dict) else None
        if type(one) is not kind or (isinstance(one, int) and not 0 <= one < LARGEST_COUNT):
            continue
        good[name] = [text for text in one if isinstance(text, str)] if isinstance(one, list) else one
    return good


def _environment(value: Any) -> dict[str, Any]:
    good = _in_shape(value, _ENVIRONMENT)
    if not isinstance(value, dict):
        return {}
    packages, sources = value.get("packages"), value.get("sources")
    if isinstance(packages, dict):
        good["packages"] = {str(name): one for name, one in packages.items() if isinstance(one, str)}
    if isinstance(sources, dict):
        good["sources"] = {str(name): _strings(one) for name, one in sources.items() if isinstance(one, dict)}
    return good


def _parents(value: Any) -> list[dict[str, str]]:
    entries = [_strings(one) for one in value if isinstance(one, dict)] if isinstance(value, list) else []
    return [one for one in entries if one.get("kind") in KINDS and one.get("run")]


def _model(value: Any) -> dict[str, Any]:
    good = _in_shape(value, _MODEL)
    if isinstance(value, dict) and isinstance(value.get("files"), dict):
        good["files"] = _files(value["files"])
    return good


def _files(value: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(value, dict):
        return {}
    return {
        str(name): {"size": one["size"], "sha256": one["sha256"], "executable": one.get("executable") is True}
        for name, one in value.items()
        if isinstance(one, dict) and type(one.get("size")) is int and isinstance(one.get("sha256"), str)
    }


def _strings(value: dict[str, Any]) -> dict[str, str]:
    return {str(name): one for name, one in value.items() if isinstance(one, str)}


@dataclass(frozen=True)
class Links:
    """By what a run is linked to others, read without what costs more.

    parents: as in `Provenance`. data: digests of each channel. made: digests that a channel with its model shows.
    """

    parents: tuple[dict[str, str], ...]
    data: dict[str, tuple[str, ...]]
    made: tuple[str, ...]


def links_of(run: Stored) -> Links:
    """By what a run is linked to others, from `provenance.json` and `status.json`."""
    said = read_object(f"{run.folder}/{PROVENANCE}", LARGEST, links=False)
    told = run.ours.get("Data")
    data: dict[str, dict[str, Any]] = {}
    for channel, hosts in told.items() if isinstance(told, dict) else ():
        data[str(channel)] = in_shape_of_fingerprints(hosts)
    parents = _parents(said.get("parents"))
    before = run.ours.get("FromRun")
    if not parents and isinstance(before, dict):  # runs of versions that noted no more
        parents = _parents([{"kind": "model", "run": before.get("Run"), "id": before.get("RunId")}])
    made = tuple(_model(said.get("model")).get("digests", ()))
    return Links(tuple(parents), Provenance(data=data).data_digests, made)
