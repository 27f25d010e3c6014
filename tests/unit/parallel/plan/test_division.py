"""What a tensor group divides of a unit, and what that saves and costs."""

from __future__ import annotations

from typing import Any

import pytest

from support.lazy import Lazy

pieces: Any = Lazy("trainshed.parallel.plan.division")
tables: Any = Lazy("trainshed.parallel.plan.costs")

pytestmark = pytest.mark.torch
MB = 10**6


def piece(module: str, features: int, *names: str, calls: tuple[Any, ...] = (), **more: Any) -> Any:
    return pieces.DivisibleModule(
        module, "Linear", features, dict.fromkeys(names or (f"{module}.weight",), 0), calls, **more
    )


def test_a_rank_computes_its_share_and_waits_for_the_others_results_and_gradients() -> None:
    call = pieces.PieceCall(forward=0.6, given=2 * MB, found=8 * MB)
    unit = tables.UnitCost("block", 0, 1.0, 2.0, 5, ("block.a.weight", "block.norm.weight"))
    costs = tables.Costs((unit,), {"block.a.weight": 4000, "block.norm.weight": 40}, (0, 0), {})
    link = tables.Link(latency=0.001, bandwidth=1e9)
    found = pieces.divided([piece("block.a", 4, calls=(call,))], 4)
    of_rank = pieces.divided_costs(costs, found, link)
    assert of_rank.units[0].forward == pytest.approx(0.4 + 0.6 / 4 + 3 * 0.001 + 0.006)  # gathers 3/4 of 8 MB
    assert of_rank.units[0].backward == pytest.approx(2 * (0.4 + 0.6 / 4) + 6 * 0.001 + 0.003)  # sums 2 MB: 2 x 3/4
    assert of_rank.sizes == {"block.a.weight": 1000, "block.norm.weight": 40}
    assert of_rank.units[0].sent == pytest.approx((6 + 3) * MB)
    assert of_rank.units[0].saved == 5 and costs.units[0].forward == 1.0


def test_modules_that_read_one_tensor_share_the_sum_of_its_gradient_and_embeddings_sum_what_they_find() -> None:
    link = tables.Link(latency=0.0, bandwidth=1e6)
    first, again = pieces.PieceCall(0.1, MB, MB), pieces.PieceCall(0.1, MB, MB, again=True)
    half, whole, two = tables.Traffic(0.5, MB / 2), tables.Traffic(1.0, MB), pieces.Divided(2)
    assert pieces.sent(piece("q", 8), first, two, link) == (half, whole)
    assert pieces.sent(piece("k", 8), again, two, link) == (half, tables.Traffic())
    words = pieces.PieceCall(0.0, 0, MB)
    assert pieces.sent(piece("words", 8, sums=True), words, two, link) == (whole, tables.Traffic())


def test_between_modules_that_make_a_pair_nothing_is_sent() -> None:
    link, nothing = tables.Link(latency=0.0, bandwidth=1e6), tables.Traffic()
    up, down = pieces.PieceCall(0.1, MB, 4 * MB), pieces.PieceCall(0.1, 4 * MB, MB)
    first, second = piece("up", 8, opens=(2,)), piece("down", 8, closes=(2,))
    paired, plain = pieces.divided([first, second], 2, pairs=True), pieces.divided([first, second], 2)
    assert pieces.sent(first, up, paired, link) == (nothing, tables.Traffic(1.0, MB))
    assert pieces.sent(second, down, paired, link) == (tables.Traffic(1.0, MB), nothing)
    assert pieces.sent(first, up, plain, link) == (tables.Traffic(2.0, 2 * MB), tables.Traffic(1.0, MB))
    assert pieces.sent(second, down, plain, link) == (tables.Traffic(0.5, MB / 2), tables.Traffic(4.0, 4 * MB))
    # Among other numbers of ranks they were not seen to make one.
    four = pieces.divided([first, second], 4, pairs=True)
    assert pieces.sent(first, up, four, link)[0].bytes == 3 * MB


