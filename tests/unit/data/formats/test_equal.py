"""Frames of one length, read as blocks: the same records, places and errors as one after the other, each once."""

from __future__ import annotations

import io
import pickle
import random
from typing import Any

import pytest

from support.data_files import frame, tensor_record
from support.extras import needs
from support.lazy import Lazy
from trainshed.data.formats import equal
from trainshed.data.formats.equal import Equal, regrouped
from trainshed.data.formats.errors import DataError
from trainshed.data.formats.protobuf import RecordIOProtobuf
from trainshed.data.formats.recordio import RecordIO
from trainshed.data.pipe_stream import rounds

needs("numpy")

np = Lazy("numpy")


class Pipe:
    """A stream that gives as much at once as chance will have it."""

    def __init__(self, data: bytes, chance: random.Random) -> None:
        self._stream, self._chance = io.BytesIO(data), chance

    def read(self, size: int) -> bytes:
        return self._stream.read(size)

    def readinto(self, buffer: memoryview, least: int) -> int:
        taken = self._stream.read(min(len(buffer), least + self._chance.randrange(3000)))
        buffer[: len(taken)] = taken
        return len(taken)


def told(found: Any) -> tuple[list[Any], str]:
    """What a reader gives up to its error, and the error."""
    given: list[Any] = []
    try:
        given.extend(found)
    except DataError as error:
        return given, error.message
    return given, ""


def made_up(chance: random.Random) -> bytes:
    """Runs of records of one length; now and then another one, one in parts, a wrong header or an early end."""
    data = b""
    for _ in range(chance.randrange(4)):
        size = chance.choice((0, 1, 7, 8, 100, 333))
        data += b"".join(frame(chance.randbytes(size)) for _ in range(chance.choice((1, 2, 9, 60))))
    ends = chance.random()
    if ends < 0.2:
        data = data[: chance.randrange(len(data) + 1)]
    elif ends < 0.3:
        data += b"broken off, or something else"
    return data


@pytest.mark.exact
def test_a_stream_in_blocks_is_that_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equal, "_BLOCK_BYTES", 4096)
    chance = random.Random(3)
    for _ in range(400):
        data, many = made_up(chance), chance.choice((1, 2, 7, 64))
        singly = told(RecordIO().split(io.BytesIO(data), "pipe"))
        placed = (
            (offset + at * (len(records.rows[0]) if isinstance(records, Equal) else 0), record)
            for number, offset, records in RecordIO().runs(Pipe(data, chance), "pipe", many)
            for at, record in enumerate(records)
        )
        assert told(placed) == singly

        batches, why = told(list(batch) for batch in rounds(runs_of(data, many, chance), many))
        whole = len(singly[0]) if not singly[1] else len(singly[0]) // many * many  # an error ends the last one
        assert [record for batch in batches for record in batch] == [record for _, record in singly[0]][:whole]
        assert why == singly[1] and all(len(batch) == many for batch in batches[:-1])


def runs_of(data: bytes, many: int, chance: random.Random) -> Any:
    return (records for *_, records in RecordIO().runs(Pipe(data, chance), "pipe", many))


def test_rounds_that_were_had_are_left_out() -> None:
    data = b"".join(frame(b"%04d" % number) for number in range(50))
    left = [list(batch) for batch in rounds(runs_of(data, 8, random.Random(1)), 8, skip=3)]

    assert [record for batch in left for record in batch] == [b"%04d" % number for number in range(24, 50)]
    assert list(regrouped([[1], [2, 3], [4, 5, 6], []], 2)) == [[1, 2], [3, 4], [5, 6]]


def numbers(count: int, start: float = 0.0) -> bytes:
    return tensor_record([start + one for one in range(count)], start)


@pytest.mark.exact
def test_a_block_of_tensors_is_the_batch_of_its_records() -> None:
    form, chance = RecordIOProtobuf(), random.Random(5)
    records = [numbers(20, start) for start in range(100)]
    records += [numbers(21, 3.0)] * 3 + [numbers(20, 7.0)] * 9
    data = b"".join(map(frame, records))
    blocks = at = 0
    for *_, found in form.runs(Pipe(data, chance), "pipe", 16):
        blocks += isinstance(found, Equal) and len(found) > 1
        whole, singly = form.batch(found), form.batch(records[at : at + len(found)])
        at += len(found)
        for name in ("features", "label"):
            assert whole[name].dtype == singly[name].dtype and np.array_equal(whole[name], singly[name])
    assert (blocks, at) == (7, len(records))


def test_records_that_differ_in_more_than_numbers_are_left_to_be_read_singly() -> None:
    records = [numbers(4), numbers(4)[:-9] + bytes(9)] * 4
    data = b"".join(map(frame, records))
    (found, *_), _ = told(runs for *_, runs in RecordIOProtobuf().runs(Pipe(data, random.Random(1)), "pipe", 8))

    assert isinstance(found, Equal) and RecordIOProtobuf().batch(found) is None and list(found) == records


def test_what_is_kept_outlives_the_block_and_goes_to_other_processes() -> None:
    data = b"".join(frame(b"%08d" % number) for number in range(3000))
    lent, kept = [], []
    for *_, found in RecordIO().runs(Pipe(data, random.Random(2)), "pipe", 50):
        lent.append(found)
        kept.append(pickle.loads(pickle.dumps(found.kept())))

    assert [record for block in kept for record in block] == [b"%08d" % number for number in range(3000)]
    assert kept[3][1] == b"00000151" and list(kept[3][1:3]) == [b"00000151", b"00000152"]
