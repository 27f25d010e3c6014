"""The model store: adds, finds, copies, compares and removes versions of models.

    STORE/digits/
        versions/3.json        a version: its files with hashes, and where they are; made at once, never changed
        files/<folder>/        the files of one version; made before it, and never used by another one
        stages/champion.json   the number of the version that a stage points to
        tags/3/owner.json      a tag of a version; notes/3.json a note that was written later

The file of a version is what makes it: `add` copies first, then takes the next number, which the storage gives to one
writer. A number is not given twice: of a version that was removed a file stays that says so.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from trainshed.base.errors import EXIT_JOB, TrainshedError, did_you_mean, one_line, some
from trainshed.base.files import sync_folder
from trainshed.base.secrets import mask_mapping, mask_text
from trainshed.contract.model_reference import RULE, ModelReference, is_name, is_stage

from .storage import Storage
from .version import FORMAT, LARGEST, File, Version, VersionMetadata, content_of, version_of, wrong_with_name

SMALL = 64 << 10  # bytes of a stage, a tag or a note
TRIES = 1000  # of taking a number, while others take them
STALE = 24 * 3600.0  # seconds after which files without a version are what a killed `add` has left


class NoModelError(TrainshedError):
    """There is no such model, version or stage."""

    exit_code = EXIT_JOB


@dataclass(frozen=True)
class Added:
    """What `add` has done. new: whether the version was not there before."""

    version: Version
    new: bool


class ModelStore:
    """The models in one storage. Every method raises TrainshedError where the storage cannot do its work."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    # --- what there is ------------------------------------------------------------------------------------------------

    def models(self) -> list[str]:
        """The names of the models, sorted."""
        return [name for name in self.storage.names("") if is_name(name) and self._numbers(name)]

    def versions(self, model: str) -> tuple[list[Version], dict[int, str]]:
        """(the versions by their numbers, why others cannot be read). Removed ones are in neither."""
        good, damaged = [], {}
        for number in self._numbers(model):
            try:
                if (found := self._read(model, number)) is not None:
                    good.append(found)
            except ValueError as error:
                damaged[number] = str(error)
        return good, damaged

    def find(self, reference: ModelReference) -> Version:
        """The version that is meant; the newest one where neither stage nor number was named.

        Raises:
            NoModelError: there is none. TrainshedError: it is damaged.
        """
        number = reference.number
        if reference.stage:
            stages = self.stages(reference.name)
            if reference.stage not in stages:
                self._require(reference.name)
                near = did_you_mean(reference.stage, stages)
                known = f"its stages are {', '.join(stages)}" if stages else "it has no stages"
                raise NoModelError(
                    f"the model {reference.name} has no stage {reference.stage!r}: {near or known}",
                    hint=f"trainshed models tag {reference.name}:NUMBER --stage {reference.stage} sets it",
                )
            number = stages[reference.stage]
        numbers = self._numbers(reference.name)
        for one in [number] if number else reversed(numbers):
            try:
                found = self._read(reference.name, one)
            except ValueError as error:
                place = self.storage.address(_version_key(reference.name, one))
                raise TrainshedError(
                    f"{reference.name}:{one} is damaged: {error}", hint=f"restore {place}, or name another version"
                ) from None
            if found is not None:
                return found
        self._require(reference.name)
        stage = f", to which the stage {reference.stage!r} points" if reference.stage else ""
        raise NoModelError(
            f"there is no {reference.name}:{number}{stage}" if number else f"the model {reference.name} has no version",
            hint=f"trainshed models ls {reference.name} lists its versions",
        )

    def stages(self, model: str) -> dict[str, int]:
        """The version that each stage points to, by the stage's name."""
        found = {}
        for stage, value in self._small(f"{model}/stages"):
            number = value.get("version")
            if is_stage(stage) and type(number) is int and number > 0:
                found[stage] = number
        return found

    def tags(self, version: Version) -> dict[str, str]:
        """The tags of a version."""
        values = self._small(f"{version.model}/tags/{version.number}")
        found = {name: value["value"] for name, value in values if is_name(name) and isinstance(value.get("value"), str)}
        return mask_mapping(found)

    def note(self, version: Version) -> str:
        """The note of a version: the one that was written last."""
        value = self._object(f"{version.model}/notes/{version.number}.json").get("value")
        return mask_text(value if isinstance(value, str) else version.facts.note)

    def address(self, version: Version) -> str:
        """Path or URI of the folder with a version's files."""
        return self.storage.address(_folder_key(version))

    # --- adding -------------------------------------------------------------------------------------------------------

    def add(self, model: str, files: Sequence[tuple[str, str]], facts: VersionMetadata) -> Added:
        """Adds a version, or finds the one that has the same content.

        Args:
            files: (name below the model's folder, path) of each.

        Raises:
            TrainshedError: a name is not valid, a file cannot be read or changes, the storage cannot be written.
        """
        if not is_name(model):
            raise TrainshedError(f"{model!r} is not a valid model name: {RULE}")
        if not files:
            raise TrainshedError("there are no files to add")
        for name, _ in files:
            if why := wrong_with_name(name):
                raise TrainshedError(f"cannot add {name!r}: it {why}")
        folder = f"{time.strftime('%Y%m%d%H%M%S', time.gmtime())}-{secrets.token_hex(8)}"
        place = f"{model}/files/{folder}"
        try:
            added = self._take_number(model, folder, self._copied(files, place), facts.masked())
        except BaseException:
            self._discard(place)
            raise
        if not added.new:
            self._discard(place)
        return added

    def _copied(self, files: Sequence[tuple[str, str]], place: str) -> tuple[File, ...]:
        made = []
        for name, path in sorted(files):
            try:
                before = os.stat(path)
                size, sha256 = self.storage.put(path, f"{place}/{name}")
                after = os.stat(path)
            except OSError as error:
                raise TrainshedError(f"cannot add {name}: {path} cannot be read: {error.strerror}") from error
            if (before.st_mtime_ns, before.st_ino, after.st_size) != (after.st_mtime_ns, after.st_ino, size):
                raise TrainshedError(f"cannot add {name}: it changed while it was copied", hint="add it when it is complete")
            made.append(File(name, size, sha256))
        return tuple(made)

    def _take_number(self, model: str, folder: str, files: tuple[File, ...], facts: VersionMetadata) -> Added:
        content = content_of(files)
        compared = 0  # versions up to this one have another content
        for _ in range(TRIES):
            numbers = self._numbers(model)
            for number in numbers:
                if number > compared and (same := self._same(model, number, content)) is not None:
                    return Added(same, False)
            compared = numbers[-1] if numbers else 0
            version = Version(model, compared + 1, time.time(), folder, files, facts)
            text = json.dumps(version.plain(), indent=1, allow_nan=False)
            if self.storage.create(_version_key(model, version.number), text.encode()):
                return Added(version, True)
        raise TrainshedError(f"{model}: {TRIES} times another writer took the next number", hint="add it again")

    def _same(self, model: str, number: int, content: str) -> Version | None:
        """A version with this content, whose files are as they were added: else the new one is needed."""
        try:
            found = self._read(model, number)
        except ValueError:
            return None
        return found if found is not None and found.content == content and not self.verify(found) else None

    def _discard(self, place: str) -> None:
        """Removes what was copied in vain; a storage that cannot do so keeps it as a leftover."""
        try:
            self.storage.remove_below(place)
        except (TrainshedError, OSError):
            pass

    # --- using --------------------------------------------------------------------------------------------------------

    def blocks(self, version: Version, file: File) -> Iterator[bytes]:
        """The bytes of a file, compared with its hash. Raises TrainshedError, at the latest at their end."""
        key = f"{_folder_key(version)}/{file.name}"
        found, count = hashlib.sha256(), 0
        try:
            for block in self.storage.blocks(key):
                found.update(block)
                count += len(block)
                if count > file.size:
                    break
                yield block
        except FileNotFoundError:
            raise TrainshedError(f"{version} is damaged: {file.name} is gone: {self.storage.address(key)}") from None
        if count != file.size or found.hexdigest() != file.sha256:
            raise TrainshedError(
                f"{version} is damaged: {file.name} is not the file that was added: {self.storage.address(key)}",
                hint=f"trainshed models verify {version} compares all its files; take another version",
            )

    def get(self, version: Version, target: str, extra: dict[str, str] | None = None) -> None:
        """Copies a version to a folder that appears as a whole, each file compared with its hash.

        Args:
            target: a new or an empty folder. extra: further files with their texts, where the version has none of the name.

        Raises:
            TrainshedError: the folder is not empty or cannot be written, or a file is damaged: then nothing is there.
        """
        target = os.path.abspath(target)
        try:
            if os.listdir(target):
                raise TrainshedError(f"{target} is not empty", hint="name a new folder")
        except FileNotFoundError:
            pass
        except OSError as error:
            raise TrainshedError(f"cannot copy {version} to {target}: {error.strerror}") from error
        above, name = os.path.split(target)
        aside = f"{above}/.{name}.{uuid.uuid4().hex}.part"
        try:
            os.makedirs(aside)
            for file in version.files:
                path = f"{aside}/{file.name}"
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "xb") as written:
                    for block in self.blocks(version, file):
                        written.write(block)
            for extra_name, text in (extra or {}).items():
                if not os.path.lexists(f"{aside}/{extra_name}"):
                    with open(f"{aside}/{extra_name}", "x", encoding="utf-8", errors="replace") as card:
                        card.write(text)
            os.rename(aside, target)
            sync_folder(above)
        except OSError as error:
            raise TrainshedError(
                f"cannot copy {version} to {target}: {error.strerror}", hint="make room there, or name another folder"
            ) from error
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def verify(self, version: Version) -> list[str]:
        """Reads all files of a version; what is wrong with them, [] where nothing is."""
        problems = []
        for file in version.files:
            try:
                for _ in self.blocks(version, file):
                    pass
            except TrainshedError as error:
                problems.append(error.message)
        strange = sorted(self.storage.keys(_folder_key(version)).keys() - {file.name for file in version.files})
        if strange:
            problems.append(one_line(f"{version} has files that were not added: {some(strange, 3)}"))
        return problems

    # --- what may change ----------------------------------------------------------------------------------------------

    def set_stage(self, version: Version, stage: str) -> None:
        """Has a stage point to a version, at once."""
        if not is_stage(stage):
            raise TrainshedError(f"{stage!r} is not a valid stage name: a small letter, then letters, digits, '_' and '-'")
        self._replace(f"{version.model}/stages/{stage}.json", {"version": version.number, "since": time.time()})

    def drop_stage(self, model: str, stage: str) -> None:
        """Removes a stage; its version stays. Raises NoModelError where there is none."""
        if stage not in (known := self.stages(model)):
            raise NoModelError(f"the model {model} has no stage {stage!r}", hint=did_you_mean(stage, known))
        self.storage.remove(f"{model}/stages/{stage}.json")

    def set_tag(self, version: Version, name: str, value: str) -> None:
        """Gives a version a tag, or another value of it."""
        if not is_name(name):
            raise TrainshedError(f"{name!r} is not a valid tag name: {RULE}")
        kept = mask_mapping({name: value})[name]  # by its name, and by its form
        self._replace(f"{version.model}/tags/{version.number}/{name}.json", {"value": kept})

    def drop_tag(self, version: Version, name: str) -> None:
        """Removes a tag. Raises NoModelError where there is none."""
        if name not in (known := self.tags(version)):
            raise NoModelError(f"{version} has no tag {name!r}", hint=did_you_mean(name, known))
        self.storage.remove(f"{version.model}/tags/{version.number}/{name}.json")

    def set_note(self, version: Version, text: str) -> None:
        """Writes the note of a version."""
        self._replace(f"{version.model}/notes/{version.number}.json", {"value": mask_text(text)})

    def remove(self, version: Version, *, force: bool = False) -> None:
        """Removes a version; its number is not given again.

        Args:
            force: also where a stage points to it; the stage goes, too.

        Raises:
            TrainshedError: a stage points to it.
        """
        pointing = [stage for stage, number in self.stages(version.model).items() if number == version.number]
        if pointing and not force:
            raise TrainshedError(
                f"{version} is {' and '.join(pointing)}",
                hint=f"have the stage point elsewhere: trainshed models tag {version.model}:OTHER --stage {pointing[0]}",
            )
        for stage in pointing:
            self.storage.remove(f"{version.model}/stages/{stage}.json")
        gone = {"format": FORMAT, "removed": time.time()}
        self._replace(_version_key(version.model, version.number), gone)
        self.storage.remove_below(f"{version.model}/tags/{version.number}")
        self.storage.remove(f"{version.model}/notes/{version.number}.json")
        self.storage.remove_below(_folder_key(version))

    def leftovers(self, model: str, now: float) -> list[str]:
        """Folders of files without a version that writers have left which were killed a day ago or earlier.

        [] while a version is damaged: they could be its files.
        """
        good, damaged = self.versions(model)
        used = {version.folder for version in good}
        limit = time.strftime("%Y%m%d%H%M%S", time.gmtime(now - STALE))
        return [name for name in self.storage.names(f"{model}/files") if name not in used and name < limit and not damaged]

    def remove_leftovers(self, model: str, now: float) -> int:
        """Removes the leftovers of a model; how many there were."""
        found = self.leftovers(model, now)
        for name in found:
            self.storage.remove_below(f"{model}/files/{name}")
        return len(found)

    # --- files of ours ------------------------------------------------------------------------------------------------

    def _numbers(self, model: str) -> list[int]:
        """The numbers that were given, also those of removed versions."""
        stems = (name.removesuffix(".json") for name in self.storage.names(f"{model}/versions"))
        return sorted(int(stem) for stem in stems if stem.isascii() and stem.isdigit() and stem[0] != "0" and len(stem) < 7)

    def _read(self, model: str, number: int) -> Version | None:
        """A version, None where it is gone. Raises ValueError where its file is damaged."""
        data = self.storage.read(_version_key(model, number), LARGEST)
        if data is None:
            return None
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            raise ValueError("its file is not JSON") from None
        if isinstance(value, dict) and value.keys() == {"format", "removed"}:
            return None
        return version_of(value, model, number)

    def _require(self, model: str) -> None:
        """Raises NoModelError where there is no such model."""
        known = self.models()
        if model not in known:
            near = did_you_mean(model, known)
            raise NoModelError(
                f"there is no model {model!r} in {self.storage.shown}" + (f": {near}" if near else ""),
                hint="trainshed models ls lists them" if known else "trainshed models add NAME RUN adds the first one",
            )

    def _small(self, folder: str) -> list[tuple[str, dict[str, Any]]]:
        names = [name for name in self.storage.names(folder) if name.endswith(".json")]
        return [(name.removesuffix(".json"), self._object(f"{folder}/{name}")) for name in names]

    def _object(self, key: str) -> dict[str, Any]:
        try:
            value = json.loads(self.storage.read(key, SMALL) or b"{}")
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    def _replace(self, key: str, value: dict[str, Any]) -> None:
        self.storage.replace(key, json.dumps(value).encode())


def _version_key(model: str, number: int) -> str:
    return f"{model}/versions/{number}.json"


def _folder_key(version: Version) -> str:
    return f"{version.model}/files/{version.folder}"
