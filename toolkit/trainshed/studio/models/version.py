"""A version of a model as its file in the store describes it; the file may have been written by anybody."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from trainshed.base.secrets import mask_leaves, mask_text

FORMAT = 1
MOST_FILES = 100_000
LARGEST = 64 << 20  # bytes of a version's file
LATEST = 1e11  # seconds since the epoch that a year of four digits has
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FOLDER = re.compile(r"[0-9]{14}-[0-9a-f]{16}")


@dataclass(frozen=True)
class File:
    """One file. name: its path below the model's folder. size: bytes. sha256: hexadecimal."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class VersionMetadata:
    """What is said of a version when it is added.

    metrics: the last value of each. run: what is known of the run that made it, {} where none is.
    licence: an SPDX name or any words. note: for people.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)
    licence: str = ""
    note: str = ""

    def masked(self) -> VersionMetadata:
        """The same without what looks like a secret: versions are read by others."""
        return replace(self, run=mask_leaves(self.run), licence=mask_text(self.licence), note=mask_text(self.note))


@dataclass(frozen=True)
class Version:
    """One version, which does not change. created: seconds since the epoch. folder: where its files are, below `files/`."""

    model: str
    number: int
    created: float
    folder: str
    files: tuple[File, ...]
    facts: VersionMetadata = VersionMetadata()

    def __str__(self) -> str:
        return f"{self.model}:{self.number}"

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(one.size for one in self.files)

    @property
    def content(self) -> str:
        """SHA-256 of names, sizes and hashes: versions of the same content have the same."""
        return content_of(self.files)

    def plain(self) -> dict[str, Any]:
        """As JSON values, which `version_of` reads."""
        return {"format": FORMAT, "content": self.content, **asdict(self)}


def content_of(files: Iterable[File]) -> str:
    """SHA-256 over a line `sha256 size name` for each file, sorted by name."""
    found = hashlib.sha256()
    for one in sorted(files, key=lambda file: file.name):
        found.update(f"{one.sha256} {one.size} {one.name}\n".encode())
    return found.hexdigest()


def wrong_with_name(name: str) -> str:
    """Why a file cannot have this path in a model, "" where it can."""
    parts = name.split("/")
    if name.startswith("/") or ".." in parts:
        return "leads outside the model's folder"
    if "" in parts or "." in parts:
        return "is not a path below the model's folder"
    try:
        long = len(name.encode()) > 700  # S3 takes keys of 1,024 bytes
    except UnicodeEncodeError:
        return "is not UTF-8"
    if not name.isprintable():
        return "contains characters that cannot be printed"
    return "is longer than 700 bytes" if long else ""


def version_of(data: Any, model: str, number: int) -> Version:
    """The version that a file describes. Raises ValueError where it does not describe this one."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError("it is not a version of this format")
    if data.get("model") != model or data.get("number") != number:
        raise ValueError("it describes another version")
    folder, created = data.get("folder"), data.get("created")
    if not isinstance(folder, str) or not _FOLDER.fullmatch(folder):
        raise ValueError("its folder is not named")
    if created is None or not _is_number(created) or not 0 <= created < LATEST:
        raise ValueError("its time is not a time")
    found = Version(model, number, float(created), folder, _files(data.get("files")), _facts(data.get("facts")))
    if data.get("content") != found.content:
        raise ValueError("its list of files has changed")
    return found


def _files(value: Any) -> tuple[File, ...]:
    if not isinstance(value, list) or not 0 < len(value) <= MOST_FILES:
        raise ValueError("it has no files")
    files = []
    for one in value:
        if not isinstance(one, dict) or set(one) != {"name", "size", "sha256"}:
            raise ValueError("its list of files is damaged")
        name, size, sha256 = one["name"], one["size"], one["sha256"]
        if not isinstance(name, str) or (why := wrong_with_name(name)):
            raise ValueError(f"the file {str(name)!r} {why}" if isinstance(name, str) else "a file has no name")
        if type(size) is not int or size < 0 or not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
            raise ValueError(f"size or hash of {name!r} is damaged")
        files.append(File(name, size, sha256))
    names = {one.name for one in files}
    above = {name[:place] for name in names for place, letter in enumerate(name) if letter == "/"}
    if len(names) < len(files) or names & above:
        raise ValueError("a file is there twice")
    return tuple(files)


def _facts(value: Any) -> VersionMetadata:
    """What of it has the right kind: nothing rests on the rest."""
    given: dict[str, Any] = value if isinstance(value, dict) else {}
    metrics, run = given.get("metrics"), given.get("run")
    return VersionMetadata(
        {str(name): float(one) for name, one in metrics.items() if _is_number(one)} if isinstance(metrics, dict) else {},
        run if isinstance(run, dict) else {},
        *(text if isinstance(text := given.get(name), str) else "" for name in ("licence", "note")),
    ).masked()


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < float("inf")
