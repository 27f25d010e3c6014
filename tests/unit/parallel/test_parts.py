"""Functions of tensors in parts: each rank has its places of what the whole tensor gives, or the whole is asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from support.lazy import Lazy

torch = Lazy("torch")
F = Lazy("torch.nn.functional")
pairs = Lazy("trainshed.parallel.engine.tensor.pairs")
part_rules = Lazy("trainshed.parallel.engine.tensor.op_rules")
parts = Lazy("trainshed.parallel.engine.tensor.sharded_tensor")
sequences = Lazy("trainshed.parallel.engine.tensor.sequences")
tree = Lazy("trainshed.parallel.ground.tree")
way = Lazy("trainshed.parallel.engine.tensor.op_call")
pytestmark = pytest.mark.torch

pytestmark = pytest.mark.exact

Function = Callable[[Any], Any]
RANKS = 3


@cache
def labels() -> torch.Tensor:
    return torch.tensor([[0, 5, 3, 2, 4], [1, 1, -100, 5, 0]])


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
    (1, lambda x: x[:, slice(-0, None), :] + x[..., 0:5, :]),
    (1, lambda x: x.to(x.device) + x.to("cpu", torch.float64) + x.to(device="cpu", dtype=torch.float16)),
    (1, lambda x: F.rms_norm(x, (6,), torch.ones(6))),
    (1, lambda x: x + torch.arange(5.0)[:, None] * x),
    (1, lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * torch.ones(6)),
    (1, lambda x: F.dropout(x + torch.ones(1, 5, 6), 0.5)),
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
    (1, lambda x: F.layer_norm(x, (5, 6))),
    (1, lambda x: x[:, 0]),
    (1, lambda x: x[:, 1:]),
    (1, lambda x: x.flatten(0, 1)),
    (0, lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)),
    (0, lambda x: x.T),
]
# Results are whole, of a few numbers of each rank.
JOINT: list[tuple[int, Function]] = [
    (2, lambda x: F.cross_entropy(x.view(-1, 6), labels().view(-1))),
    (2, lambda x: F.cross_entropy(x.transpose(1, 2), labels(), reduction="none", label_smoothing=0.1)),
    (2, lambda x: F.cross_entropy((x * 1e4).flatten(0, 1), labels().flatten().abs() % 6, None, None, 5, None, "sum", 0.3)),
    (2, lambda x: F.cross_entropy(x[0, 0], labels()[0, 1])),
    (2, lambda x: F.cross_entropy(x[0, 0], labels()[1, 2])),  # nothing counts
    (2, lambda x: F.cross_entropy(x[0], labels()[0].clamp(max=1), reduction="sum")),  # all are the first rank's
    (2, lambda x: F.cross_entropy(x[0].masked_fill(torch.arange(6) > 2, -torch.inf), labels()[0].clamp(max=2))),
    (2, lambda x: F.cross_entropy(x[0].masked_fill(torch.arange(6) < 5, torch.inf), labels()[0])),
    (2, lambda x: F.cross_entropy(x[0].masked_fill(torch.arange(6) == 4, torch.nan), labels()[0], reduction="none")),
    (2, lambda x: F.cross_entropy(x[0].double(), labels()[0])),
    (2, lambda x: F.cross_entropy(x[0].bfloat16(), labels()[0])),
    (2, lambda x: F.nll_loss(x.log_softmax(-1).view(-1, 6), labels().view(-1))),
    (2, lambda x: F.nll_loss(F.log_softmax(x[0], 1, dtype=torch.float64), labels()[0], reduction="none", ignore_index=3)),
    (2, lambda x: x.log_softmax(-1).gather(-1, labels().clamp(min=0)[..., None]).squeeze(-1)),
    (2, lambda x: torch.gather(x.transpose(1, 2), 1, labels().clamp(min=0).view(2, 1, 5).expand(2, 3, 5))),
    (2, lambda x: torch.logsumexp(x, -1)),
    (2, lambda x: x.masked_fill(torch.arange(6) > 1, -torch.inf).logsumexp((2,), keepdim=True)),
    (2, lambda x: torch.logsumexp(x * -torch.inf, dim=-1)),
    (2, lambda x: x.bfloat16().logsumexp(-1)),
    (2, lambda x: x.argmax(-1)),
    (2, lambda x: (x > 0).float().argmax(dim=2, keepdim=True)),  # the first of several
    (2, lambda x: torch.argmax(x.masked_fill(torch.arange(6) == 3, torch.nan), -1)),
]
NOT_JOINT: list[tuple[int, Function]] = [
    (2, lambda x: F.cross_entropy(x[0], labels()[0], torch.ones(6))),
    (2, lambda x: F.cross_entropy(x[0], x[0].detach().softmax(-1))),
    (2, lambda x: F.cross_entropy(x[0], labels()[0], reduce=False)),
    (1, lambda x: F.cross_entropy(x[0], labels()[0])),
    (2, lambda x: x.argmax()),
    (2, lambda x: x.gather(-1, labels()[:1, :3, None].clamp(min=0))),
    (2, lambda x: x.logsumexp((1, 2))),
    (2, lambda x: (2**24 + (x > 0).long()).argmax(-1)),
]


def together() -> Any:
    """Computes functions as all ranks together do, which have some of six places."""
    from trainshed.parallel.engine.tensor import loss_parallel as part_losses

    class Together(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func not in part_losses._RULES:
                return func(*args, **(kwargs or {}))
            axes = {id(args[0]): args[0].shape.index(6)}
            joint = part_losses.joint_of(way.OpCall(func, args, kwargs or {}, axes, RANKS, 0))
            assert joint is not None
            return joint.tried(args[0], RANKS)

    return Together()


def in_parts(rank: int, axis: int) -> tuple[Any, parts.Part]:
    """A tensor in parts, in a trial, and where it lives."""
    shape = (6, 5, 6) if axis == 0 else (2, 5, 6)
    whole = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    mesh: Any = SimpleNamespace(size=lambda: RANKS, get_local_rank=lambda: rank)
    region = parts.TensorRegion(mesh, lambda: False, lambda *_: None)
    region.trial = parts.Trial()
    own = region.cut(whole, axis).clone()
    return region, parts.Part.of(region, own, axis, (tuple(whole.shape), whole.stride()), frozenset({"up"}), whole)


@pytest.mark.parametrize("rank", range(RANKS))
@pytest.mark.parametrize(("axis", "function"), KEPT)
def test_each_rank_has_its_places(rank: int, axis: int, function: Function) -> None:
    region, part = in_parts(rank, axis)
    torch.manual_seed(2)
    found = [one for one in tree.leaves(function(part)) if isinstance(one, torch.Tensor)]
    assert region.trial.bad == {}
    torch.manual_seed(2)
    expected = [one for one in tree.leaves(function(in_parts(rank, axis)[1].twin)) if isinstance(one, torch.Tensor)]
    for one, whole in zip(found, expected, strict=True):
        assert isinstance(one, parts.Part) and one.whole is None
        assert (one.shape, one.stride(), one.dtype) == (whole.shape, whole.stride(), whole.dtype)
        torch.testing.assert_close(one.own, region.cut(whole, one.axis))
        torch.testing.assert_close(one.twin, whole)


@pytest.mark.parametrize("rank", range(RANKS))
@pytest.mark.parametrize(("axis", "function"), JOINT)
def test_losses_take_parts(rank: int, axis: int, function: Function) -> None:
    region, part = in_parts(rank, axis)
    found, expected = function(part), function(in_parts(rank, axis)[1].twin)
    assert region.trial.bad == {} and region.trial.joint == {"up"}
    assert not isinstance(found, parts.Part)
    torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize(("axis", "function"), JOINT)
def test_ranks_together_find_what_losses_give(axis: int, function: Function) -> None:
    whole = in_parts(0, axis)[1].twin
    found, expected = (whole.clone().requires_grad_() for _ in range(2))
    with together():
        result = function(found)
    results = result, function(expected)
    torch.testing.assert_close(*results, equal_nan=True)
    if results[1].requires_grad:
        for one in results:
            (one * torch.linspace(1, 2, one.numel()).view(one.shape)).sum().backward()
        half = results[1].dtype == torch.bfloat16  # in which torch rounds what is in between, too
        tolerance = {"rtol": 2e-2, "atol": 1e-2} if half else {}
        torch.testing.assert_close(found.grad, expected.grad, equal_nan=True, **tolerance)


@pytest.mark.parametrize("rank", range(RANKS))
@pytest.mark.parametrize(("axis", "function"), [*WHOLE, *NOT_JOINT])
def test_what_needs_all_places_is_given_them(rank: int, axis: int, function: Function) -> None:
    region, part = in_parts(rank, axis)
    torch.manual_seed(2)
    found = tree.leaves(function(part))
    assert list(region.trial.bad) == ["up"]
    torch.manual_seed(2)
    for one, whole in zip(found, tree.leaves(function(in_parts(rank, axis)[1].twin)), strict=True):
        assert not isinstance(one, parts.Part) or one.whole is not None
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


def test_what_a_loss_takes_has_to_be_so_on_all_ranks() -> None:
    every = frozenset({"a", "b", "narrow"})
    found = pairs.choose([pairs.Seen(joint=every), pairs.Seen({"b": "topk"}, joint=every)], SIZES)
    assert (found.joint, found.opening, found.whole) == ({"a"}, set(), {"b"})  # "narrow" has fewer features than are sent
    assert pairs.choose([pairs.Seen(joint=every), pairs.Seen()], SIZES).joint == set()
    # Where a pair sends more, another trial shows what its second one gives in parts.
    assert pairs.choose([pairs.Seen({}, {"wide": frozenset({"narrow"})})], SIZES).hidden


@pytest.mark.parametrize(
    ("seen", "opened", "closed"),
    [
        (lambda: [pairs.Seen({}, {"c": frozenset("a")})], {"a"}, {"c"}),
        (lambda: [pairs.Seen({"a": "softmax"}, {"c": frozenset("ab")})], set(), set()),
        (lambda: [pairs.Seen({}, {"c": frozenset("a"), "d": frozenset("ab")})], {"a", "b"}, {"c", "d"}),
        (lambda: [pairs.Seen({"b": "item"}, {"c": frozenset("a"), "d": frozenset("ab")})], set(), set()),
        (
            lambda: [pairs.Seen({}, {"c": frozenset("a")}), pairs.Seen({"a": "__repr__"}, {"c": frozenset("a")})],
            set(),
            set(),
        ),
        (lambda: [pairs.Seen({}, {"c": frozenset("a")}), pairs.Seen({}, {})], set(), set()),
        (lambda: [pairs.Seen({}, {"wide": frozenset({"narrow"})})], set(), set()),
    ],
)
def test_pairs_are_those_of_all_ranks(seen: Callable[[], list[Any]], opened: set[str], closed: set[str]) -> None:
    found = pairs.choose(seen(), SIZES)
    assert (set(found.opening), set(found.closing)) == (opened, closed)


def flow(*sent: tuple[str, float], **others: Any) -> sequences.Flow:
    """Of modules whose results have 100 bytes, two of which meet."""
    every = [("a", 0.0), ("ab", 0.0), ("c", 0.0), *sent]
    sends = [(frozenset(names), size) for names, size in every]
    return sequences.Flow(dict.fromkeys("abc", 100), taken={"q"}, sent=sends, **others)


@pytest.mark.parametrize(
    ("seen", "along"),
    [
        (lambda: [flow(), flow()], "abc"),
        (lambda: [flow(("b", 100))], "c"),  # what meets goes together
        (lambda: [flow(("b", 100), ("a", -100))], "abc"),
        (lambda: [flow(("c", 100))], "ab"),
        (lambda: [flow(("a", 5), ("b", 7))], "abc"),  # a 64th of what 200 bytes are sent as
        (lambda: [flow(("a", 5), ("b", 8))], "c"),
        (lambda: [flow(("bc", 0), ("c", 100))], ""),
        (lambda: [flow(needed={"a"})], "c"),
        (lambda: [flow(), flow(("c", 100))], "ab"),
        (lambda: [flow(), flow(broken={"a"}, needed={"a", "b", "c"})], ""),
        (lambda: None, ""),
    ],
)
def test_parts_along_tokens_send_no_more(seen: Callable[[], list[Any] | None], along: str) -> None:
    choice = pairs.PairChoice(opening=frozenset("x"), closing=frozenset("y"))
    found = sequences.look_along(choice, lambda _pairs: seen())
    assert (found.opening, found.closing, found.along) == (choice.opening, choice.closing, frozenset(along))
    assert found.taking == (frozenset("q") if along else frozenset())
    assert sequences.look_along(pairs.PairChoice(), lambda _pairs: seen()) == pairs.PairChoice()


def test_results_in_no_pair_that_are_gathered_keep_no_others_whole() -> None:
    tried: list[set[str]] = []

    def trial(told: tuple[pairs.PairChoice, Any]) -> list[sequences.Flow]:
        tried.append(set(told[1]))
        if len(tried) == 1:  # a result of a pair met them
            return [flow(broken={"q"}, needed={"a", "b", "c"})]
        return [flow()] if "b" in told[1] else [flow(("b", 100), ("c", 100), alone={"b", "c"})]

    assert sequences.look_along(pairs.PairChoice(closing=frozenset("y")), trial).along == frozenset("abc")
    assert tried == [set(), {"q"}, {"q", "b"}]  # what "c" gives meets no others
