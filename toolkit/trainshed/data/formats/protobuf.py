"""RecordIO with a protocol buffer in each record: Amazon's format for tensors, dense and sparse.

The message is `aialgs.data.Record` (proto2): features = 1 and label = 2 are map<string, Value>; uid
= 3, metadata = 4 and configuration = 5 are text, and left out of samples. A Value is one of
float32_tensor = 2, float64_tensor = 3, int32_tensor = 7 (each with packed values = 1, keys = 2,
shape = 3) and bytes = 9 (value = 1, repeated). A vector has the key "values". Source: "Common data
formats for training" in the SageMaker developer guide.
"""

from __future__ import annotations

from trainshed.base.protobuf import BYTES, DecodeError, spans
from trainshed.base.record import Record

from .equal import Equal
from .errors import SampleError
from .packed import DOUBLES, FLOATS, INTS, KEYS, columns, joined, stacked, strided
from .recordio import RecordIO

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    Places = list[tuple[int, int, int]]  # (kind, begin, end) of a repeated field's parts
    Message = dict[str, dict[str, "_Value"]]  # "features" and "label", by their keys

_MAPS = {1: "features", 2: "label"}
_TENSORS = {2: FLOATS, 3: DOUBLES, 7: INTS}
_BYTES_VALUE = 9
_VALUES, _KEYS, _SHAPE = 1, 2, 3
_ALONE = "values"  # the key of what has no name


class Sparse(Record):
    """A tensor of which only some elements are written down; the others are 0.

    keys: uint64 [n], where the values are, counted in row-major order.
    values: [n], of float32, float64 or int32.
    shape: of the whole tensor; () where it was not said.
    """

    keys: Any
    values: Any
    shape: tuple[int, ...] = ()

    def dense(self) -> Any:
        """The whole array, of `shape`; without one, as long as its largest key asks for."""
        import numpy as np

        shape = self.shape or (int(self.keys.max()) + 1 if len(self.keys) else 0,)
        whole = np.zeros(shape, self.values.dtype)
        whole.reshape(-1)[self.keys.astype(np.int64)] = self.values
        return whole

    def __eq__(self, other: object) -> bool:
        import numpy as np

        return (
            isinstance(other, Sparse)
            and (self.shape, self.values.dtype) == (other.shape, other.values.dtype)
            and np.array_equal(self.keys, other.keys)
            and np.array_equal(self.values, other.values, equal_nan=self.values.dtype.kind == "f")
        )

    __hash__ = None  # type: ignore[assignment]


class RecordIOProtobuf(RecordIO):
    """Tensors by name: {"features": ..., "label": ...}, the label only where there is one.

    Each is an array where its map has the one key "values", else a dictionary of arrays. A dense
    tensor has its `shape`, or one dimension; a sparse one is a `Sparse`; bytes are bytes, or a list
    of them.
    """

    name = "recordio-protobuf"
    content_types: tuple[str, ...] = ("application/x-recordio-protobuf",)
    endings: tuple[str, ...] = (".pbr", ".rec", ".recordio")
    needs: tuple[str, ...] = ("numpy",)

    def sample(self, record: bytes) -> dict[str, Any]:
        """Decodes one record."""
        try:
            return _named(_parsed(record), lambda value: _tensor(record, value))
        except DecodeError as error:
            raise SampleError(f"is not a protocol buffer of type Record: it {error}") from error

    def batch(self, records: Sequence[bytes]) -> dict[str, Any] | None:
        """Decodes records that differ in dense numbers alone, all at once; None for others, which `sample` takes."""
        if isinstance(records, Equal):
            return _of_equal(records)
        try:
            message = _parsed(records[0])
            values = sorted((value for named in message.values() for value in named.values()), key=_begin)
            found = columns(records, [value.dense_span() for value in values]) if all(map(_is_plain, values)) else None
            if found is None:
                return None
            arrays = {id(value): stacked(_TENSORS[value.type], column) for value, column in zip(values, found, strict=True)}
            if any(array is None for array in arrays.values()):
                return None
            return _named(message, lambda value: _shaped(arrays[id(value)], _shape(records[0], value), 1))
        except (DecodeError, SampleError):
            return None  # `sample` says which

    def recognizes(self, path: str, beginning: bytes) -> bool:
        """By RecordIO's magic number and the first field of the message, which is a map's entry."""
        if not super().recognizes(path, beginning):
            return False
        payload = beginning[8 : 8 + int.from_bytes(beginning[4:8], "little") % (1 << 29)]
        try:
            return bool(_parsed(payload))
        except DecodeError:  # the beginning ends within the record, or it is something else
            entry = payload[:1] in (b"\x0a", b"\x12") and payload[1:8].lstrip(_CONTINUED)[1:2] == b"\x0a"
            return entry and len(beginning) < 8 + int.from_bytes(beginning[4:8], "little") % (1 << 29)


