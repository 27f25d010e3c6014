"""Who writes what, and how it lies in the file."""

from __future__ import annotations

import itertools
import json
import struct
from typing import TYPE_CHECKING, Any

import pytest

from support.lazy import Lazy
from support.properties import given, st

if TYPE_CHECKING:
    from trainshed.checkpoint.shardfile import Piece

torch: Any = Lazy("torch")
shardfile: Any = Lazy("trainshed.checkpoint.shardfile")
plans: Any = Lazy("trainshed.checkpoint.write_plan")

pytestmark = pytest.mark.torch


def piece(key: str, rows: int, at: int = 0, whole: int | None = None) -> Piece:
    return shardfile.Piece(key=key, dtype="float32", offsets=(at,), sizes=(rows,), whole=(rows if whole is None else whole,))


@given(lambda: (st.lists(st.integers(0, 1000), min_size=1, max_size=30), st.integers(1, 5)), max_examples=50)
def test_what_all_ranks_hold_is_written_once_and_evenly(sizes: list[int], ranks: int) -> None:
    held = [piece(f"t{number}", size) for number, size in enumerate(sizes)]
    shares = plans.divide([held] * ranks, range(ranks))
    assert sorted(one.key for share in shares.values() for one in share) == sorted(one.key for one in held)
    loads = [sum(one.nbytes for one in share) for share in shares.values()]
    assert max(loads) - min(loads) <= 4 * max(sizes)


def test_a_piece_is_given_to_a_rank_that_holds_it() -> None:
    holders = [[piece("a", 5, 0, 10), piece("c", 3)], [piece("a", 5, 5, 10)], [piece("b", 4), piece("c", 3)]]
    shares = plans.divide(holders, range(3))
    for rank, share in shares.items():
        assert {one.stored_name for one in share} <= {one.stored_name for one in holders[rank]}
    assert sorted(one.stored_name for share in shares.values() for one in share) == ["a@0", "a@5", "b", "c"]
    assert plans.covers([one for share in shares.values() for one in share])
    assert not plans.covers(shares[0])


def test_every_storage_gets_its_own_copy_of_what_is_replicated() -> None:
    held = [piece("a", 8), piece("b", 8)]
    for peers in ((0, 1), (2, 3)):
        shares = plans.divide([held] * 4, peers)
        assert sorted(one.key for share in shares.values() for one in share) == ["a", "b"]


def test_a_file_has_no_gaps_and_every_tensor_is_aligned_to_its_type() -> None:
    tensors = {
        "bytes": torch.zeros(3, dtype=torch.uint8),
        "half": torch.zeros(5, dtype=torch.bfloat16),
        "double": torch.zeros(2, 3, dtype=torch.float64),
        "none": torch.zeros(0, 4),
        "complex": torch.zeros(3, dtype=torch.complex128),
    }
    layout = shardfile.Layout([shardfile.piece_of(name, tensor) for name, tensor in tensors.items()])
    (length,) = struct.unpack("<Q", layout.header[:8])
    assert (8 + length) % 4096 == 0
    header = json.loads(layout.header[8:])
    ends = sorted(tuple(entry["data_offsets"]) for name, entry in header.items() if name != "__metadata__")
    assert ends[0][0] == 0
    assert all(before[1] == after[0] for before, after in itertools.pairwise(ends))
    assert layout.size == 8 + length + ends[-1][1]
    for one, offset in zip(layout.pieces, layout.offsets, strict=True):
        assert offset % one.torch_dtype.itemsize == 0
