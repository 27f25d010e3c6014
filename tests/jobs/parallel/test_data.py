"""Gradients between hosts: the same as DDP's whatever the model, and no trace where they are left to DDP."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path
from typing import Any

import pytest
import ranks

pytestmark = [pytest.mark.torch, pytest.mark.exact]

TWO = [0, 0, 1, 1]
MIXED = [1, 0, 1, 0]  # ranks of a host are not neighbours
APART = [0, 1, 2, 3]
UNEVEN = [0, 0, 0, 1]
EXACT = 2e-6  # sums of floats in another order
KINDS = ("unused", "view", "static", "static unused", "no_sync", "complex", "frozen", "frozen view")


@pytest.mark.on_ranks("data_workers:compare", world=4)
@pytest.mark.parametrize(
    ("algorithm", "hosts", "kind", "small"),
    [
        pytest.param("hierarchical", TWO, "", False, marks=pytest.mark.spine),
        *(pytest.param("hierarchical", TWO, kind, False, marks=pytest.mark.matrix) for kind in KINDS),
        ("hierarchical", MIXED, "", True),
        ("hierarchical", [0, 0, 0, 0], "", False),
        ("direct", UNEVEN, "unused", False),
        ("flat", APART, "view", False),
        ("flat", APART, "frozen", False),
    ],
)
def test_gradients_are_ddps_up_to_the_order_of_sums(
    found: list[Any], algorithm: str, hosts: list[int], kind: str, small: bool
) -> None:
    assert all(max(differences) < EXACT for differences in found), found


@pytest.mark.on_ranks("data_workers:compare", "hierarchical", TWO, "halves", world=4)
def test_gradients_of_several_types_stay_what_they_are(found: list[Any]) -> None:
    assert all(max(differences) < 1e-2 for differences in found), found  # bfloat16's own rounding


@pytest.mark.on_ranks("data_workers:compare", "bf16", world=4)
@pytest.mark.parametrize(("hosts", "kind"), [(TWO, ""), (APART, "unused"), (UNEVEN, "")])
def test_bf16_rounds_between_hosts_and_alike_on_all_ranks(found: list[Any], hosts: list[int], kind: str) -> None:
    for differences in found:
        assert max(differences[:2] + differences[6:]) < EXACT, "before and after it is DDP's own"
        assert EXACT < max(differences[2:6]) < 2e-2


@pytest.mark.on_ranks("data_workers:whole", "exact", TWO, world=4)
def test_a_model_is_watched_then_changed_and_one_hook_a_step_looks_on(found: list[Any]) -> None:
    (_, said, *_), *others = found
    first, second = said.splitlines()

    assert (
        first.startswith("trainshed: reduce=exact: 2 hosts of 2 ranks, ") and "steps of" in first and "should take" in first
    )
    assert "steps took" in second and second.startswith("trainshed: reduce=exact: ")
    assert [said for _, said, *_ in others] == ["", "", ""]
    assert all(looking == ["join_hook", "hook", "watch"] for *_, looking, _ in found), (
        "one hook of the model, one gradient's"
    )
    assert all(max(differences) < EXACT and left == [] for differences, *_, left in found), found


@pytest.mark.on_ranks("data_workers:frozen_without_asking", world=4)
@pytest.mark.parametrize(("algorithm", "hosts"), [("hierarchical", TWO), ("bf16", APART)])
def test_of_frozen_parameters_that_ddp_does_not_take_its_own_error_tells(
    found: list[Any], algorithm: str, hosts: list[int]
) -> None:
    for ddp, ours in found:
        assert ours == ddp and ddp[0].startswith("3: Expected to have finished reduction in the prior iteration"), found


@pytest.mark.on_ranks("data_workers:thawed", world=4)
@pytest.mark.parametrize("when", [3, 15, 100])
def test_frozen_and_thawed_parameters_have_ddps_gradients_before_and_after_all_is_decided_anew(
    found: list[Any], when: int
) -> None:
    late = "parameters are trained now that were frozen when DDP was made"
    _, said = found[0]
    assert all(worst < EXACT for worst, _ in found), found
    lines = said.splitlines()
    if when == 3:
        assert lines == [f"trainshed: reduce=exact: left to DDP: {late}"]
    else:
        assert len(lines) == 3 and "should take" in lines[0] and "steps took" in lines[1], said
        assert lines[2] == "trainshed: reduce=exact: going on as it is: parameters were frozen"


@pytest.mark.on_ranks("data_workers:refused", world=4)
def test_what_cannot_gain_is_left_to_ddp_with_the_reason(found: list[Any]) -> None:
    said = found[0]

    for name, reason in {
        "sparse": "gradients are sparse",
        "hooked": "the model has another communication hook",
        "one host": "all ranks are on one host",
        "later": "the model has another communication hook",
        "frozen": "parameters were frozen",
        "joined": "ranks have unequally many batches (join)",
    }.items():
        mode = "exact" if name in ("later", "frozen", "joined") else "auto"
        assert said[name] == f"trainshed: reduce={mode}: left to DDP: {reason}\n"
    assert said["off"] == ""
    assert said["value"] == "reduce = 'fast': not one of auto, exact, bf16, powersgd, off"
    assert said["hosts"] == "hosts has 1 numbers for 4 ranks"


@pytest.mark.safety
@pytest.mark.parametrize("algorithm", ["hierarchical", "bf16"])
def test_ranks_are_told_when_one_is_killed_in_the_middle(algorithm: str) -> None:
    with tempfile.TemporaryDirectory() as out, ranks.started(4, "data_workers:killed", algorithm, TWO, out=out) as processes:
        for process in processes:
            process.join(ranks.LIMIT)
        said = {rank: Path(out, f"0.{rank}") for rank in (0, 2, 3)}
        logs = "\n".join(ranks.log(out, rank) for rank in said)
        assert all(path.exists() for path in said.values()), logs
        for path in said.values():
            assert "could not exchange the gradients with the other ranks" in pickle.loads(path.read_bytes())
