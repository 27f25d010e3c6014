"""The operations of a block that are not computed position by position, for ranks that each have some of the positions.

Attention gathers its keys and values; dropout draws the numbers of all positions, as one process does, and takes those of
its own. All else runs as it is written. What that makes of a block is tried before it is used (`proof`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from ...ground.errors import NotServed
from .attention import causal_attention
from .crossing import Crossing, all_keys
from .slices import Slices, laid_out_as

# As nn.MultiheadAttention calls it; and what its own function reads where others are replaced.
_WITH_PROJECTIONS = F.multi_head_attention_forward
_ATTENTION = F.scaled_dot_product_attention
_DROPOUT = F.dropout
_ARGUMENTS = inspect.signature(_WITH_PROJECTIONS)
_NO_DROPOUT = (
    "set the model's attention dropout to 0 (attn_pdrop, attention_dropout, attention_probs_dropout_prob of transformers): "
    "each rank would have to draw for all pairs of positions"
)
Call = Callable[..., Any]


class Inside(TorchFunctionMode):
    """Within this context a block runs with this rank's part of a sequence; or, to look at it, with the whole.

    Args:
        layouts: length of this rank's part -> the sequence, and the axis along which blocks are given it. Empty to look.
        sites: for each call of attention, in order, whether it may have parts of keys; None where that is not known. Keys of
            another sequence may happen to be as many as this rank's part.
        doubtful: whether there are such in this step.

    lengths: of the keys of each call of attention that was seen.
    crossed: whether keys and values were gathered for it.
    """

    def __init__(
        self,
        crossing: Crossing,
        layouts: Mapping[int, tuple[Slices, int]],
        sites: Sequence[bool] | None = None,
        *,
        doubtful: bool = False,
    ) -> None:
        super().__init__()
        self._crossing, self._layouts, self._sites, self._doubtful = crossing, layouts, sites, doubtful
        self.lengths: list[int] = []
        self.crossed: list[bool] = []

    def __torch_function__(
        self, func: Call, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        native = getattr(func, "__wrapped__", func)  # itself, where it stands for another (`recomputing`)
        if native is _ATTENTION:
            return self._attention(*args, **kwargs)
        if native is _WITH_PROJECTIONS:
            return self._with_projections(args, kwargs)
        if native is _DROPOUT:
            return self._dropout(*args, **kwargs)
        return func(*args, **kwargs)

    def __enter__(self) -> Any:
        self._crossing.active += 1
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self._crossing.active -= 1
        super().__exit__(*error)

    @contextmanager
    def recomputing(self) -> Iterator[None]:
        """Within this context a backward runs, in which activation checkpoints run parts of blocks again. torch leaves its
        modes for a backward, so its functions themselves are replaced: for all who take them from their module."""

        def standing(native: Call, own: Call) -> Call:
            @functools.wraps(native)
            def stands(*args: Any, **kwargs: Any) -> Any:
                return (native if self._crossing.active else own)(*args, **kwargs)

            stands.__wrapped__ = native  # type: ignore[attr-defined]
            return stands

        own = {
            "scaled_dot_product_attention": standing(_ATTENTION, self._attention),
            "multi_head_attention_forward": standing(_WITH_PROJECTIONS, lambda *a, **k: self._with_projections(a, k)),
            "dropout": standing(_DROPOUT, self._dropout),
        }
        with _standing_in(own):
            yield

    def _attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
        gathered: bool = False,
    ) -> torch.Tensor:
        """As torch's, and `gathered`: keys and values were gathered before."""
        _check_dropout(dropout_p)
        slices, _ = self._layouts.get(query.size(-2), (None, 0))
        if not gathered and self._crosses(slices, query.size(-2), key.size(-2)) and slices is not None:
            key, value = self._keys(key, value, slices)
        if slices is None:
            return _ATTENTION(query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)
        if attn_mask is not None and attn_mask.size(-1) not in (1, key.size(-2)):
            raise ValueError(
                f"it makes a mask for {attn_mask.size(-1)} keys, of this rank's positions, where there are {key.size(-2)}"
            )
        if is_causal and key.size(-2) == slices.length:
            if attn_mask is not None:
                raise ValueError("attention has a mask and is_causal=True")
            ranges = slices.ranges(self._crossing.rank)
            return causal_attention(query, key, value, ranges, scale=scale, grouped=enable_gqa)
        return _ATTENTION(query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)

    @property
    def had_doubt(self) -> bool:
        """Tells whether keys of another sequence were as many as this rank's part."""
        return any(
            length in self._layouts and not crossed for length, crossed in zip(self.lengths, self.crossed, strict=True)
        )

    def _crosses(self, slices: Slices | None, queries: int, keys: int) -> bool:
        """Whether the next call of attention has keys of this rank's positions alone."""
        at = len(self.lengths)
        self.lengths.append(keys)
        parts = slices is not None and keys == queries
        if parts and self._sites is None and self._doubtful:
            raise NotServed(
                "an activation checkpoint within a block runs attention again whose keys are as many as this rank's "
                "positions: whether they are those is not known",
                hint="pad the other sequence to another length, or put checkpoints around blocks",
            )
        self.crossed.append(parts and (self._sites is None or at >= len(self._sites) or self._sites[at]))
        return self.crossed[-1]

    def _keys(self, key: torch.Tensor, value: torch.Tensor, slices: Slices) -> tuple[torch.Tensor, torch.Tensor]:
        if key.shape[:-1] != value.shape[:-1] or key.dtype != value.dtype:
            return all_keys(key, self._crossing, key.ndim - 2, slices), all_keys(
                value, self._crossing, value.ndim - 2, slices
            )
        both = all_keys(torch.cat([key, value], -1), self._crossing, key.ndim - 2, slices)  # one message
        first, second = both.split([key.size(-1), value.size(-1)], -1)
        return first, second

    def _with_projections(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        bound = _ARGUMENTS.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        _check_dropout(given["dropout_p"] if given["training"] else 0.0)
        slices, _ = self._layouts.get(given["query"].size(0), (None, 0))
        if self._crosses(slices, given["query"].size(0), given["key"].size(0)) and slices is not None:
            key, value = given["key"], given["value"]
            given["key"] = all_keys(key, self._crossing, 0, slices)
            given["value"] = given["key"] if value is key else all_keys(value, self._crossing, 0, slices)
        within = functools.partial(self._attention, gathered=True)
        with _standing_in({"scaled_dot_product_attention": within}):  # no mode sees what torch's own code calls
            return _WITH_PROJECTIONS(*bound.args, **bound.kwargs)

    def _dropout(self, input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        if not training or p in (0.0, 1.0) or not self._layouts:
            return _DROPOUT(input, p, training, inplace)
        found = [(axis, self._layouts[size][0]) for axis, size in enumerate(input.shape) if size in self._layouts]
        if len(found) != 1:  # several of one length: as in the hidden state
            found = [one for one in found if one[0] == self._layouts[input.size(one[0])][1]]
        if len(found) != 1:
            raise ValueError(
                f"dropout of a tensor of shape {tuple(input.shape)}, where positions are not an axis of their own"
            )
        axis, slices = found[0]
        shape = list(input.shape)
        shape[axis] = slices.length
        drawn = _DROPOUT(_ones(input, shape), p, True)
        kept = slices.of(drawn, axis, self._crossing.rank)
        return input.mul_(kept) if inplace else input * kept


@contextmanager
def _standing_in(functions: Mapping[str, Call]) -> Iterator[None]:
    """Within this context other functions stand for those of torch.nn.functional."""
    before = {name: getattr(F, name) for name in functions}
    vars(F).update(functions)
    try:
        yield
    finally:
        vars(F).update(before)


def _ones(like: torch.Tensor, shape: list[int]) -> torch.Tensor:
    """Ones whose axes lie in memory as those of `like` do, in the order of which torch draws."""
    return laid_out_as(like, torch.ones(shape, dtype=like.dtype, device=like.device))


def _check_dropout(p: float) -> None:
    if p > 0:
        raise NotServed("context parallelism does not serve dropout within attention in training", hint=_NO_DROPOUT)
