"""Whether a loss has counted padding: positions that a mask leaves out, or that rows of other lengths are filled up with."""

from __future__ import annotations

from collections.abc import Sequence

import torch

_ROWS = 2  # that have to be filled up, for it not to be chance


def counts_padding(ids: torch.Tensor, others: Sequence[torch.Tensor], targets: torch.Tensor, counted: int) -> bool:
    """For tokens with a target each, or one for the token that follows.

    Args:
        ids: shape (rows, tokens), of whole numbers.
        others: inputs of the same shape, of which one may be a mask.
        counted: targets that the loss counts.
    """
    places = ids.numel()
    if targets.numel() not in (places, places - ids.shape[0]):
        return False
    masks = [one for one in others if one is not ids and _is_mask(one)]
    padded = int((masks[0] == 0).sum()) if masks else _filled_up(ids)
    return bool(padded) and counted > targets.numel() - padded


def _is_mask(tensor: torch.Tensor) -> bool:
    return bool(((tensor == 0) | (tensor == 1)).all()) and bool((tensor == 0).any())


def _filled_up(ids: torch.Tensor) -> int:
    """Places at the ends of rows that all have one token, in rows of other lengths."""
    last = ids[:, -1]
    token = last.mode().values
    lengths = [_run(row, int(token)) for row in ids.tolist()]
    filled = [length for length in lengths if length > 1]
    return sum(filled) if len(filled) >= _ROWS and len(set(lengths)) > 1 else 0


def _run(row: list[int], token: int) -> int:
    count = 0
    while count < len(row) and row[-1 - count] == token:
        count += 1
    return count
