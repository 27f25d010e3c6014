"""Loops without DDP: gradients are the mean of all ranks', or all ranks are told why not."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path
from typing import Any

import pytest
import ranks

pytestmark = [pytest.mark.torch, pytest.mark.exact]

NOBODY = ["never.weight", "never.bias"]


@pytest.mark.on_ranks("plain_loop_workers:averaged", "exact", world=4)
@pytest.mark.parametrize(
    "hosts",
    [
        pytest.param([0, 0, 1, 1], marks=pytest.mark.spine),
        *(pytest.param(hosts, marks=pytest.mark.matrix) for hosts in ([1, 0, 1, 0], [0, 1, 2, 3], [0, 0, 0, 1], None)),
    ],
)
def test_gradients_are_the_mean_of_all_ranks_whoever_has_one(found: list[Any], hosts: list[int] | None) -> None:
    for steps in found:
        assert all(worst < 2e-6 and missing == NOBODY for worst, missing in steps), found


@pytest.mark.on_ranks("plain_loop_workers:averaged", "bf16", world=4)
@pytest.mark.parametrize("hosts", [[0, 0, 1, 1], [0, 1, 2, 3]])
def test_bf16_rounds_between_hosts_and_gives_all_ranks_the_same(found: list[Any], hosts: list[int]) -> None:
    for steps in found:
        assert all(1e-4 < worst < 2e-2 and missing == NOBODY for worst, missing in steps), found


@pytest.mark.on_ranks("plain_loop_workers:refused", world=4)
def test_what_cannot_be_averaged_is_refused_on_all_ranks(found: list[Any]) -> None:
    assert found[0] == found[1] == found[2] == found[3]
    same = "all ranks need the same parameters in the same order"
    assert found[0] == {
        name: f"data.Gradients, {said}" if name != "after" else said
        for name, said in {
            "ddp": "rank 0: the model is in DistributedDataParallel, which averages by itself: "
            "data.accelerate() makes that faster",
            "shape": f"rank 2: weight [3, 2] float32, on rank 0 weight [2, 2] float32: {same}",
            "order": f"rank 1: parameter 0 [2] float32, on rank 0 parameter 0 [3] float32: {same}",
            "number": "rank 1: 2 parameters, on rank 0 1",
            "none": "rank 0: there are no parameters",
            "meta": "rank 3: weight is on meta: only gradients on the CPU are averaged here, use dist.all_reduce",
            "lazy": "rank 0: weight has no shape yet: call the model once before",
            "reduce": "rank 0: reduce = 'fast': not one of exact, bf16",
            "hosts": "rank 0: hosts has 1 numbers for 4 ranks",
            "hosts differ": "rank 1: hosts = [0, 0, 1, 1], on rank 0 [0, 1, 0, 1]",
            "values": "rank 1: weight has other values than on rank 0: give all ranks the same model first "
            "(dist.broadcast, or a seed)",
            "sparse": "rank 1: the gradient of table.weight is sparse: only dense gradients are averaged (sparse=False)",
            "after": "[1.5, 1.5]",
            "changed": "rank 3: parameters have changed (new.weight [1, 1] float32): make data.Gradients anew, on all ranks",
        }.items()
    }


@pytest.mark.on_ranks("plain_loop_workers:between_hosts", world=4)
def test_fully_shard_inside_hosts_and_the_mean_between_them_is_hsdp(found: list[Any]) -> None:
    for worst, wrong_group, _ in found:
        assert worst < 2e-6, found
        assert "group= has to be the ranks that have the same shard" in wrong_group


@pytest.mark.safety
def test_ranks_are_told_when_one_is_killed_while_gradients_are_exchanged() -> None:
    with tempfile.TemporaryDirectory() as out, ranks.started(4, "plain_loop_workers:killed", out=out) as processes:
        for process in processes:
            process.join(ranks.LIMIT)
        said = {rank: Path(out, f"0.{rank}") for rank in (0, 2, 3)}
        logs = "\n".join(ranks.log(out, rank) for rank in said)
        assert all(path.exists() for path in said.values()), logs
        for path in said.values():
            first, second = pickle.loads(path.read_bytes())
            assert first == second and "could not exchange the gradients with the other ranks" in first
