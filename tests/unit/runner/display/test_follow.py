"""Lines of logs as ranks have tagged them."""

from __future__ import annotations

import pytest

from trainshed.runner.display.follow import rank_of


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        (b"[0] loss 1.5\n", 0),
        (b"[algo-1:12] x\n", 12),
        (b"12] x\n", None),
        (b"[x] y\n", None),
        (b"[" + b"1" * 5001 + b"] y\n", None),  # Python does not read numbers of that length
        ("[٣] y\n".encode(), None),
    ],
)
def test_a_line_says_the_rank_that_printed_it(line: bytes, rank: int | None) -> None:
    assert rank_of(line) == rank
