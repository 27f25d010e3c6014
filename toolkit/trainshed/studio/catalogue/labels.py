"""Tags and notes of a run, as people gave them: `labels.json` in the run's folder, replaced as a whole.

    {"format": 1, "tags": {"best": "", "stage": "final"}, "removed": ["draft"], "notes": [{"at": "...", "text": "..."}]}

What the job itself says (`tags:` of the job file) stays in its own files; `removed` names those of its tags that are not
wanted any more. Writers take turns by a lock on `.labels.lock`, so that none loses what another one wrote.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from trainshed.base.errors import EXIT_JOB, TrainshedError, did_you_mean, shorten
from trainshed.base.files import read_bytes, write_atomic
from trainshed.base.record import Record
from trainshed.base.secrets import mask_mapping, mask_text
from trainshed.runner.state.stored import Stored

FILE, LOCK = "labels.json", ".labels.lock"
FORMAT = 1
LARGEST = 1 << 20  # bytes of the file
LONGEST_TAG, LONGEST_VALUE, LONGEST_NOTE = 128, 256, 10_000  # characters; the first two are the platform's
PATIENCE = 10.0  # seconds that another writer is waited for
_TAG = re.compile(r"[^\W_](?:[\w.:/@+-]| (?=\S))*")


class LabelError(TrainshedError):
    """A tag or note cannot be given so, or its file cannot be written."""

    exit_code = EXIT_JOB


class Labels(Record):
    """What a run is labelled with.

    tags: name -> value, "" where it has none; the job's own included.
    notes: (when, in ISO 8601; text), the oldest first.
    problem: why the file could not be read, "" where it could.
    """

    tags: dict[str, str] = {}  # noqa: RUF012
    notes: tuple[tuple[str, str], ...] = ()
    problem: str = ""


class Change(Record):
    """What is to be different: tags that are given and taken, a note that is added."""

    give: dict[str, str] = {}  # noqa: RUF012
    take: tuple[str, ...] = ()
    note: str = ""
    clear_notes: bool = False


def change_of(words: list[str]) -> Change:
    """Reads `+best`, `+stage=final` and `-draft`. Raises LabelError."""
    give: dict[str, str] = {}
    take: list[str] = []
    for word in words:
        name, equals, value = word[1:].partition("=")
        if not _TAG.fullmatch(name) or len(name) > LONGEST_TAG:
            raise LabelError(
                f"{shorten(name)!r} is not a valid tag",
                hint=f"a tag has up to {LONGEST_TAG} letters, digits and . : / @ + - _ and begins with a letter or digit",
            )
        if word[0] == "-" and equals:
            raise LabelError(f"-{name} takes the tag away, whatever its value: leave out ={shorten(value)}")
        if len(value) > LONGEST_VALUE or not value.isprintable():
            raise LabelError(f"the value of the tag {name} must be up to {LONGEST_VALUE} characters that can be printed")
        if name in give or name in take:
            raise LabelError(f"the tag {name} is named twice")
        if word[0] == "+":
            give[name] = value
        else:
            take.append(name)
    return Change(give, tuple(take))


def of_job(run: Stored) -> dict[str, str]:
    """The tags that the job itself gave to a run."""
    tags = run.ours.get("Tags")
    return {str(name): str(text) for name, text in tags.items()} if isinstance(tags, dict) else {}


def read(folder: str, given: Mapping[str, str]) -> Labels:
    """The labels of a run.

    Args:
        folder: of the run.
        given: the tags of its job.
    """
    try:
        kept = _kept(folder)
    except LabelError as error:
        return Labels(_masked(dict(given)), problem=error.message)
    tags = {name: text for name, text in given.items() if name not in kept["removed"]}
    notes = tuple((one["at"], mask_text(one["text"])) for one in kept["notes"])
    return Labels(_masked({**tags, **kept["tags"]}), notes)


def change(folder: str, wanted: Change, given: Mapping[str, str]) -> Labels:
    """Labels a run, and returns what it is labelled with then.

    Raises:
        LabelError: a tag that is to be taken away is not there, or the file cannot be read or written.
    """
    with _locked(folder):
        kept = _kept(folder)
        present = {**{name: text for name, text in given.items() if name not in kept["removed"]}, **kept["tags"]}
        for name in wanted.take:
            if name not in present:
                hint = did_you_mean(name, present) or (
                    f"it has {', '.join(map(str, present))}" if present else "it has no tags"
                )
                raise LabelError(f"{os.path.basename(folder)} has no tag {name!r}", hint=hint)
        if len(wanted.note) > LONGEST_NOTE:
            raise LabelError(f"a note has up to {LONGEST_NOTE:,} characters, and this one {len(wanted.note):,}")
        kept["tags"] = {name: text for name, text in kept["tags"].items() if name not in wanted.take} | wanted.give
        kept["removed"] = sorted({*kept["removed"], *(name for name in wanted.take if name in given)} - {*wanted.give})
        if wanted.clear_notes:
            kept["notes"] = []
        if wanted.note:
            at = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
            kept["notes"] = [*kept["notes"], {"at": at, "text": mask_text(wanted.note)}]
        text = json.dumps({"format": FORMAT, **kept}, indent=1, ensure_ascii=False) + "\n"
        if len(text.encode("utf-8", "replace")) > LARGEST:
            raise LabelError(f"{folder}/{FILE} would have more than {LARGEST >> 20} MiB", hint="trainshed note RUN --clear")
        try:
            write_atomic(f"{folder}/{FILE}", text)
        except OSError as error:
            raise LabelError(f"{folder}/{FILE} cannot be written: {error.strerror}; nothing has changed") from error
    return read(folder, given)


def _masked(tags: dict[str, str]) -> dict[str, str]:
    return {name: str(text) for name, text in mask_mapping(tags).items()}


def _kept(folder: str) -> dict[str, Any]:
    """What the file holds, in the form above. Raises LabelError where it is damaged: what is in it is not to be lost."""
    path = f"{folder}/{FILE}"
    try:
        data = read_bytes(path, LARGEST, links=False)
        found = json.loads(data) if data is not None else {}
        tags, removed, notes = found.get("tags", {}), found.get("removed", []), found.get("notes", [])
        sound = all(isinstance(text, str) for text in (*tags, *tags.values(), *removed))
        sound = sound and all(isinstance(one["at"], str) and isinstance(one["text"], str) for one in notes)
        if not (sound and isinstance(tags, dict) and isinstance(removed, list) and isinstance(notes, list)):
            raise ValueError
        if not isinstance(found.get("format", FORMAT), int) or found.get("format", FORMAT) > FORMAT:
            raise LabelError(f"{path} was written by a later trainshed", hint="use that one")
    except OSError as error:
        raise LabelError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise LabelError(f"{path} is damaged", hint="repair it, or remove it: the run's tags and notes are in it") from error
    return {"tags": tags, "removed": removed, "notes": notes}


@contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Alone among the writers of a run's labels. Raises LabelError."""
    try:
        fd = os.open(f"{folder}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise LabelError(f"{folder} cannot be labelled: {error.strerror}") from error
    try:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise LabelError(f"another command has held {folder}/{LOCK} for {PATIENCE:.0f} s") from None
                time.sleep(0.01)
            except OSError as error:  # a file system without locks
                raise LabelError(f"{folder}/{LOCK} cannot be locked: {error.strerror}") from error
        yield
    finally:
        os.close(fd)
