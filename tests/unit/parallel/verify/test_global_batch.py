"""Batches of ranks make one batch, whatever they are made of."""

from __future__ import annotations

import pytest

from support.lazy import Lazy

torch = Lazy("torch")
pytestmark = pytest.mark.torch


def test_rows_of_tensors_and_items_of_lists_are_joined() -> None:
    from trainshed.parallel.verify.global_batch import joined

    one = {"x": torch.ones(2, 3), "y": [torch.tensor([1, 2]), ("a", "b")], "scale": 2.0}
    other = {"x": torch.zeros(1, 3), "y": [torch.tensor([3]), ("c",)], "scale": 2.0}
    found = joined([one, other])

    assert found["x"].tolist() == [[1] * 3, [1] * 3, [0] * 3]
    assert found["y"][0].tolist() == [1, 2, 3] and found["y"][1] == ("a", "b", "c")
    assert found["scale"] == 2.0


def test_narrower_rows_are_filled_up_with_what_does_not_count() -> None:
    from trainshed.parallel.verify.global_batch import joined

    ids = joined([torch.tensor([[1, 2, 3]]), torch.tensor([[4]])])
    labels = joined([torch.tensor([[1, 2, -100]]), torch.tensor([[4]])])

    assert ids.tolist() == [[1, 2, 3], [4, 0, 0]]
    assert labels.tolist() == [[1, 2, -100], [4, -100, -100]]


def test_a_row_has_the_same_digest_in_every_batch() -> None:
    from trainshed.parallel.verify.global_batch import rows_in

    x, y = torch.randn(4, 3), torch.arange(4)
    whole = rows_in([x, y])

    assert rows_in([x[2:], y[2:]]) == whole[2:] and len(set(whole)) == 4
    assert rows_in([x, y + 1]) != whole
    assert rows_in([x.bfloat16()]) and rows_in([x > 0]) and rows_in([]) == []
