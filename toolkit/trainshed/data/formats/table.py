"""All formats, and which one a channel has: by its name, content type, the files' endings, or their first bytes."""

from __future__ import annotations

import os
from importlib.util import find_spec

from trainshed.base.errors import did_you_mean, some

from .delimited import Csv, Tsv
from .errors import DataError
from .format import Format, ending_of, is_packed, opened
from .images import ImageFolder
from .lines import JsonLines, Lines
from .npz import Npy, Npz
from .parquet import Parquet
from .protobuf import RecordIOProtobuf
from .recordio import RecordIO
from .tar import Tar
from .tfrecord import TfRecord, TfRecordBytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# Where several have a content type or an ending, or recognize a file, the first one counts that recognizes it.
FORMATS: tuple[Format, ...] = (
    RecordIOProtobuf(),
    RecordIO(),
    TfRecord(),
    TfRecordBytes(),
    Parquet(),
    Npy(),
    Npz(),
    Tar(),
    JsonLines(),
    Csv(),
    Tsv(),
    ImageFolder(),
    Lines(),
)
BEGINNING = 1 << 16  # bytes that are looked at
_NOTHING_SAID = ("", "application/octet-stream", "binary/octet-stream", "application/gzip", "application/x-gzip")
_HINT = "name it: channel(..., format=...)"


def named(name: str) -> Format:
    """The format of that name. Raises DataError with the nearest one."""
    found = next((one for one in FORMATS if one.name == name), None)
    if found is None:
        names = [one.name for one in FORMATS]
        raise DataError(f"{name!r} is not a known format", hint=did_you_mean(name, names) or f"known: {', '.join(names)}")
    return _installed(found)


def of(paths: Sequence[str], content_type: str = "", name: str = "") -> Format:
    """The format of a channel's files.

    Args:
        paths: of all files; or one folder, for a format that takes folders.
        content_type: as the channel has it, with its parameters; "" for none.
        name: of the format, where it was given.

    Raises:
        DataError: nothing fits, files differ, or a package is missing.
    """
    if name:
        return _for_all(named(name), paths)
    told = by_content_type(content_type)
    if told is not None:
        return _for_all(_installed(told), paths)
    if not paths:
        raise DataError("a channel without files and content type has no format to be told", hint=_HINT)
    found = {one.name: (one, path) for path in _examples(paths) if (one := _by_ending(path) or _by_looking(path))}
    for one, path in found.values():
        if is_packed(path) and not one.streams:
            raise DataError(f"{path}: {one.name} is not read from a compressed file", hint="unpack it")
    if len(found) > 1:
        files = some([f"{path} has {name}" for name, (_, path) in found.items()], 4)
        raise DataError(f"the channel's files have different formats: {files}", hint=f"separate them, or {_HINT}")
    return _for_all(_installed(next(iter(found.values()))[0]), paths)


def _for_all(found: Format, paths: Sequence[str]) -> Format:
    return found.of_channel(paths) if isinstance(found, Csv) else found


def of_beginning(beginning: bytes, path: str, content_type: str = "", name: str = "") -> Format:
    """The format of a stream, of which the first bytes have been read: as `of`, without looking at endings."""
    if name:
        return _streamed(named(name), path)
    told = by_content_type(content_type)
    if told is None:
        told = next((one for one in FORMATS if one.streams and one.recognizes(path, beginning)), None)
    if told is None:
        raise _unknown(path, beginning)
    return _streamed(_installed(told), path)


def by_content_type(content_type: str) -> Format | None:
    """The format of a content type; None where it says nothing ("application/octet-stream").

    Of the parameters, `header=present` and `header=absent` of text/csv are heeded (RFC 4180).
    Raises DataError where no format has it.
    """
    kind, *parameters = (part.strip() for part in content_type.lower().split(";"))
    if kind in _NOTHING_SAID:
        return None
    fitting = [one for one in FORMATS if kind in one.content_types]
    if not fitting:
        known = [one for form in FORMATS for one in form.content_types]
        hint = did_you_mean(kind, known)
        raise DataError(f"no format is known for the content type {content_type!r}", hint=f"{hint} {_HINT}".strip())
    found = fitting[0]
    headers = {"header=present": True, "header=absent": False}
    said = next((headers[parameter] for parameter in parameters if parameter in headers), None)
    return type(found)(header=said) if isinstance(found, Csv) and said is not None else found


def _examples(paths: Sequence[str]) -> list[str]:
    """A file of each ending, not an empty one where there is another."""
    groups: dict[str, list[str]] = {}
    for path in paths:
        groups.setdefault(ending_of(path), []).append(path)
    found = [next((path for path in group if os.path.getsize(path)), group[0]) for group in groups.values()]
    return [path for path in found if os.path.getsize(path)] or found[:1]


def _by_ending(path: str) -> Format | None:
    ending = ending_of(path)
    fitting = [one for one in FORMATS if ending and ending in one.endings]
    if len(fitting) > 1:
        beginning = _beginning(path)
        return next((one for one in fitting if one.recognizes(path, beginning)), fitting[-1])
    return fitting[0] if fitting else None


def _by_looking(path: str) -> Format:
    beginning = _beginning(path)
    found = next((one for one in FORMATS if one.recognizes(path, beginning)), None)
    if found is None:
        raise _unknown(path, beginning)
    if found.name == "lines" and ending_of(path) == ".json":
        what = f"{path} is not JSON with an object on each line"
        raise DataError(what, hint=f"write its records as JSON lines, or {_HINT}")
    return found


def _beginning(path: str) -> bytes:
    if os.path.isdir(path):
        return b""
    with opened(path) as stream:
        return stream.read(BEGINNING)


def _unknown(path: str, beginning: bytes) -> DataError:
    if not beginning:
        return DataError(f"{path} is empty: its format cannot be told", hint=_HINT)
    if beginning[:2] == b"\x1f\x8b":
        return DataError(f"{path} is compressed with gzip, and its name does not end with .gz", hint="rename it")
    names = ", ".join(one.name for one in FORMATS)
    what = f"{path} has none of the known formats: it begins with {beginning[:8]!r}"
    return DataError(what, hint=f"known: {names}; {_HINT}")


def _streamed(found: Format, path: str) -> Format:
    if not found.streams:
        able = ", ".join(one.name for one in FORMATS if one.streams)
        what = f"{path}: {found.name} cannot be read from a pipe"
        raise DataError(what, hint=f"use File or FastFile mode; pipes take {able}")
    return found


def _installed(found: Format) -> Format:
    missing = [package for package in found.needs if find_spec(package) is None]
    if missing:
        raise DataError(f"reading {found.name} needs {', '.join(missing)}", hint="pip install 'trainshed[data]'")
    return found
