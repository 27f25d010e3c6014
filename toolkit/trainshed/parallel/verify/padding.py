"""Whether a loss has counted padding: places that a mask leaves out, or that rows of other lengths are filled up with."""

from __future__ import annotations

from collections.abc import Sequence

import torch

_ROWS = 2  # that have to be filled up, for it not to be chance


def counts_padding(ids: torch.Tensor, others: Sequence[torch.Tensor], targets: torch.Tensor, ignored: int) -> bool:
    """For tokens with a target each, or one for the token that follows.

    A text may end with the padding's token, or have it inside; so a loss counts padding that counts the far ends of all
    rows that are filled up.

    Args:
        ids: shape (rows, tokens), of whole numbers.
        others: inputs of the same shape, of which one may be a mask.
        ignored: what stands for no target.
    """
    rows = len(ids)
    if targets.numel() not in (ids.numel(), ids.numel() - rows):
        return False
    counted = targets.reshape(rows, -1) != ignored
    masks = [one != 0 for one in others if one is not ids and _is_mask(one, ids)]
    if not masks:
        return _ends_counted(_filled_up(ids), counted)
    sides = [(~masks[0][:, -1], counted), (~masks[0][:, 0], counted.flip(1))]
    found = [_ends_counted(filled, own) for filled, own in sides if filled.any()]
    return bool(found) and all(found) and not _has_holes(masks[0])


def _is_mask(tensor: torch.Tensor, ids: torch.Tensor) -> bool:
    """Whether it is 1 in each row, and elsewhere 0 where ids have one token alone: types of tokens have more."""
    return bool(((tensor == 0) | (tensor == 1)).all() and tensor.any(1).all()) and len(ids[tensor == 0].unique()) < 2


def _has_holes(mask: torch.Tensor) -> bool:
    """Whether a text has something inside that is left out: its token is no padding."""
    starts = (mask[:, 1:] & ~mask[:, :-1]).sum(1) + mask[:, 0]
    return bool((starts > 1).any())


def _ends_counted(filled: torch.Tensor, counted: torch.Tensor) -> bool:
    """Whether all rows that are filled up count in the last place that any row counts in."""
    [last] = counted.any(0).nonzero()[-1:].flatten().tolist() or [0]
    return bool(filled.any() and counted[filled, last].all())


def _filled_up(ids: torch.Tensor) -> torch.Tensor:
    """Whether each row ends with one token twice or more, that no text has inside, and that rows of other lengths have."""
    token = ids[:, -1].mode().values
    at_end = (ids == token).flip(1).cumprod(1).flip(1).bool()
    lengths = at_end.sum(1)
    several = lengths > 1
    inside = bool(((ids == token) & ~at_end).any())
    filled = not inside and int(several.sum()) >= _ROWS and len(lengths.unique()) > 1
    return several if filled else torch.zeros_like(several)
