"""recordio-protobuf, against Google's own implementation with the message that Amazon publishes."""

from __future__ import annotations

import math
import pickle
import struct
from functools import cache
from typing import Any

import pytest

from support.data_files import field, frame, plain, tensor_record, varint
from support.extras import needs
from support.lazy import Lazy
from support.properties import given, st
from trainshed.data.formats.errors import SampleError
from trainshed.data.formats.protobuf import RecordIOProtobuf, Sparse

needs("numpy", "google.protobuf")

np = Lazy("numpy")
FORM = RecordIOProtobuf()
TENSORS = {"float32": 2, "float64": 3, "int32": 7}


@cache
def record_class() -> Any:
    """The class of aialgs.data.Record, made from a description of the message."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="record.proto", package="aialgs.data", syntax="proto2")

    def message(name: str, *fields: tuple[Any, ...]) -> Any:
        one = file.message_type.add(name=name)
        for field_name, number, kind, label, *rest in fields:
            how = one.field.add(name=field_name, number=number, type=kind, label=label)
            for what in rest:
                if what == "packed":
                    how.options.packed = True
                elif what == "oneof":
                    how.oneof_index = 0
                else:
                    how.type_name = what
        return one

    kinds = {"float32": 2, "float64": 1, "int32": 5, "bytes": 12}  # of FieldDescriptorProto.Type
    for name, kind in kinds.items():
        tensor = name != "bytes"
        message(
            f"{name}Tensor",
            ("values", 1, kind, 3, *(["packed"] if tensor else [])),
            *([("keys", 2, 4, 3, "packed"), ("shape", 3, 4, 3, "packed")] if tensor else []),
        )
    value = message(
        "Value",
        *(
            (name if name == "bytes" else f"{name}_tensor", number, 11, 1, f".aialgs.data.{name}Tensor", "oneof")
            for name, number in {**TENSORS, "bytes": 9}.items()
        ),
    )
    value.oneof_decl.add(name="value")
    record = message("Record")
    for name, number in (("features", 1), ("label", 2)):
        entry = record.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=9, label=1)
        entry.field.add(name="value", number=2, type=11, label=1, type_name=".aialgs.data.Value")
        where = f".aialgs.data.Record.{name.capitalize()}Entry"
        record.field.add(name=name, number=number, type=11, label=3, type_name=where)
    for name, number in (("uid", 3), ("metadata", 4), ("configuration", 5)):
        record.field.add(name=name, number=number, type=9, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("aialgs.data.Record"))


@given(lambda: st.data(), max_examples=60)
def test_what_googles_implementation_writes_is_read_equal(data: st.DataObject) -> None:
    numbers = {"float32": st.floats(width=32), "float64": st.floats(), "int32": st.integers(-(1 << 31), (1 << 31) - 1)}
    record, expected = record_class()(), {}
    for name in ("features", "label"):
        kinds = data.draw(st.dictionaries(st.text(max_size=3) | st.just("values"), st.sampled_from([*TENSORS]), max_size=3))
        for key, kind in kinds.items():
            values = data.draw(st.lists(numbers[kind], max_size=200 if data.draw(st.booleans()) else 5))
            getattr(getattr(record, name)[key], f"{kind}_tensor").values.extend(values)
            getattr(getattr(record, name)[key], f"{kind}_tensor").SetInParent()
            expected.setdefault(name, {})[key] = np.array(values, kind)
    record.uid = data.draw(st.text(max_size=3))
    content = record.SerializeToString()
    if not record.features:
        with pytest.raises(SampleError, match="no features"):
            FORM.sample(content)
        return

    found = FORM.sample(content)

    assert found.keys() == expected.keys()
    for name, arrays in expected.items():
        one = {"values": found[name]} if arrays.keys() == {"values"} else found[name]
        assert one.keys() == arrays.keys()
        for key, array in arrays.items():
            assert one[key].dtype == array.dtype and np.array_equal(one[key], array, equal_nan=array.dtype.kind == "f")


@given(
    lambda: (st.sampled_from([*TENSORS]), st.lists(st.integers(-3, 1 << 20), min_size=3, max_size=3), st.integers(1, 5)),
    max_examples=60,
)
def test_a_batch_of_records_that_are_built_alike_is_their_samples_stacked(kind: str, start: list[int], rows: int) -> None:
    records = []
    for row in range(rows):
        record = record_class()()
        getattr(record.features["values"], f"{kind}_tensor").values.extend([number + row for number in start])
        record.label["values"].int32_tensor.values.append(row)
        records.append(record.SerializeToString())
    expected = [FORM.sample(record) for record in records]

    batch = FORM.batch(records)

    if batch is None:  # some integers take more bytes than others
        assert kind == "int32" and len({len(record) for record in records}) > 1
        return
    assert batch["features"].dtype == expected[0]["features"].dtype
    assert plain(batch) == {name: [plain(one[name]) for one in expected] for name in ("features", "label")}
    batch["features"][:] = 0  # it may be written


@pytest.mark.parametrize(
    "other",
    [
        tensor_record([1, 2, 3], 0),
        tensor_record([1, 2], 0)[:-1],
        tensor_record([1, 2], 0) + field(3, b"uid"),
        tensor_record([1, 2], 0).replace(b"values", b"valueS"),
        b"",
    ],
)
def test_a_batch_of_records_that_are_built_differently_is_left_to_sample(other: bytes) -> None:
    assert FORM.batch([tensor_record([1, 2], 0), tensor_record([3, 4], 1)]) is not None
    assert FORM.batch([tensor_record([1, 2], 0), other]) is None
    assert FORM.batch([other, tensor_record([1, 2], 0)]) is None


def value_of(number: int, tensor: bytes, key: bytes = b"values") -> bytes:
    """A record with one feature, of a Value's field."""
    return field(1, field(1, key) + field(2, field(number, tensor)))


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def test_repeated_fields_need_not_be_packed() -> None:
    unpacked = b"".join(varint(1 << 3 | 5) + floats(number) for number in (1, 2, 3))
    mixed = field(1, floats(0)) + unpacked + b"".join(varint(3 << 3) + varint(size) for size in (2, 2))
    numbers = varint(1 << 3) + varint(-5) + field(1, varint(7) + varint(300))

    assert FORM.sample(value_of(2, mixed))["features"].tolist() == [[0, 1], [2, 3]]
    assert FORM.sample(value_of(7, numbers))["features"].tolist() == [-5, 7, 300]
    assert FORM.batch([value_of(2, mixed)] * 2) is None


