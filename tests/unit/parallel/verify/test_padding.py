"""A loss that counts padding is told from one that does not."""

from __future__ import annotations

import pytest

from support.lazy import Lazy

torch = Lazy("torch")
pytestmark = pytest.mark.torch
IDS = [[5, 6, 0, 0], [7, 8, 9, 0], [3, 0, 0, 0]]


@pytest.mark.parametrize(("counted", "expected"), [(12, True), (6, False), (7, True)])
def test_rows_that_are_filled_up(counted: int, expected: bool) -> None:
    from trainshed.parallel.verify.padding import counts_padding

    ids = torch.tensor(IDS)
    mask = (ids != 0).long()

    assert counts_padding(ids, [ids, mask], ids.flatten(), counted) is expected


def test_rows_that_end_alike_by_chance_are_no_padding() -> None:
    from trainshed.parallel.verify.padding import counts_padding

    for rows in ([[1, 2, 3], [2, 1, 3]], [[1, 3, 3], [2, 1, 4]], [[1, 0, 0], [2, 0, 0]]):
        ids = torch.tensor(rows)
        assert not counts_padding(ids, [ids], ids.flatten(), 6)


def test_a_label_for_each_row_counts_none() -> None:
    from trainshed.parallel.verify.padding import counts_padding

    ids = torch.tensor(IDS)
    assert not counts_padding(ids, [ids], torch.tensor([0, 1, 2]), 3)
