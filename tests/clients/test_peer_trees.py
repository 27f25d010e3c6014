"""The same job folder through `train` of sagemaker-training 5.1.4 and through ours: what differs is meant to."""

from __future__ import annotations

from pathlib import Path

import pytest

from clients.peer_trees import QUICK, TREES, Tree, compare, verdict
from support.peer_differences import DIFFERENCES
from support.peer_differences import TREES as TESTED_HERE

CASES = [pytest.param(tree, id=tree.name, marks=() if tree.name in QUICK else pytest.mark.heavy) for tree in TREES]


@pytest.mark.parametrize("tree", CASES)
def test_a_job_means_the_same_to_both(tree: Tree, peer: Path, tmp_path: Path) -> None:
    real, mine, found = compare(tree, tmp_path, peer)

    assert verdict(found, tree) == set(), f"peer:\n{real}\n\ntrainshed:\n{mine}"


def test_every_difference_that_is_tested_here_shows_in_a_job() -> None:
    assert {one.name for one in DIFFERENCES if one.test == TESTED_HERE} == {name for tree in TREES for name in tree.differs}
    assert len({tree.name for tree in TREES}) == len(TREES) and set(QUICK) <= {tree.name for tree in TREES}
