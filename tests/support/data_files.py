"""Small files of every format that `trainshed.data` reads, and what they hold."""

from __future__ import annotations

import io
import struct
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from trainshed.data.formats.crc32c import crc32c, masked
from trainshed.data.formats.format import Format
from trainshed.data.formats.table import named

RECORDIO_MAGIC = 0xCED7230A


def frame(payload: bytes, part: int = 0) -> bytes:
    """A frame of RecordIO: the part of a record it is, 0 for all of it."""
    return struct.pack("<II", RECORDIO_MAGIC, part << 29 | len(payload)) + payload + bytes(-len(payload) % 4)


def tf_frame(payload: bytes) -> bytes:
    """A frame of TFRecord."""
    length = struct.pack("<Q", len(payload))
    sums = [struct.pack("<I", masked(crc32c(data))) for data in (length, payload)]
    return length + sums[0] + payload + sums[1]


def field(number: int, payload: bytes) -> bytes:
    """A field of a protocol buffer, of bytes."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def varint(value: int) -> bytes:
    """A number of a protocol buffer."""
    value &= (1 << 64) - 1
    found = b""
    while value > 0x7F:
        found += bytes([value & 0x7F | 0x80])
        value >>= 7
    return found + bytes([value])


def tensor_record(values: list[float], label: float, keys: list[int] | None = None) -> bytes:
    """A message of recordio-protobuf with a vector and a label, float32. keys: of values that are not 0; None: dense."""

    def entry(numbers: list[float], keys: list[int] | None = None) -> bytes:
        tensor = field(1, struct.pack(f"<{len(numbers)}f", *numbers))
        if keys is not None:
            tensor += field(2, b"".join(map(varint, keys)))
        return field(1, b"values") + field(2, field(2, tensor))

    return field(1, entry(values, keys)) + field(2, entry([label]))


def example(name: str, values: list[int]) -> bytes:
    """A tf.train.Example with integers."""
    feature = field(3, field(1, b"".join(map(varint, values))))
    return field(1, field(1, field(1, name.encode()) + field(2, feature)))


def tar(files: dict[str, bytes], **how: Any) -> bytes:
    """A tar archive, whose record size is a block, so that little follows its end mark."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", **how) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        used = archive.offset
    return stream.getvalue()[:used] + bytes(1024)


class Case(NamedTuple):
    """Files of a format.

    written: (folder, number of records) -> path. expected: the samples, comparable with `plain`.
    silent: whether cutting the file's bytes at a place leaves a file that cannot be told from a whole one.
    """

    form: Format
    written: Callable[[Path, int], str]
    expected: Callable[[int], list[Any]]
    silent: Callable[[bytes, int], bool] = lambda whole, cut: False


