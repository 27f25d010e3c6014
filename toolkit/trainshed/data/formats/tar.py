"""Tar archives in the layout of webdataset: files of one stem, one after the other, are a sample.

The stem is the name up to the first dot behind the last slash; what follows that dot is the file's
key in the sample. Files without a dot, and those whose name begins with one, are left out, as
webdataset does. Source: "The WebDataset format" in https://github.com/webdataset/webdataset
"""

from __future__ import annotations

import io
import json
import os
import re
import tarfile

from .errors import DataError, SampleError, damaged
from .format import LARGEST, Counted, Marks, StreamFormat, is_packed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO, Any

_LONGEST_NAME = 1 << 20  # bytes of an extended header
# Bytes that are read at once: for a header alone; and by tarfile, which copies what is left of them with each read.
_GLANCE = 1 << 14
_EXTENDED = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_BLOCK = 512  # bytes of a header; what follows it is padded to as many
_MOST_PADDING = 1 << 20
_HEADERS = 4096  # whose checksums are looked at together
_TIME = re.compile(rb"(\d{1,3}) mtime=\d{1,20}(?:\.\d{1,20})?\n")  # all that Python writes into most extended headers
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)


class Tar(StreamFormat):
    """Samples are {"__key__": the stem, "jpg": bytes, ...}.

    What ends with .json is decoded, .txt is text, .cls a number, .npy an array; all else stays
    bytes, pickles, too. Images are decoded by `images.decode_image`.
    """

    name = "tar"
    content_types = ("application/x-tar", "application/tar")
    endings = (".tar",)

    def split(self, stream: IO[bytes], path: str, record: int = 0, offset: int = 0) -> Iterator[tuple[int, Any]]:
        """Records are dictionaries of bytes, and "__key__". Archives may follow one another, as in a pipe."""
        sample: dict[str, Any] = {}
        begin = offset
        for member in _Members(stream, path, record, offset, whole=True):
            if member.begins:
                if sample:
                    yield begin, sample
                sample, begin = {"__key__": member.key}, member.offset
            sample[member.ending] = member.data
        if sample:
            yield begin, sample

    def count(self, path: str) -> Counted:
        """Looks at the headers alone."""
        if is_packed(path):
            return super().count(path)
        marks = Marks()
        with open(path, "rb", buffering=_GLANCE) as stream:
            if (plain := _count_plain(stream.fileno())) is not None:
                return plain
            for member in _Members(stream, path, 0, 0, whole=False):
                if member.begins:
                    marks.add(member.offset)
        return marks.counted()

    def sample(self, record: Any) -> dict[str, Any]:
        """Decodes what is neither an image nor of a kind of its own."""
        return {name: _decoded(name, data) for name, data in record.items()}

    def recognizes(self, path: str, beginning: bytes) -> bool:
        """By the checksum of the first header."""
        try:
            tarfile.TarInfo.frombuf(beginning[:512], "utf-8", "surrogateescape")
        except tarfile.HeaderError:
            return False
        return True


class _Member:
    """A file of an archive: its sample's key, whether it is the first of it, its own key, where its header is."""

    def __init__(self, key: str, ending: str, begins: bool, offset: int, data: bytes) -> None:
        self.key, self.ending, self.begins, self.offset, self.data = key, ending, begins, offset, data


