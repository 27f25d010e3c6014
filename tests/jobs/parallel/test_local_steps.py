"""Hosts that train by themselves between exchanges: one model at each of them, and exactly resumed."""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import pytest
import ranks

from support.lazy import Lazy

torch = Lazy("torch")

pytestmark = [pytest.mark.torch, pytest.mark.exact]

variant = partial(pytest.param, marks=pytest.mark.matrix)

OTHERS = "parameters were frozen or unfrozen since LocalSteps was made: call finish() before that, on all hosts"


@pytest.mark.spine
@pytest.mark.on_ranks("local_workers:each_step", world=2)
def test_an_average_after_each_step_of_sgd_is_ddp(found: list[Any]) -> None:
    assert max(found) < 1e-6


@pytest.mark.on_ranks("local_workers:together", world=4)
@pytest.mark.parametrize(
    ("hosts", "dtype", "bits"),
    [
        *(([0, 1, 2, 3], "float32", 32), ([0, 0, 1, 1], "bfloat16", 8)),
        *(variant([0, 0, 1, 1], "float32", 32), variant([0, 1, 0, 1], "bfloat16", 32)),
        *(variant([0, 1, 2, 3], "float32", 8), variant([0, 1, 2, 3], "float32", 4)),
    ],
)
def test_models_are_one_at_exchanges_and_apart_between_them(
    found: list[Any], hosts: list[int], dtype: str, bits: int
) -> None:
    parameters = 6 * 32 + 32 + 32 + 32 + 32 + 1
    hosts_of = len(set(hosts))
    for one in found:
        assert one["began"] and one["apart"] and one["ended"] and one["same"]
        assert one["exchanges"] == 12 and one["fell"] < 0.6
    first = found[0]
    assert first["said"].startswith(f"trainshed: local steps: {hosts_of} hosts of {4 // hosts_of} rank")
    numbers = 4 * parameters if bits == 32 else hosts_of * -(-parameters // (64 * hosts_of)) * (8 * bits + 2)  # blocks
    means = 2 * 32 * (4 if dtype == "float32" else 2)  # of BatchNorm; its counter is told by the first host
    facts = 8 * (3 + 3)
    summed, told = 2 * (hosts_of - 1) / hosts_of * (numbers + means), (hosts_of - 1) * (facts + 8)
    assert first["sent"] == 12 * (summed + told)


@pytest.mark.on_ranks("local_workers:summed", world=4)
@pytest.mark.parametrize(
    ("hosts", "size", "bits"), [variant(4, 1, 8), variant(4, 256, 4), (4, 5000, 8), variant(4, 5000, 4)]
)
def test_sums_of_few_bits_lose_little_once_and_nothing_in_the_end(
    found: list[Any], hosts: int, size: int, bits: int
) -> None:
    for one in found:
        assert one["alike"] and one["zeros"] == 0
        assert one["once"] <= 1.01, "half a step of each number, and half a step of their sum"
        assert one["together"] <= 1.01, "of twenty sums: what one has lost, the next one brings"
        assert one["sent"] == 20 * 2 * 3 * -(-size // 256) * (8 * bits + 2)


@pytest.mark.on_ranks("local_workers:as_published", world=2)
@pytest.mark.parametrize(("fragments", "overlap"), [variant(1, 0), variant(3, 0), (3, 1), variant(3, 5)])
def test_fragments_beside_the_computation_are_those_of_the_paper(found: list[Any], fragments: int, overlap: int) -> None:
    assert max(found) < 1e-6


@pytest.mark.on_ranks("local_workers:streamed", world=4)
@pytest.mark.parametrize(("hosts", "bits"), [([0, 1, 2, 3], 4), ([0, 0, 1, 1], 32)])
def test_all_hosts_have_the_same_agreed_model_after_each_step(found: list[Any], hosts: list[int], bits: int) -> None:
    for one in found:
        assert one["same"] and one["apart"] and one["ended"] and one["outer"] and one["fell"] < 0.6
        # Fragments go after steps 2, 5, 8, 10, 13, 16, ..., and are there five steps later; finish() exchanges all of them.
        assert one["counts"] == [
            sum(at + 5 <= step for at in range(44) if at and at % 8 in (2, 5, 0)) for step in range(1, 44)
        ]
        assert one["exchanges"] == sum(at % 8 in (2, 5, 0) for at in range(1, 44)) + 3
    assert "every 8 steps, not in each, one of 3 fragments at a time, beside 5 steps" in found[0]["said"]


@pytest.mark.on_ranks("local_workers:beside", world=2)
def test_a_host_goes_on_while_another_has_not_come_to_the_exchange(found: list[Any]) -> None:
    assert found == [True, True]


@pytest.mark.safety
@pytest.mark.parametrize(
    ("fragments", "overlap", "when", "noticed"),
    # Two fragments are exchanged after steps 4, 8, ... beside three steps. What host 1 sent off after step 4 may have
    # arrived before it is killed after step 5: it is missed in that exchange or in the next one.
    [(2, 3, 5, {7: 0, 11: 4}), (2, 3, 3, {7: 0}), (1, 0, 5, {8: 0})],
)
def test_a_host_that_is_killed_ends_the_exchange_with_words(
    tmp_path: Any, fragments: int, overlap: int, when: int, noticed: dict[int, int]
) -> None:
    with ranks.started(2, "local_workers:dies", fragments, overlap, when, out=str(tmp_path)) as processes:
        processes[0].join(ranks.LIMIT)
    assert (tmp_path / "0.0").exists(), ranks.log(str(tmp_path), 0)
    said, again = pickle.loads((tmp_path / "0.0").read_bytes()).split(" | ")
    assert said.startswith(
        tuple(
            f"LocalStepsError after step {step}: the exchange after step {step - overlap} was not completed: "
            f"host 1 has ended, or did not answer for 60 s; the last model that the hosts agreed on is that of step {agreed}"
            for step, agreed in noticed.items()
        )
    ), said
    assert again in said, "it does not go on as if nothing had been"


@pytest.mark.on_ranks("local_workers:resumed", world=2)
@pytest.mark.parametrize(
    ("stop", "bits", "fragments", "overlap", "away"),
    [
        *((13, 32, 1, 0, 0), (13, 4, 3, 2, 1), variant(10, 32, 1, 0, 0)),
        *(variant(13, 8, 1, 0, 0), variant(11, 32, 3, 4, 3), variant(10, 4, 1, 2, 1)),
    ],
)
def test_interrupted_in_exchanges_and_between_them_it_ends_as_if_it_had_not_been(
    found: list[Any], stop: int, bits: int, fragments: int, overlap: int, away: int
) -> None:
    assert found == [{"step": stop, "same": True, "away": away}] * 2


@pytest.mark.on_ranks("local_workers:wrong", world=2)
@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("ddp", "TypeError: the model is averaged over all hosts in each step: give DDP process_group=data.host_group()"),
        ("plain", "TypeError: 2 ranks share a host: wrap the model by DistributedDataParallel("),
        ("every", "ValueError: every = 0"),
        ("hosts", "ValueError: hosts has 1 numbers for 2 ranks"),
        ("nan", "LocalStepsError: the model of host 1 has values that are not finite after step 4: nothing was exchanged"),
        (
            "nan, late",
            "LocalStepsError: the model of host 1 has values that are not finite after step 4: nothing was exchanged; "
            "the last model that the hosts agreed on is that of step 2",
        ),
        ("fewer, late", "LocalStepsError: hosts have made unequally many steps: host 0 2, host 1 1;"),
        ("fragments", "ValueError: fragments = 5, every = 4: only one fragment is exchanged after a step"),
        ("many", "ValueError: fragments = 7: from 1 to 6, the model's trainable parameters"),
        ("overlap", "ValueError: overlap = 4, every = 4: a fragment has to arrive before it is sent again"),
        ("mix", "ValueError: mix = 1.0: from 0, all is agreed, to below 1"),
        ("frozen", f"LocalStepsError: {OTHERS}"),
        ("frozen, late", f"LocalStepsError: {OTHERS}"),
        ("frozen, once", "nothing"),
        ("unfrozen", f"LocalStepsError: {OTHERS}"),
        ("fewer", "LocalStepsError: hosts have made unequally many steps: host 0 4, host 1 2;"),
    ],
)
def test_mistakes_are_said_on_all_ranks(found: list[Any], case: str, said: str) -> None:
    assert all(one.startswith(said) for one in found), found


@pytest.mark.heavy
@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2)])
def test_hosts_that_join_or_leave_go_on_from_the_model_agreed_on_last(tmp_path: Any, before: int, after: int) -> None:
    first = ranks.run(before, "local_workers:other_hosts", str(tmp_path), 0, 13)
    found = ranks.run(after, "local_workers:other_hosts", str(tmp_path), 10, 30)

    assert first[0]["exchanges"] == 2
    for one in found:
        assert one["steps"] == 10 and one["alike"] and one["exchanges"] == 6
        assert all(map(torch.equal, one["began"], first[0]["ended"]))
        assert all(map(torch.equal, one["ended"], found[0]["ended"]))
    assert "local steps: the hosts are others: going on from step 10, the last one they agreed on" in found[0]["said"]