def test_parts_of_a_message_are_merged_and_the_last_of_a_oneof_counts() -> None:
    merged = field(2, field(1, floats(1))) + field(2, field(1, floats(2)))
    replaced = field(2, field(1, floats(1))) + field(3, field(1, struct.pack("<d", 2)))

    assert FORM.sample(field(1, field(1, b"values") + field(2, merged)))["features"].tolist() == [1, 2]
    found = FORM.sample(field(1, field(1, b"values") + field(2, replaced)))["features"]
    assert found.tolist() == [2] and found.dtype == np.float64


def test_a_tensor_gets_its_shape() -> None:
    shape = field(3, varint(2) + varint(3))
    record = value_of(2, field(1, floats(*range(6))) + shape)

    assert FORM.sample(record)["features"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert FORM.batch([record, record])["features"].shape == (2, 2, 3)  # type: ignore[index]
    with pytest.raises(SampleError, match=r"shape \(2, 3\) with 5 values"):
        FORM.sample(value_of(2, field(1, floats(*range(5))) + shape))


def test_a_sparse_tensor_is_told_by_its_keys() -> None:
    shape = field(3, varint(4))
    found = FORM.sample(value_of(2, field(1, floats(5, 6)) + field(2, varint(3) + varint(1)) + shape))["features"]

    assert found == Sparse(np.array([3, 1], np.uint64), np.array([5, 6], np.float32), (4,))
    assert found != Sparse(np.array([3, 2], np.uint64), np.array([5, 6], np.float32), (4,))
    assert found.dense().tolist() == [0, 6, 0, 5]
    assert pickle.loads(pickle.dumps(found)) == found  # as it comes from a loader's worker


def test_a_sparse_tensor_without_elements_is_one_of_zeros() -> None:
    found = FORM.sample(value_of(2, field(3, varint(4))))["features"]

    assert isinstance(found, Sparse) and found.dense().tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (field(1, floats(1)) + field(2, varint(1) + varint(2)), "2 keys and 1 values"),
        (field(1, floats(1)) + field(2, varint(4)) + field(3, varint(4)), "with the key 4"),
        (field(1, floats(1, 2)[:-1]), "numbers of 4 bytes in 7 bytes"),
        (field(1, floats(1)) + field(3, varint(1 << 63) + varint(0)), "shape"),
        (field(1, floats(1)) + field(3, b"\x80"), "ends within a number"),
        (varint(1 << 3) + varint(3), "numbers of kind 0"),
        (field(1, floats(1)[:3]) + field(1, floats(1)[3:]), "numbers of 4 bytes in 3 bytes"),
    ],
)
def test_a_tensor_that_does_not_fit_together_is_refused(tensor: bytes, words: str) -> None:
    with pytest.raises(SampleError, match=words):
        FORM.sample(value_of(2, tensor))


