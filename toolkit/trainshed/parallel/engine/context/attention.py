"""Attention of some of a sequence's queries, which are its keys' positions, under a causal mask.

The queries of a chunk see all keys before the chunk, and those in the chunk up to their own. On CPUs both are computed by
torch's kernel, which needs no mask and keeps no scores, and put together by the logarithms of their sums, which also give
each its gradients (as in blockwise attention; Dao et al., 2022). On GPUs torch has a mask for this that is never written
down; elsewhere a mask says it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention.bias import causal_lower_right

_ATEN: Any = torch.ops.aten
_FORWARD = getattr(_ATEN, "_scaled_dot_product_flash_attention_for_cpu", None)
_BACKWARD = getattr(_ATEN, "_scaled_dot_product_flash_attention_for_cpu_backward", None)


def causal_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    ranges: Sequence[tuple[int, int]],
    *,
    scale: float | None,
    grouped: bool,
) -> torch.Tensor:
    """As `scaled_dot_product_attention(..., is_causal=True)` gives it for some of the queries.

    Args:
        query: (..., positions of all ranges, width).
        key, value: (..., positions of the whole sequence, width).
        ranges: first position, and the one after the last, of each chunk of the queries.
        scale: of the scores; None for that of the width.
        grouped: whether several heads of queries share one of keys (`enable_gqa`).
    """
    kind = query.device.type
    if torch.is_autocast_enabled(kind):  # as torch does for its own function
        precision = torch.get_autocast_dtype(kind)
        query, key, value = (one.to(precision) if one.is_floating_point() else one for one in (query, key, value))
    chunks = query.split([stop - start for start, stop in ranges], -2)
    found = [
        _of_chunk(chunk, key[..., :stop, :], value[..., :stop, :], start, scale, grouped)
        for chunk, (start, stop) in zip(chunks, ranges, strict=True)
    ]
    return torch.cat(found, -2)


def _of_chunk(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, start: int, scale: float | None, grouped: bool
) -> torch.Tensor:
    if grouped and _can_blockwise(query, key, value, heads=False):
        key, value = (one.repeat_interleave(query.size(-3) // one.size(-3), -3) for one in (key, value))
    if _can_blockwise(query, key, value):
        found: torch.Tensor = _Blockwise.apply(query, key, value, start, scale)
        return found
    length, every = query.size(-2), key.size(-2)
    if query.device.type == "cuda" and query.ndim == 4:
        mask: Any = causal_lower_right(length, every)
    else:
        mask = torch.ones(length, every, dtype=torch.bool, device=query.device).tril(every - length)
    return F.scaled_dot_product_attention(query, key, value, mask, scale=scale, enable_gqa=grouped)


def _can_blockwise(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, heads: bool = True) -> bool:
    if _FORWARD is None or _BACKWARD is None or query.device.type != "cpu":
        return False
    every = (query, key, value)
    alike = all(one.ndim == 4 and one.dtype == query.dtype and one.size(-1) == query.size(-1) for one in every)
    batches = 2 if heads else 1
    same = all(one.shape[:batches] == query.shape[:batches] for one in every)
    return alike and same and query.is_floating_point() and query.numel() > 0


class _Blockwise(torch.autograd.Function):
    """(batch, heads, positions, width) each."""

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, start: int, scale: float | None
    ) -> torch.Tensor:
        before, own = slice(0, start), slice(start, None)
        found, sums = _FORWARD(query, key[:, :, own], value[:, :, own], 0.0, True, scale=scale)  # type: ignore[misc]
        if start:
            other, others = _FORWARD(query, key[:, :, before], value[:, :, before], 0.0, False, scale=scale)  # type: ignore[misc]
            every = torch.logaddexp(sums, others)
            weight, rest = (sums - every).exp()[..., None], (others - every).exp()[..., None]
            found, sums = (found * weight + other * rest).to(query.dtype), every
        ctx.save_for_backward(query, key, value, found, sums)
        ctx.start, ctx.scale = start, scale
        return found

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        query, key, value, found, sums = ctx.saved_tensors
        start, scale = ctx.start, ctx.scale

        def part(keys: slice, causal: bool) -> Any:
            given = gradient, query, key[:, :, keys], value[:, :, keys], found, sums
            return _BACKWARD(*given, 0.0, causal, scale=scale)  # type: ignore[misc]

        of_query, of_key, of_value = part(slice(start, None), True)
        if start:
            first = part(slice(0, start), False)
            of_query = of_query + first[0]
            of_key, of_value = torch.cat([first[1], of_key], 2), torch.cat([first[2], of_value], 2)
        return of_query, of_key, of_value, None, None
