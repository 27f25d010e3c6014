"""TFRecord and tf.train.Example, against TensorBoard's writer and reader, and Google's protocol buffers."""

from __future__ import annotations

import io
import random
import struct
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from support.data_files import example, field, plain, tf_frame, varint
from support.extras import needs
from support.properties import given, st
from trainshed.data.formats import crc32c
from trainshed.data.formats.errors import DataError, SampleError
from trainshed.data.formats.tfrecord import TfRecord, TfRecordBytes

needs("numpy", "google.protobuf", "tensorboard")

FORM = TfRecord()
BYTES = TfRecordBytes()


@cache
def example_class() -> Any:
    """The class of tf.train.Example, made from a description of the message."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="tf", syntax="proto3")
    for name, kind in (("BytesList", 12), ("FloatList", 2), ("Int64List", 3)):
        file.message_type.add(name=name).field.add(name="value", number=1, type=kind, label=3)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(("Bytes", "Float", "Int64"), 1):
        lists = f".tf.{name}List"
        feature.field.add(name=f"{name.lower()}_list", number=number, type=11, label=1, type_name=lists, oneof_index=0)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=11, label=1, type_name=".tf.Feature")
    features.field.add(name="feature", number=1, type=11, label=3, type_name=".tf.Features.FeatureEntry")
    one = file.message_type.add(name="Example")
    one.field.add(name="features", number=1, type=11, label=1, type_name=".tf.Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tf.Example"))


def features() -> Any:
    """The strategy of an example's features: each one's kind and values, by its name."""
    kinds = {
        "bytes_list": st.binary(max_size=9),
        "float_list": st.floats(width=32, allow_nan=False),
        "int64_list": st.integers(-(1 << 63), (1 << 63) - 1),
    }
    feature = st.sampled_from([*kinds]).flatmap(lambda kind: st.tuples(st.just(kind), st.lists(kinds[kind], max_size=12)))
    return st.dictionaries(st.text(max_size=3), feature, max_size=3)


@given(features, max_examples=60)
def test_what_googles_implementation_writes_is_read_equal(features: dict[str, tuple[str, list[Any]]]) -> None:
    one = example_class()()
    for name, (kind, values) in features.items():
        getattr(one.features.feature[name], kind).value.extend(values)
        getattr(one.features.feature[name], kind).SetInParent()

    found = FORM.sample(one.SerializeToString())

    assert plain(found) == {name: values for name, (_, values) in features.items()}
    for name, (kind, _) in features.items():
        assert str(getattr(found[name], "dtype", "")) == {"float_list": "float32", "int64_list": "int64"}.get(kind, "")


def test_what_tensorboard_writes_is_read_equal(tmp_path: Path) -> None:
    from tensorboard.summary.writer.record_writer import RecordWriter

    payloads = [b"", b"x", bytes(range(256)) * 30, b"abc" * 7, b"y" * 21]
    path = tmp_path / "a.tfrecord"
    with path.open("wb") as file:
        writer = RecordWriter(file)
        for payload in payloads:
            writer.write(payload)
        writer.flush()

    assert BYTES.count(str(path)).records == 5
    assert list(BYTES.read(str(path), 0, BYTES.count(str(path)))) == payloads


def test_checksums_are_those_of_the_standard_and_of_tensorboard() -> None:
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    assert crc32c.crc32c(b"123456789") == 0xE3069283
    chance = random.Random(0)
    pieces = [chance.randbytes(size) for size in [*range(70), 255, 256, 257, 1000, 4096, 4096, 4097, 30_001]]

    expected = [masked_crc32c(piece) for piece in pieces]

    assert [crc32c.masked(value) for value in crc32c.crc32c_of_all(pieces)] == expected
    assert [crc32c.masked(value) for value in crc32c._with_numpy(pieces)] == expected
    assert [crc32c.masked(crc32c.crc32c(piece)) for piece in pieces] == expected
    assert crc32c.crc32c_of_all([]) == []


def test_every_changed_bit_of_a_frame_is_found() -> None:
    whole = tf_frame(b"abc") + tf_frame(b"defg")
    for bit in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DataError, match=r"a: record [01] at byte (0|19) "):
            list(BYTES.split(io.BytesIO(changed), "a"))


def test_payloads_are_not_verified_where_that_is_asked_for() -> None:
    content = tf_frame(b"abc").replace(b"abc", b"abd")

    assert [payload for _, payload in TfRecordBytes(verify=False).split(io.BytesIO(content), "a")] == [b"abd"]


def test_a_length_that_nobody_has_is_refused() -> None:
    length = struct.pack("<Q", 1 << 60)
    content = length + struct.pack("<I", crc32c.masked(crc32c.crc32c(length))) + bytes(99)

    with pytest.raises(DataError, match=f"record 0 at byte 0 claims to have {1 << 60} bytes"):
        list(BYTES.split(io.BytesIO(content), "a"))


def test_a_batch_of_examples_that_are_built_alike_is_stacked() -> None:
    records = [example("x", [number, 7]) for number in range(5)]

    assert plain(FORM.batch(records)) == {"x": [[number, 7] for number in range(5)]}
    assert FORM.batch([*records, example("x", [1 << 40, 7])]) is None
    assert FORM.batch([*records, example("y", [1, 7])]) is None
    assert FORM.batch([b"noise", *records]) is None


def test_a_sequence_example_and_noise_are_refused() -> None:
    with pytest.raises(SampleError, match="SequenceExample"):
        FORM.sample(example("x", [1]) + field(2, b""))
    for noise in (b"noise", b"\x08\x01", field(1, varint(8)), field(1, field(1, field(1, b"\xff")))):
        with pytest.raises(SampleError, match=r"is not a tf\.train\.Example: it "):
            FORM.sample(noise)


@given(lambda: st.binary(max_size=40), max_examples=200)
def test_noise_is_refused_with_words(noise: bytes) -> None:
    try:
        FORM.sample(noise)
    except SampleError:
        pass
