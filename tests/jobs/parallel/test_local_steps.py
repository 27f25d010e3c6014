"""Hosts that train by themselves between exchanges: one model at each of them, and exactly resumed."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import ranks  # noqa: E402 (of the marks)

pytestmark = pytest.mark.torch


@pytest.mark.on_ranks("local_workers:each_step", world=2)
def test_an_average_after_each_step_of_sgd_is_ddp(found: list[Any]) -> None:
    assert max(found) < 1e-6


@pytest.mark.on_ranks("local_workers:together", world=4)
@pytest.mark.parametrize(
    ("hosts", "dtype", "bits"),
    [
        *(([0, 1, 2, 3], "float32", 32), ([0, 0, 1, 1], "float32", 32), ([0, 1, 0, 1], "bfloat16", 32)),
        *(([0, 1, 2, 3], "float32", 8), ([0, 0, 1, 1], "bfloat16", 8), ([0, 1, 2, 3], "float32", 4)),
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
    numbers = 4 * parameters if bits == 32 else hosts_of * -(-parameters // (256 * hosts_of)) * (32 * bits + 4)  # blocks
    least = 12 * 2 * (hosts_of - 1) / hosts_of * numbers
    assert least <= first["sent"] < 1.5 * least


@pytest.mark.on_ranks("local_workers:summed", world=4)
@pytest.mark.parametrize(("hosts", "size", "bits"), [(4, 1, 8), (4, 256, 4), (4, 5000, 8), (4, 5000, 4)])
def test_sums_of_few_bits_lose_little_once_and_nothing_in_the_end(
    found: list[Any], hosts: int, size: int, bits: int
) -> None:
    for one in found:
        assert one["alike"] and one["zeros"] == 0
        assert one["once"] <= 1.01, "half a step of each number, and half a step of their sum"
        assert one["together"] <= 1.01, "of twenty sums: what one has lost, the next one brings"
        assert one["sent"] == 20 * 2 * 3 * -(-size // 1024) * (32 * bits + 4)


@pytest.mark.on_ranks("local_workers:resumed", world=2)
@pytest.mark.parametrize(("stop", "bits"), [(10, 32), (13, 32), (13, 8)])
def test_interrupted_between_exchanges_it_ends_as_if_it_had_not_been(found: list[Any], stop: int, bits: int) -> None:
    assert found == [{"step": stop, "same": True}] * 2


@pytest.mark.on_ranks("local_workers:wrong", world=2)
@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("ddp", "TypeError: the model is averaged over all hosts in each step: give DDP process_group=data.host_group()"),
        ("plain", "TypeError: 2 ranks share a host: wrap the model by DistributedDataParallel("),
        ("every", "ValueError: every = 0"),
        ("hosts", "ValueError: hosts has 1 numbers for 2 ranks"),
        ("nan", "LocalStepsError: the model of host 1 has values that are not finite after step 4: nothing was exchanged"),
        ("fewer", "LocalStepsError: hosts have made unequally many steps: host 0 4, host 1 2;"),
    ],
)
def test_mistakes_are_said_on_all_ranks(found: list[Any], case: str, said: str) -> None:
    assert all(one.startswith(said) for one in found), found


@pytest.mark.heavy
@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2)])
def test_hosts_that_join_or_leave_go_on_from_the_model_agreed_on_last(tmp_path: Any, before: int, after: int) -> None:
    first = ranks.result(ranks.shared(before, [("local_workers:other_hosts", (str(tmp_path), 0, 13))])[0])
    found = ranks.result(ranks.shared(after, [("local_workers:other_hosts", (str(tmp_path), 10, 30))])[0])

    assert first[0]["exchanges"] == 2
    for one in found:
        assert one["steps"] == 10 and one["alike"] and one["exchanges"] == 6
        assert all(map(torch.equal, one["began"], first[0]["ended"]))
        assert all(map(torch.equal, one["ended"], found[0]["ended"]))
    assert "local steps: the hosts are others: going on from step 10, the last one they agreed on" in found[0]["said"]