def test_results_in_parts_along_tokens_send_what_sums_send() -> None:
    link = tables.Link(latency=0.0, bandwidth=1e6)
    up, down = pieces.PieceCall(0.1, MB, 4 * MB), pieces.PieceCall(0.1, 4 * MB, MB)
    first, second = piece("up", 8, opens=(2,), takes=(2,)), piece("down", 8, closes=(2,), along=(2,))
    words, alone = piece("words", 8, sums=True, along=(2,)), piece("alone", 8, along=(2,), takes=(2,))
    found = pieces.divided([first, second, words, alone], 2, pairs=True, kept=0.75)
    half = tables.Traffic(0.5, MB / 2)
    assert pieces.sent(first, up, found, link) == (half, half)
    assert pieces.sent(second, down, found, link) == (half, half)
    assert pieces.sent(words, pieces.PieceCall(0.0, 0, MB), found, link) == (half, half)
    three = tables.Traffic(0.75, 0.75 * MB)  # it gathers tokens, and exchanges its half of the features for others' tokens
    assert pieces.sent(alone, pieces.PieceCall(0.1, MB, MB), found, link) == (three, three)
    costs = tables.Costs((tables.UnitCost("", 0, 1.0, 2.0, 80, (), least=70),), {}, (0, 0), {})
    (unit,) = pieces.divided_costs(costs, found, link).units
    assert (unit.saved, unit.least) == (60, 60)


def test_sizes_need_not_divide_and_the_rank_with_the_largest_part_counts() -> None:
    found = pieces.divided([piece("a", 5), piece("b", 3), piece("c", 2), piece("d", 9, reason="it is odd")], 4)
    # As torch.chunk cuts: 5 features make parts of 2, 2, 1 and 0.
    assert found.pieces == ()
    assert found.whole == {
        "a": "5 features do not make 4 parts", "b": "3 features do not make 4 parts",
        "c": "2 features do not make 4 parts", "d": "it is odd",
    }  # fmt: skip
    found = pieces.divided([piece("a", 7)], 4)
    assert found.share == {"a.weight": 2 / 7} and found.table() == {"a": "2 of 7 features"}


def test_a_shared_parameter_is_divided_in_all_of_its_modules_or_in_none() -> None:
    words, head = piece("words", 8, "words.weight"), piece("head", 8, "words.weight")
    assert len(pieces.divided([words, head], 2).pieces) == 2
    whole = pieces.divided([words, piece("head", 8, "words.weight", reason="compiled")], 2)
    assert whole.pieces == () and whole.whole["words"] == "shares a parameter with a module that stays whole"
    other = pieces.DivisibleModule("head", "Conv1D", 8, {"words.weight": 1})
    assert pieces.divided([words, other], 2).pieces == ()
    chain = [piece("a", 8, "x", reason="hook"), piece("b", 8, "x", "y"), piece("c", 8, "y"), piece("d", 8)]
    assert [one.module for one in pieces.divided(chain, 2).pieces] == ["d"]


def test_each_call_of_a_unit_has_its_own_calls_of_the_pieces_inside() -> None:
    calls = tuple(pieces.PieceCall(seconds, 0, 0) for seconds in (0.1, 0.1, 0.4, 0.4))
    units = tuple(tables.UnitCost("a", call, 1.0, 1.0, 0, ("a.in.weight",)) for call in (0, 1))
    costs = tables.Costs(units, {"a.in.weight": 4}, (0, 0, 0), {})
    other = piece("ab.in", 2, "z", calls=calls)  # not inside of "a"
    found = pieces.divided([piece("a.in", 2, calls=calls), other], 2)
    one, two = pieces.divided_costs(costs, found, tables.Link()).units
    assert one.forward == pytest.approx(0.9) and two.forward == pytest.approx(0.6)


def test_a_rank_that_has_a_part_of_the_sequence_computes_and_keeps_its_part_of_blocks_alone() -> None:
    block = tables.UnitCost("block", 0, 1.0, 2.0, 9 * MB, ("block.weight",), least=MB)
    head = tables.UnitCost("head", 0, 0.5, 0.5, 4 * MB, ("head.weight",), least=MB)
    frozen = tables.UnitCost("other", 0, 1.0, 0.0, 0, ())
    costs = tables.Costs((block, head, frozen), {}, (0, 0, 0, 0), {})
    link = tables.Link(latency=0.0, bandwidth=1e6)
    found = tables.of_sequences(costs, ("block", "other"), 2, link)
    assert found.units[0].forward == pytest.approx(0.5 + 1.5)  # keys, values and the result: half of 3 MB
    assert found.units[0].backward == pytest.approx(1.0 + 2.0)  # sums gradients of keys and values: 2 MB
    assert found.units[0].saved == 5 * MB, "what it is given stays whole"
    assert found.units[0].sent == pytest.approx(3.5 * MB)
    assert found.units[1] == head
    assert found.units[2].backward == 0.0