def plain(value: Any) -> Any:
    """Samples as lists and numbers, to be compared."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value


def samples(form: Format, path: str, first: int = 0) -> list[Any]:
    """What the training gets from a file, from a record on."""
    return [plain(form.sample(record)) for record in form.read(path, first, form.count(path))]


def _file(name: str, content: Callable[[int], bytes]) -> Callable[[Path, int], str]:
    def written(folder: Path, count: int) -> str:
        path = folder / name
        path.write_bytes(content(count))
        return str(path)

    return written


def _each(one: Callable[[int], Any]) -> Callable[[int], list[Any]]:
    return lambda count: [one(number) for number in range(count)]


def _joined(one: Callable[[int], bytes]) -> Callable[[int], bytes]:
    return lambda count: b"".join(map(one, range(count)))


def _at_frame(one: Callable[[int], bytes]) -> Callable[[bytes, int], bool]:
    return lambda whole, cut: cut in {len(_joined(one)(count)) for count in range(10)}


def _npy(folder: Path, count: int) -> str:
    import numpy as np

    path = str(folder / "a.npy")
    np.save(path, np.arange(3 * count, dtype=np.int16).reshape(count, 3))
    return path


def _npz(save: str) -> Callable[[Path, int], str]:
    def written(folder: Path, count: int) -> str:
        import numpy as np

        path = str(folder / "a.npz")
        getattr(np, save)(path, x=np.arange(2 * count, dtype=np.float32).reshape(count, 2), y=np.arange(count))
        return path

    return written


def _parquet(folder: Path, count: int) -> str:
    import pyarrow as pa
    from pyarrow import parquet

    path = str(folder / "a.parquet")
    rows = {"n": pa.array(range(count), pa.int32()), "t": [f"t{number}" for number in range(count)]}
    vectors = pa.array([[float(number), 0.5] for number in range(count)], pa.list_(pa.float32()))
    table = pa.table(rows | {"v": vectors})
    parquet.write_table(table, path, row_group_size=2, write_page_checksum=True)
    return path


def _tar_files(count: int) -> dict[str, bytes]:
    files = {}
    for number in range(count):
        files |= {f"d/{number:03}.txt": b"t%d" % number, f"d/{number:03}.cls": b"%d" % number}
    return files


def _recordio(number: int) -> bytes:
    return frame(b"r%d" % number * (1 + number % 3))


def _protobuf(number: int) -> bytes:
    return frame(tensor_record([number, 0.5], number % 2))


def _tf(number: int) -> bytes:
    return tf_frame(example("x", [number, -number]))


CASES: dict[str, Case] = {
    "recordio": Case(
        named("recordio"),
        _file("a.rec", _joined(_recordio)),
        _each(lambda number: b"r%d" % number * (1 + number % 3)),
        _at_frame(_recordio),
    ),
    "recordio-protobuf": Case(
        named("recordio-protobuf"),
        _file("a.pbr", _joined(_protobuf)),
        _each(lambda number: {"features": [number, 0.5], "label": [number % 2]}),
        _at_frame(_protobuf),
    ),
    "tfrecord": Case(
        named("tfrecord"), _file("a.tfrecord", _joined(_tf)), _each(lambda number: {"x": [number, -number]}), _at_frame(_tf)
    ),
    "lines": Case(
        named("lines"),
        _file("a.txt", _joined(lambda number: b"\n" if number == 1 else b"l\xc3\xb6%d\r\n" % number)),
        _each(lambda number: "" if number == 1 else f"lö{number}"),
        lambda whole, cut: True,
    ),
    "jsonlines": Case(
        named("jsonlines"),
        _file("a.jsonl", lambda count: b" \n" + b"".join(b'{"n": %d}\n\r\n' % number for number in range(count))),
        _each(lambda number: {"n": number}),
        lambda whole, cut: whole[:cut].rstrip()[-1:] in (b"", b"}"),
    ),
    "csv": Case(
        named("csv"),
        _file("a.csv", lambda count: b"n,t\n" + b"".join(b'%d,"a ""b"",\n%d"\n' % (n, n) for n in range(count))),
        _each(lambda number: {"n": float(number), "t": f'a "b",\n{number}'}),
        lambda whole, cut: True,
    ),
    "parquet": Case(
        named("parquet"), _parquet, _each(lambda number: {"n": number, "t": f"t{number}", "v": [float(number), 0.5]})
    ),
    "npy": Case(named("npy"), _npy, _each(lambda number: [3 * number, 3 * number + 1, 3 * number + 2])),
    "npz": Case(named("npz"), _npz("savez"), _each(lambda number: {"x": [2 * number, 2 * number + 1], "y": number})),
    "npz-compressed": Case(
        named("npz"), _npz("savez_compressed"), _each(lambda number: {"x": [2 * number, 2 * number + 1], "y": number})
    ),
    "tar": Case(
        named("tar"),
        _file("a.tar", lambda count: tar(_tar_files(count))),
        _each(lambda number: {"__key__": f"d/{number:03}", "txt": f"t{number}", "cls": number}),
        lambda whole, cut: cut >= len(whole) - 512,
    ),
}


def cuts(path: str) -> Iterator[tuple[bytes, int]]:
    """Cuts a file at every byte, from its end on: (its whole content, where it is cut now)."""
    whole = Path(path).read_bytes()
    for cut in range(len(whole) - 1, -1, -1):
        with open(path, "r+b") as file:
            file.truncate(cut)
        yield whole, cut