def test_a_tensor_without_elements_may_have_any_shape() -> None:
    huge = FORM.sample(value_of(2, field(3, varint(1 << 62) + varint(1 << 62))))["features"]

    assert isinstance(huge, Sparse) and huge.shape == (1 << 62, 1 << 62)
    assert FORM.sample(value_of(2, field(3, varint(0))))["features"].shape == (0,)


def test_bytes_stay_bytes() -> None:
    assert FORM.sample(value_of(9, field(1, b"abc"), b"image"))["features"] == {"image": b"abc"}
    assert FORM.sample(value_of(9, field(1, b"abc") + field(1, b"d")))["features"] == [b"abc", b"d"]


def test_unknown_fields_are_skipped_and_unknown_values_refused() -> None:
    strange = (
        field(17, b"new") + varint(18 << 3) + varint(9) + varint(19 << 3 | 1) + bytes(8) + varint(20 << 3 | 5) + bytes(4)
    )

    assert plain(FORM.sample(strange + tensor_record([1], 2))) == {"features": [1], "label": [2]}
    with pytest.raises(SampleError, match="unknown type"):
        FORM.sample(value_of(23, b""))


@pytest.mark.parametrize("record", [b"\x0b", b"\xff" * 12, b"\x0a\xff\xff\xff\xff\x0f", b"\x00\x00", b"\xff" * 9 + b"\x02"])
def test_what_is_not_a_message_is_refused(record: bytes) -> None:
    with pytest.raises(SampleError, match="is not a protocol buffer of type Record: it "):
        FORM.sample(record)


def test_a_record_that_is_cut_anywhere_is_refused_or_lacks_its_label() -> None:
    whole = tensor_record([1, 2, 3], 4)
    for cut in range(len(whole)):
        try:
            found = FORM.sample(whole[:cut])
        except SampleError:
            continue
        assert plain(found) == {"features": [1, 2, 3]}


@given(lambda: st.binary(max_size=40), max_examples=300)
def test_noise_is_refused_with_words(noise: bytes) -> None:
    try:
        FORM.sample(noise)
    except SampleError:
        pass
    FORM.batch([noise, noise])


def test_special_numbers_stay() -> None:
    found = FORM.sample(tensor_record([math.inf, -0.0, math.nan], 1e-45))["features"].tolist()

    assert found[0] == math.inf and math.copysign(1, found[1]) == -1 and math.isnan(found[2])


def test_other_recordio_is_not_taken_for_it() -> None:
    for payload in (b"", b"\0" * 24 + b"\xff\xd8", b"{}", b"\x0a\x01"):
        assert not FORM.recognizes("a", frame(payload) + frame(b"x"))
    long = frame(tensor_record([1.0] * 40_000, 0))
    assert FORM.recognizes("a", long[:65536])