class _Members:
    """Walks over an archive with tarfile, which ends without a word at what it does not understand: this one refuses.

    whole: whether the files are read, which makes no seeking necessary.
    """

    def __init__(self, stream: IO[bytes], path: str, record: int, offset: int, *, whole: bool) -> None:
        self._stream, self._path, self._record, self._base, self._whole = stream, path, record, offset, whole
        self._next = record  # the number of the sample that begins next
        self._at = offset  # of the header that is looked at
        self._ended = False  # whether the last block was the end of an archive

    def __iter__(self) -> Iterator[_Member]:
        try:
            yield from self._members()
        except (tarfile.TarError, OverflowError, ValueError, EOFError) as error:
            raise self._damaged(f"cannot be read: {error}") from error

    def _members(self) -> Iterator[_Member]:
        key, names, keys = "", set[str](), set[int]()
        archive = self._archive()
        while (info := archive.next()) is not None:
            archive.members = []  # type: ignore[attr-defined] # else it keeps all of them
            if self._ended:  # another archive follows
                self._ended, key, keys = False, "", set()
            self._at = self._base + info.offset
            self._check(info)
            if not info.isreg() or not (parts := _parts(info.name)):
                continue
            begins = parts[0] != key
            if begins:
                self._record, self._next = self._next, self._next + 1
                key, names = parts[0], set()
                if hash(key) in keys:
                    raise self._damaged(f"is the second one of {key!r}: files of a sample must follow each other")
                keys.add(hash(key))
            if parts[1] in names or parts[1] == "__key__":
                raise self._damaged(f"has two files {info.name!r}")
            names.add(parts[1])
            yield _Member(*parts, begins, self._at, self._data(archive, info))

    def _archive(self) -> tarfile.TarFile:
        members = self

        class Checked(tarfile.TarInfo):
            """Tells an archive's end from damage, and refuses headers that would fill the memory."""

            @classmethod
            def fromtarfile(cls, archive: tarfile.TarFile) -> Any:
                members._at = members._base + archive.offset
                try:
                    return super().fromtarfile(archive)
                except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
                    members._ended = True
                    raise
                except tarfile.EmptyHeaderError as error:  # type: ignore[attr-defined]
                    if not members._ended:
                        raise members._damaged("is missing: the archive ends before its end mark") from error
                    raise
                except tarfile.HeaderError as error:
                    raise members._damaged(f"has a damaged header: {error}") from error

            def _proc_member(self, archive: tarfile.TarFile) -> Any:  # to be overridden, says tarfile
                if not 0 <= self.size <= (_LONGEST_NAME if self.type in _EXTENDED else LARGEST):
                    raise members._damaged(f"claims to have {self.size} bytes")
                return super()._proc_member(archive)  # type: ignore[misc]

        how: dict[str, Any] = {"mode": "r|", "bufsize": _GLANCE} if self._whole else {"mode": "r:"}
        # Its stream is closed by who has opened it.
        return tarfile.open(fileobj=self._stream, tarinfo=Checked, ignore_zeros=True, errors="surrogateescape", **how)

    def _check(self, info: tarfile.TarInfo) -> None:
        if not 0 <= info.size <= LARGEST:
            raise self._damaged(f"claims to have {info.size} bytes")
        if info.issparse() or any(name.startswith("GNU.sparse") for name in info.pax_headers):
            raise self._damaged(f"is a sparse file, {info.name!r}: write the archive without --sparse")
        if info.issym() or info.islnk():
            what = f"is a link, {info.name!r} to {info.linkname!r}"
            raise self._damaged(f"{what}: write the archive with --dereference --hard-dereference")
        if not info.isdir() and info.type not in _FILES:
            raise self._damaged(f"is neither a file nor a folder: {info.name!r}")

    def _data(self, archive: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
        if not self._whole:
            return b""
        stream: Any = archive.fileobj  # an object of tarfile's between costs as much as the rest
        stream.seek(info.offset_data)
        data = stream.read(info.size)
        if len(data) != info.size:
            raise self._damaged(f"is cut short: {info.name!r} has {len(data)} of {info.size} bytes")
        return data

    def _damaged(self, what: str) -> DataError:
        return damaged(self._path, self._record, self._at, what)


def _count_plain(file: int) -> Counted | None:
    """Counts the samples of an archive whose headers are all plain, as most are, in a fifth of tarfile's time.

    None for an archive that has anything else, damage for example.
    """
    marks, key, names, keys = Marks(), "", set[str](), set[str]()
    at, begin, headers = 0, -1, list[bytes]()
    while header := os.pread(file, _BLOCK, at):
        kind, digits = header[156:157], header[124:136].rstrip(b"\0 ")
        if header[257:262] != b"ustar" or digits.strip(b"01234567"):
            whole = begin < 0 < at and _is_padding(file, at) and _are_whole(headers)
            return marks.counted() if whole else None
        headers.append(header)
        if len(headers) == _HEADERS:
            if not _are_whole(headers):
                return None
            headers = []
        size, begin = int(digits or b"0", 8), begin if begin >= 0 else at
        if kind == tarfile.XHDTYPE and begin == at and size <= _GLANCE:
            told = _TIME.fullmatch(os.pread(file, size, at + _BLOCK))
            if told is None or int(told[1]) != size:
                return None
        elif kind in (tarfile.REGTYPE, tarfile.AREGTYPE) and size <= LARGEST:
            name, prefix = header[:100].partition(b"\0")[0], header[345:500].partition(b"\0")[0]
            path = (prefix + b"/" + name if prefix else name).decode("utf-8", "surrogateescape")
            if path.endswith("/"):
                return None
            if parts := _parts(path):
                if parts[0] != key:
                    key, names = parts[0], set()
                    if key in keys:
                        return None
                    keys.add(key)
                    marks.add(begin)
                if parts[1] in names or parts[1] == "__key__":
                    return None
                names.add(parts[1])
            begin = -1
        else:
            return None
        at += _BLOCK - -size // _BLOCK * _BLOCK
    return None


def _are_whole(headers: list[bytes]) -> bool:
    """Compares headers with their checksums; False without numpy."""
    try:
        import numpy as np
    except ImportError:
        return False
    sums = np.frombuffer(b"".join(headers), np.uint8).reshape(-1, _BLOCK).sum(axis=1, dtype=np.int64).tolist()
    fields = [header[148:156] for header in headers]
    try:
        return all(
            int(field.strip(b"\0 "), 8) == total - sum(field) + 8 * ord(" ")
            for total, field in zip(sums, fields, strict=True)
        )
    except ValueError:  # short blocks, or no number
        return False


def _is_padding(file: int, at: int) -> bool:
    """Tells whether an archive's end mark is here, and nothing but padding behind it."""
    rest = os.pread(file, _MOST_PADDING, at)
    return 0 < len(rest) < _MOST_PADDING and len(rest) % _BLOCK == 0 and not rest.strip(b"\0")


def _parts(name: str) -> tuple[str, str] | None:
    """(stem, ending) of a file that belongs to a sample."""
    folder, slash, base = name.rpartition("/")
    stem, dot, ending = base.partition(".")
    return (folder + slash + stem, ending.lower()) if stem and dot else None


def _decoded(name: str, data: Any) -> Any:
    ending = name.rpartition(".")[2]
    try:
        if ending == "json":
            return json.loads(data.decode())
        if ending == "txt":
            return data.decode()
        if ending == "cls":
            return int(data)
        if ending == "npy":
            import numpy as np

            return np.load(io.BytesIO(data), allow_pickle=False)
    except Exception as error:  # numpy and its parsers raise all kinds
        raise SampleError(f"has a file {name!r} that cannot be decoded: {error}") from error
    return data