def _of_equal(records: Equal) -> dict[str, Any] | None:
    """The same of frames of one length; what they have in common is looked at once for a stream."""
    try:
        known = records.memo.get("layout")
        found = None if known is None else strided(records, known[0], known[1])
        if known is None or found is None:
            known = _layout(records[0])
            found = None if known is None else strided(records, known[0], known[1])
        if known is None or found is None:
            return None
        records.memo["layout"] = known
        first, _, message, values = known
        arrays = {id(value): stacked(_TENSORS[value.type], column) for value, column in zip(values, found, strict=True)}
        if any(array is None for array in arrays.values()):
            return None
        return _named(message, lambda value: _shaped(arrays[id(value)], _shape(first, value), 1))
    except (DecodeError, SampleError):
        return None  # `sample` says which


def _layout(first: bytes) -> tuple[bytes, list[tuple[int, int]], Message, list[_Value]] | None:
    """A record, where its numbers lie, and what they are; None where they lie in more than one piece. Raises DecodeError."""
    message = _parsed(first)
    values = sorted((value for named in message.values() for value in named.values()), key=_begin)
    return (first, [value.dense_span() for value in values], message, values) if all(map(_is_plain, values)) else None


_CONTINUED = bytes(range(0x80, 0x100))  # bytes of a varint that are not its last


class _Value:
    """Where the parts of a Value lie in its record: which tensor it is, and the places of its fields."""

    def __init__(self) -> None:
        self.type = 0
        self.parts: dict[int, Places] = {}

    def add(self, record: bytes, kind: int, begin: int, end: int) -> None:
        """Takes one more tensor in: the last type counts, and equal ones are merged, as protocol buffers do."""
        for number, how, first, last in spans(record, begin, end):
            if number in (_VALUES, _KEYS, _SHAPE) and last > first:
                self.parts.setdefault(number, []).append((how, first, last))

    def dense_span(self) -> tuple[int, int]:
        """The place of the only part of its values."""
        ((_, begin, end),) = self.parts[_VALUES]
        return begin, end


def _begin(value: _Value) -> int:
    return value.parts[_VALUES][0][1] if value.parts.get(_VALUES) else 0


def _is_plain(value: _Value) -> bool:
    """Whether its numbers lie in one piece."""
    parts = value.parts.get(_VALUES, [])
    return value.type in _TENSORS and _KEYS not in value.parts and len(parts) == 1 and parts[0][0] == BYTES


def _parsed(record: bytes) -> Message:
    message: Message = {}
    for number, kind, begin, end in spans(record):
        if number in _MAPS and kind == BYTES:
            key, value = _entry(record, begin, end)
            message.setdefault(_MAPS[number], {})[key] = value
    return message


def _entry(record: bytes, begin: int, end: int) -> tuple[str, _Value]:
    key, value = "", _Value()
    for number, kind, first, last in spans(record, begin, end):
        if number == 1 and kind == BYTES:
            key = record[first:last].decode("utf-8", "replace")
        elif number == 2 and kind == BYTES:
            for type_, how, start, stop in spans(record, first, last):
                if (type_ in _TENSORS or type_ == _BYTES_VALUE) and how == BYTES:
                    if type_ != value.type:
                        value = _Value()
                        value.type = type_
                    value.add(record, how, start, stop)
    return key, value


def _named(message: Message, build: Callable[[_Value], Any]) -> dict[str, Any]:
    if "features" not in message:
        raise SampleError("has no features: it is not a protocol buffer of type Record, or was not filled")
    built = {name: {key: build(value) for key, value in values.items()} for name, values in message.items()}
    return {name: tensors[_ALONE] if tensors.keys() == {_ALONE} else tensors for name, tensors in built.items()}


def _tensor(record: bytes, value: _Value) -> Any:
    if value.type == _BYTES_VALUE:
        pieces = [record[begin:end] for _, begin, end in value.parts.get(_VALUES, [])]
        return pieces[0] if len(pieces) == 1 else pieces
    if value.type not in _TENSORS:
        raise SampleError("has a value of an unknown type")
    kind = _TENSORS[value.type]
    values = joined(kind, record, value.parts.get(_VALUES, ()))
    keys = joined(KEYS, record, value.parts.get(_KEYS, ()))
    shape = _shape(record, value)
    if not len(keys) and (len(values) or 0 in shape or not shape):
        return _shaped(values, shape, 0)
    if len(keys) != len(values):
        raise SampleError(f"has a sparse tensor of {len(keys)} keys and {len(values)} values")
    if shape and len(keys) and int(keys.max()) >= _product(shape):
        raise SampleError(f"has a sparse tensor of shape {shape} with the key {keys.max()}")
    return Sparse(keys, values, shape)


def _shape(record: bytes, value: _Value) -> tuple[int, ...]:
    places = value.parts.get(_SHAPE)
    return tuple(joined(KEYS, record, places).tolist()) if places else ()


def _shaped(array: Any, shape: tuple[int, ...], before: int) -> Any:
    """An array with its shape behind its first `before` dimensions."""
    if not shape:
        return array
    if _product(shape) != array.shape[before]:
        raise SampleError(f"has a tensor of shape {shape} with {array.shape[before]} values")
    return array.reshape(*array.shape[:before], *shape)


def _product(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size
