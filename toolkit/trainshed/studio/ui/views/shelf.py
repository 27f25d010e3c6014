"""Models: `trainshed models ls` and `show`, with the card."""

from __future__ import annotations

from collections.abc import Mapping

from trainshed.base.units import size
from trainshed.contract.model_reference import is_name, reference_of
from trainshed.studio.models.card import card_of, plain
from trainshed.studio.models.storage import storage_at
from trainshed.studio.models.store import ModelStore, NoModelError
from trainshed.studio.models.version import Version

from .kind import Kind
from .parts import Part, link, moment, pill, table, text, view

ADDRESS = "#/models/"
_EMPTY = "no models: trainshed models add NAME RUN adds one"
_MOST_FILES = 200


class Models(Kind):
    """The models of this user's store; of chosen runs alone those that they have made."""

    def keys(self) -> list[str]:
        """Of all models and their versions."""
        store = self._store()
        versions = [one for name in store.models() for one in self._versions(store, name)]
        return [*dict.fromkeys(one.model for one in versions), *map(str, versions)]

    def listed(self) -> Part:
        """The newest version of each."""
        store, rows = self._store(), []
        for name in store.models():
            if versions := self._versions(store, name):
                stages = ", ".join(f"{stage}: {number}" for stage, number in store.stages(name).items())
                rows.append((link(name, ADDRESS + name), len(versions), stages, *self._about(versions[-1])))
        head = ("model", "versions", "stages", "newest", "added", "size", "metrics", "run")
        return view("Models", [table("", head, rows, empty=_EMPTY)], facts=[("store", store.storage.shown)])

    def one(self, key: str) -> Part | None:
        """A model `NAME`, or a version `NAME:3`."""
        name, _, number = key.partition(":")
        if not is_name(name) or (number and not number.isdecimal()):
            return None
        store = self._store()
        try:
            return self._version(store, store.find(reference_of(key))) if number else self._model(store, name)
        except (NoModelError, ValueError):
            return None

    def _model(self, store: ModelStore, name: str) -> Part | None:
        versions = self._versions(store, name)
        damaged = store.versions(name)[1] if self.known.whole else {}
        if not versions and not damaged:
            return None
        rows: list[tuple[object, ...]] = []
        for version in reversed(versions):
            told = plain(store, version)
            shown = (", ".join(told["stages"]), _pairs(told["tags"]), told["note"])
            about, added, *more = self._about(version)
            rows.append((about, *shown, added, *more))
        rows += [(f"{name}:{number}", pill("Failed"), "", why) for number, why in damaged.items()]
        head = ("version", "stages", "tags", "note", "added", "size", "metrics", "run")
        return view(name, [table("Versions", head, rows)], facts=[("store", store.storage.shown)], up="models")

    def _version(self, store: ModelStore, version: Version) -> Part | None:
        if not self._is_shown(version):
            return None
        told, facts = plain(store, version), version.facts
        files = [(one.name, size(one.size), one.sha256) for one in version.files[:_MOST_FILES]]
        _, added, big, _, run = self._about(version)
        shown = [
            ("stages", ", ".join(told["stages"])), ("run", run), ("added", added), ("size", big), ("licence", facts.licence),
            ("tags", _pairs(told["tags"])), ("note", told["note"]), ("content", version.content),
        ]  # fmt: skip
        lineage = f"{run['link']}/lineage" if isinstance(run, dict) else ""
        shown += [("lineage", link("where it comes from", lineage))] if lineage else []
        parts = [
            table("Metrics", ("metric", "last value"), [(name, f"{value:.6g}") for name, value in facts.metrics.items()]),
            text("Card", card_of(store, version)),
            table("Files", ("file", "size", "SHA-256"), files),
        ]
        return view(version, parts, facts=shown, up=f"models/{version.model}")

    def _store(self) -> ModelStore:
        return ModelStore(storage_at("", self.environ))

    def _versions(self, store: ModelStore, name: str) -> list[Version]:
        return [version for version in store.versions(name)[0] if self._is_shown(version)]

    def _is_shown(self, version: Version) -> bool:
        return self.known.whole or bool(self._run(version))

    def _about(self, version: Version) -> tuple[object, ...]:
        metrics = ", ".join(f"{name} {value:.5g}" for name, value in list(version.facts.metrics.items())[:3])
        made = link(version.facts.run.get("name") or "", self._run(version))
        return (link(version, ADDRESS + str(version)), moment(version.created), size(version.size), metrics, made)

    def _run(self, version: Version) -> str:
        """The address of the run that made it, "" where that is not known here."""
        folder = version.facts.run.get("folder")
        return self.known.address(folder) if isinstance(folder, str) and folder else ""


def _pairs(tags: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" if value else name for name, value in tags.items())
