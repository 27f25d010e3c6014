"""Lines of logs as ranks have tagged them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainshed.runner.display.follow import rank_of, show_logs
from trainshed.runner.state.stored import load


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


@pytest.mark.parametrize(
    ("text", "rank", "shown", "met"),
    [
        ("one\ntwo\n", 0, "one\ntwo\n", {0}),
        ("one\n", 7, "", {0}),
        ("[0] one\n[1] two\n", 1, "[1] two\n", {0, 1}),
        ("[0] one\n[1] two\n", 7, "", {0, 1}),
    ],
)
def test_the_ranks_of_a_log_are_told_where_none_is_the_one_that_was_asked_for(
    tmp_path: Path, text: str, rank: int, shown: str, met: set[int]
) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/algo-1.log").write_text(text)
    with open(tmp_path / "out", "wb") as out:
        assert show_logs(load(os.fspath(tmp_path)), out.fileno(), rank=rank) == met
    assert (tmp_path / "out").read_text() == shown
