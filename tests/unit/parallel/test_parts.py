"""Functions of tensors in parts: each rank has its places of what the whole tensor gives, or the whole is asked for."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from trainshed.parallel.engine.tensor import part_rules  # noqa: E402
from trainshed.parallel.engine.tensor.pairs import Seen, choose  # noqa: E402
from trainshed.parallel.engine.tensor.part import Part, Region, Trial  # noqa: E402
from trainshed.parallel.tree import leaves  # noqa: E402

Function = Callable[[Any], Any]
RANKS = 3
# (2, 5, 6) in parts along each axis by turns.
KEPT: list[tuple[int, Function]] = [
    (2, lambda x: x + 1),
    (2, lambda x: 2 - x),
    (2, lambda x: 1 / (x * x + 1)),
    (2, lambda x: x + torch.arange(6.0)),
    (2, lambda x: x * torch.arange(5.0)[:, None]),
    (2, lambda x: torch.arange(6.0).expand(3, 1, 1, 6) - x),
    (2, lambda x: x + x.tanh() * torch.tensor(2.0)),
    (2, lambda x: torch.where(x > 0, x, -x)),
    (2, lambda x: x.clone().mul_(3).add_(torch.ones(6))),
    (2, lambda x: x.view(2, 5, 3, 2)),
    (2, lambda x: x.view(10, 6)),
    (2, lambda x: x.view(2, 5, 3, 2).permute(0, 2, 1, 3)[:, :, :, None].squeeze(3).mT),
    (2, lambda x: x.unflatten(-1, (3, -1)).flatten(2)),
    (2, lambda x: x.reshape(-1, 6).unsqueeze(0)),
    (2, lambda x: x[0, 1:3]),
    (2, lambda x: x[..., None, :]),
    (2, lambda x: x[:, -1]),
    (2, lambda x: x.split([2, 3], 1)),
    (2, lambda x: torch.chunk(x, 2, dim=0)),
    (2, lambda x: x.unbind(1)),
    (2, lambda x: torch.cat([x, torch.zeros(2, 1, 6), torch.tensor([])], 1)),
    (2, lambda x: torch.stack([x, -x], -1)),
    (2, lambda x: x.sum(1, keepdim=True)),
    (2, lambda x: x.mean((0, 1))),
    (2, lambda x: x.max(1)),
    (2, lambda x: x.var(0, unbiased=False)),
    (2, lambda x: x.softmax(1)),
    (2, lambda x: x.to(torch.float64).type_as(x)),
    (2, lambda x: x.expand(3, 2, 5, 6)),
    (2, lambda x: x.repeat_interleave(2, 0)),
    (1, lambda x: F.layer_norm(x, (6,), torch.ones(6), torch.zeros(6))),
    (1, lambda x: F.normalize(x, dim=-1)),
    (0, lambda x: x @ torch.ones(6, 4)),
    (0, lambda x: torch.matmul(torch.ones(4, 5), x)),
    (0, lambda x: F.softmax(x, -1, dtype=torch.float64)),
    (0, lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True)),
    (0, lambda x: F.scaled_dot_product_attention(x, x, x, torch.ones(6, 5, 5).tril().bool())),
    (2, lambda x: F.dropout(x, 0.5)),
]
WHOLE: list[tuple[int, Function]] = [
    (2, lambda x: x.softmax(-1)),
    (2, lambda x: x.sum()),
    (2, lambda x: x.mean(-1)),
    (2, lambda x: x.max()),
    (2, lambda x: x.view(-1)),
    (2, lambda x: x.view(2, 5, 2, 3)),
    (2, lambda x: x.reshape(5, 2, 6).reshape(2, 30)),
    (2, lambda x: x.flip(2)),
    (2, lambda x: x[..., :3]),
    (2, lambda x: x[..., 0]),
    (2, lambda x: x[x > 0]),
    (2, lambda x: x.chunk(3, -1)),
    (2, lambda x: torch.cat([x, x], -1)),
    (2, lambda x: torch.where(x > 0)),
    (2, lambda x: x @ torch.ones(6, 6)),
    (2, lambda x: x.cumsum(-1)),
    (2, lambda x: F.layer_norm(x, (6,))),
    (2, lambda x: F.glu(x)),
    (2, lambda x: torch.rand_like(x)),
    (2, lambda x: x.view(torch.int32)),
    (2, lambda x: torch.add(x, 1, out=torch.empty(2, 5, 6))),
    (1, lambda x: F.scaled_dot_product_attention(x, x, x)),
    (0, lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)),
    (0, lambda x: x.T),
]


def in_parts(rank: int, axis: int) -> tuple[Any, Part]:
    """A tensor in parts, in a trial, and where it lives."""
    shape = (6, 5, 6) if axis == 0 else (2, 5, 6)
    whole = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    mesh: Any = SimpleNamespace(size=lambda: RANKS, get_local_rank=lambda: rank)
    region = Region(mesh, lambda: False, lambda *_: None)
    region.trial = Trial()
    own = region.cut(whole, axis).clone()
    return region, Part.of(region, own, axis, (tuple(whole.shape), whole.stride()), frozenset({"up"}), whole)


@pytest.mark.parametrize("rank", range(RANKS))
@pytest.mark.parametrize(("axis", "function"), KEPT)
def test_each_rank_has_its_places(rank: int, axis: int, function: Function) -> None:
    region, part = in_parts(rank, axis)
    torch.manual_seed(2)
    found = [one for one in leaves(function(part)) if isinstance(one, torch.Tensor)]
    assert region.trial.bad == {}
    torch.manual_seed(2)
    expected = [one for one in leaves(function(in_parts(rank, axis)[1].twin)) if isinstance(one, torch.Tensor)]
    for one, whole in zip(found, expected, strict=True):
        assert isinstance(one, Part) and one.whole is None
        assert (one.shape, one.stride(), one.dtype) == (whole.shape, whole.stride(), whole.dtype)
        torch.testing.assert_close(one.own, region.cut(whole, one.axis))
        torch.testing.assert_close(one.twin, whole)


@pytest.mark.parametrize("rank", range(RANKS))
@pytest.mark.parametrize(("axis", "function"), WHOLE)
def test_what_needs_all_places_is_given_them(rank: int, axis: int, function: Function) -> None:
    region, part = in_parts(rank, axis)
    torch.manual_seed(2)
    found = leaves(function(part))
    assert list(region.trial.bad) == ["up"]
    torch.manual_seed(2)
    for one, whole in zip(found, leaves(function(in_parts(rank, axis)[1].twin)), strict=True):
        assert not isinstance(one, Part) or one.whole is not None
        torch.testing.assert_close(torch.as_tensor(one), torch.as_tensor(whole))


def test_facts_are_those_of_the_whole_tensor() -> None:
    _, part = in_parts(0, 2)
    whole = part.twin
    for fact in part_rules.FACTS:
        if part_rules.name_of(fact) not in ("__hash__", "__get__", "get_device"):
            assert fact(part) == fact(whole), part_rules.name_of(fact)
    assert hash(part) != hash(whole) and part.get_device() == whole.get_device()
    assert part.size(-1) == 6 and len(part) == 2 and part.is_contiguous()
    assert not part.requires_grad and isinstance(part, torch.Tensor)


def test_code_that_torch_does_not_show_is_refused() -> None:
    _, part = in_parts(0, 2)
    with pytest.raises(Exception, match="meets a tensor that is divided among ranks"):
        torch.func.vmap(torch.sin)(part)


def test_changes_of_the_whole_are_seen_in_a_trial() -> None:
    _, part = in_parts(0, 2)
    view = part.view(10, 6)
    part[..., :2] = 7
    assert torch.equal(view.sum(), part.twin.sum()) and float(part[0, 0, 0]) == 7


SIZES = {"a": (8, 32), "b": (8, 32), "c": (32, 8), "d": (32, 8), "narrow": (64, 2), "wide": (2, 64)}


@pytest.mark.parametrize(
    ("seen", "opened", "closed"),
    [
        ([Seen({}, {"c": frozenset("a")})], {"a"}, {"c"}),
        ([Seen({"a": "softmax"}, {"c": frozenset("ab")})], set(), set()),
        ([Seen({}, {"c": frozenset("a"), "d": frozenset("ab")})], {"a", "b"}, {"c", "d"}),
        ([Seen({"b": "item"}, {"c": frozenset("a"), "d": frozenset("ab")})], set(), set()),
        ([Seen({}, {"c": frozenset("a")}), Seen({"a": "__repr__"}, {"c": frozenset("a")})], set(), set()),
        ([Seen({}, {"c": frozenset("a")}), Seen({}, {})], set(), set()),
        ([Seen({}, {"wide": frozenset({"narrow"})})], set(), set()),
    ],
)
def test_pairs_are_those_of_all_ranks(seen: list[Seen], opened: set[str], closed: set[str]) -> None:
    found = choose(seen, SIZES)
    assert (set(found.opening), set(found.closing)) == (opened, closed)
