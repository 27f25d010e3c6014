"""Gradients of low rank, and rounded ones: resumed exactly, refused with words, learnt from as well as from whole ones."""

from __future__ import annotations

import pickle
import statistics
import tempfile
from pathlib import Path
from typing import Any

import pytest
import ranks

from support.lazy import Lazy

torch = Lazy("torch")

pytestmark = pytest.mark.torch


@pytest.mark.exact
@pytest.mark.on_ranks("compressed_workers:resumed", world=2)
@pytest.mark.parametrize(
    ("stop", "way"),
    [
        pytest.param(2, "", marks=pytest.mark.spine),
        (9, ""),
        *(pytest.param(9, way, marks=pytest.mark.matrix) for way in ("static", "unused")),
    ],
)
def test_interrupted_it_ends_as_if_it_had_not_been(found: list[Any], stop: int, way: str) -> None:
    for one in found:
        assert one["state"] and one["step"] == stop and (one["kept"] > 0) == (stop > 3)
        assert one["same"], one["away"]
    first = found[0]["said"]
    assert "trainshed: powersgd: from step 3 on 0.00793 MB of gradients instead of 0.119, of rank 2\n" in first, first


@pytest.mark.on_ranks("compressed_workers:spoiled", world=2)
def test_a_gradient_that_is_not_finite_spoils_no_later_one(found: list[Any]) -> None:
    assert found == [{"finite": True, "alike": True, "kept": found[0]["kept"]}] * 2 and found[0]["kept"]


@pytest.mark.on_ranks("compressed_workers:refused", world=2)
def test_what_cannot_be_compressed_is_said(found: list[Any]) -> None:
    one = found[0]
    assert one["plain"] == "TypeError: PowerSGD() takes a DistributedDataParallel, not a Linear"
    assert one["start"].startswith("ValueError: rank = 4, start = 1: from 1, and from 2")
    assert one["hooked"].startswith("ValueError: the model has another communication hook")
    assert one["scalar"] == "ValueError: parameter scale is a single number: make it torch.ones(1) or the like for PowerSGD"
    assert one["sparse"] == "ValueError: gradients are sparse: PowerSGD takes dense ones"
    assert one["other"].startswith("ValueError: it is PowerSGD's state of another model, or of gradients of rank 2")
    assert "powersgd: 8 ranks are now 2: what their gradients had lost so far is dropped" in one["said"]
    assert "reduce=powersgd: what it keeps is in no checkpoint" in one["said"]
    assert "reduce=powersgd: left to DDP: parameter scale is a single number" in one["said"]


@pytest.mark.heavy
@pytest.mark.parametrize("way", ["bf16", "powersgd"])
def test_it_learns_as_well_as_with_whole_gradients(way: str, starts: ranks.Starts) -> None:
    """Counted in steps, over three seeds: no further from exact gradients than a seed is from the next."""
    theirs, found = (starts.do(2, "compressed_workers:losses", one, 3, 400)[0] for one in ("exact", way))

    assert abs(statistics.fmean(found) - statistics.fmean(theirs)) <= statistics.pstdev(theirs)
    assert max(found) < 0.35 < 2.3, "ten digits by chance: 2.3"


@pytest.mark.safety
def test_ranks_are_told_when_one_is_killed_in_the_middle() -> None:
    with tempfile.TemporaryDirectory() as out, ranks.started(2, "compressed_workers:killed", out=out) as processes:
        for process in processes:
            process.join(ranks.LIMIT)
        said = Path(out, "0.0")
        assert said.exists(), ranks.log(out, 0)
        assert "could not exchange the gradients with the other ranks" in pickle.loads(said.read_bytes())
