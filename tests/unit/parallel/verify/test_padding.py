"""A loss that counts padding is told from one that does not."""

from __future__ import annotations

from typing import Any

import pytest

from support.lazy import Lazy

torch: Any = Lazy("torch")
pytestmark = pytest.mark.torch
IDS = [[5, 6, 0, 0], [7, 8, 9, 0], [3, 0, 0, 0], [4, 7, 5, 6]]
NONE = -100


def alarm(ids: Any, targets: Any, *others: Any, ignored: int = NONE) -> bool:
    from trainshed.parallel.verify.padding import counts_padding

    ids = torch.tensor(ids)
    return counts_padding(ids, [ids, *map(torch.tensor, others)], torch.tensor(targets), ignored)


def without(ids: list[list[int]], *lengths: int) -> list[list[int]]:
    """Targets as a careful script has them: none behind the ends of texts."""
    return [row[:length] + [NONE] * (len(row) - length) for row, length in zip(ids, lengths, strict=True)]


def ones(*lengths: int, size: int = 4) -> list[list[int]]:
    return [[1] * length + [0] * (size - length) for length in lengths]


def shifted(rows: list[list[int]], *last: int) -> list[list[int]]:
    return [[*row[1:], *last] for row in rows]


@pytest.mark.parametrize("others", [[], [ones(2, 3, 1, 4)]])
def test_rows_that_are_filled_up(others: list[Any]) -> None:
    careful = without(IDS, 2, 3, 1, 4)
    assert alarm(IDS, IDS, *others)
    assert alarm(IDS, shifted(IDS), *others)
    assert alarm(IDS, shifted(IDS, NONE), *others)  # as Transformers does
    assert not alarm(IDS, careful, *others)
    assert not alarm(IDS, shifted(careful), *others)
    assert not alarm(IDS, shifted(careful, NONE), *others)
    assert not alarm(IDS, IDS, *others, ignored=0)
    assert not alarm(IDS, without(IDS, 0, 0, 0, 0), *others)


def test_rows_that_are_filled_up_on_the_left() -> None:
    ids, masks = [row[::-1] for row in IDS], [row[::-1] for row in ones(2, 3, 1, 4)]
    careful = [row[::-1] for row in without(IDS, 2, 3, 1, 4)]
    assert alarm(ids, ids, masks) and alarm(ids, shifted(ids), masks)
    assert not alarm(ids, careful, masks) and not alarm(ids, shifted(careful), masks)


@pytest.mark.parametrize("masked", [False, True])
def test_a_text_may_have_the_token_of_padding(masked: bool) -> None:
    inside = [[5, 0, 6, 0, 0], [7, 8, 9, 0, 0], [3, 2, 0, 0, 0]]
    at_end = [[5, 0, 0, 0, 0], [7, 8, 9, 4, 0], [3, 2, 6, 0, 0], [1, 3, 0, 0, 0]]
    for ids, lengths in ((inside, (3, 3, 2)), (at_end, (3, 5, 3, 2))):
        for mask in (ones(*lengths, size=5), [[int(one != 0) for one in row] for row in ids]):
            assert not alarm(ids, without(ids, *lengths), *[mask] * masked)
            assert not alarm(ids, shifted(without(ids, *lengths)), *[mask] * masked)


def test_texts_of_few_tokens_without_padding_give_no_alarm() -> None:
    ids = [[1, 0, 2, 0, 0], [0, 2, 1, 1, 2], [2, 1, 0, 0, 0], [1, 2, 2, 0, 1]]
    assert not alarm(ids, ids)
    assert not alarm(ids, ids, [[int(one != 0) for one in row] for row in ids])


def test_types_of_tokens_and_a_mask_of_ones_are_no_mask_of_padding() -> None:
    ids = [[5, 6, 3, 4], [7, 8, 9, 2], [3, 1, 5, 6]]
    for other in (ones(0, 0, 0), ones(4, 4, 4), ones(2, 1, 3), [[0, 0, 1, 1]] * 3):
        assert not alarm(ids, ids, other)
    assert not alarm(IDS, IDS, ones(4, 4, 4, 4))


def test_rows_that_end_alike_by_chance_are_no_padding() -> None:
    for rows in ([[1, 2, 3], [2, 1, 3]], [[1, 3, 3], [2, 1, 4]], [[1, 0, 0], [2, 0, 0]]):
        assert not alarm(rows, rows)


def test_a_label_for_each_row_counts_none() -> None:
    assert not alarm(IDS, [0, 1, 2, 3])
