"""Gradients between hosts whose links change while they train: slower, faster, cut for some seconds."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
import ranks
from linked_hosts import LinkedHosts

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"),
        reason="network namespaces need root, iproute2 and tc",
    ),
]


@pytest.fixture
def hosts() -> Iterator[str]:
    """The name of two hosts."""
    name = f"tsl{os.getpid()}"
    made = LinkedHosts(name, 2)
    try:
        made.make()
        yield name
    finally:
        made.remove()


def test_a_link_that_becomes_slow_or_fast_is_noticed_and_gradients_go_as_suits_it(hosts: str) -> None:
    (first, slow, fast, _), *others = found = ranks.run(4, "link_workers:changed_link", hosts)

    assert first[0].startswith("trainshed: reduce=bf16: ")
    assert any("reduce=bf16: steps take " in line and " s before" in line for line in slow), slow
    assert any("bf16 in buckets of" in line for line in [*first, *slow]), (first, slow)
    assert any("reduce=bf16: steps take " in line for line in fast), fast
    assert all(lines == [[], [], []] for *lines, _ in others), "rank 0 alone speaks"
    assert all(worst < 2e-2 for *_, worst in found), found


@pytest.mark.safety
@pytest.mark.parametrize("algorithm", ["hierarchical", "bf16"])
def test_a_link_that_is_cut_for_ten_seconds_only_delays_a_step(hosts: str, algorithm: str) -> None:
    found = ranks.run(4, "link_workers:cut_link", hosts, algorithm, 10.0)

    assert len({steps for steps, _ in found}) == 1 and found[0][0] >= 2
    assert all(worst < (2e-2 if algorithm == "bf16" else 2e-6) for _, worst in found), found
