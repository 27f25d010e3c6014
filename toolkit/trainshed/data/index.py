"""How many records each file of a channel has, counted once on a machine: the counts are kept in its temporary folder.

Counting reads a file's headers where its format has such, and else all of it once. The ranks of a host share the work's
result: one counts, the others wait for it.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time

from trainshed.base.files import read_object, write_atomic

from .formats.errors import DataError
from .formats.format import Counted
from .user_cache import own_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .formats.format import Format

_VERSION = 1
_LARGEST = 1 << 28  # bytes of an index
_SAY_AFTER = 3.0  # seconds
_SAY_EVERY = 15.0


def counts_of(files: Sequence[str], form: Format, say: Callable[[str], None]) -> list[Counted]:
    """The records of each file.

    Args:
        files: their paths.
        say: prints a line for the user, where it takes long.

    Raises:
        DataError: a file cannot be read or is damaged.
    """
    import fcntl

    facts = [_facts(path) for path in files]
    if form.scattered:  # a folder does not show that something deep in it has changed
        return _count(files, facts, form, say)
    name = hashlib.sha256(json.dumps([_VERSION, form.name, facts]).encode()).hexdigest()[:32]
    folder = own_folder(tempfile.gettempdir())
    if not folder:
        return _count(files, facts, form, say)
    path = f"{folder}/{name}.json"
    with open(f"{folder}/{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = _known(path, len(files))
        if known is None:
            known = _count(files, facts, form, say)
            try:
                write_atomic(path, json.dumps({"counts": [(one.records, one.marks, one.stride) for one in known]}))
            except OSError:  # a full disk costs the next start some time
                pass
    return known


def _facts(path: str) -> tuple[str, int, int]:
    try:
        info = os.stat(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    return (os.path.abspath(path), info.st_size, info.st_mtime_ns)


def _known(path: str, files: int) -> list[Counted] | None:
    counts = read_object(path, _LARGEST).get("counts")
    try:
        found = [
            Counted(int(records), tuple(map(int, marks)), max(1, int(stride)))
            for records, marks, stride in counts  # type: ignore[union-attr]
        ]
    except (TypeError, ValueError):
        return None
    return found if len(found) == files else None


def _count(
    files: Sequence[str], facts: Sequence[tuple[str, int, int]], form: Format, say: Callable[[str], None]
) -> list[Counted]:
    found: list[Counted] = []
    started = said = time.monotonic()
    total, done = sum(size for _, size, _ in facts), 0
    for path, (_, size, _) in zip(files, facts, strict=True):
        try:
            found.append(form.count(path))
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
        done += size
        now = time.monotonic()
        if now - started > _SAY_AFTER and now - said > (_SAY_EVERY if said > started else 0):
            said = now
            say(f"counting the records of {len(files)} {form.name} files: {done >> 20} of {total >> 20} MiB")
    return found
