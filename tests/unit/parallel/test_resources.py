"""What ranks have to work with: who shares a host, and what memory each may take."""

from __future__ import annotations

from typing import Any

import pytest

from support.lazy import Lazy

resources: Any = Lazy("trainshed.parallel.resources")
memory: Any = Lazy("trainshed.parallel.ground.memory")

pytestmark = pytest.mark.torch
GIB = 2**30


@pytest.mark.parametrize(("hosts", "each"), [
    ("a", 1), ("aaaa", 4), ("aabb", 2), ("abc", 1), ("aab", 0), ("abab", 0), ("aabbaa", 0), ("abbb", 0),
])  # fmt: skip
def test_hosts_count_where_each_has_as_many_neighbouring_ranks(hosts: str, each: int) -> None:
    assert resources.ranks_of_a_host(list(hosts)) == each


def test_memory_is_the_share_of_the_poorest_rank_less_a_reserve() -> None:
    free = memory.Found(10.0 * GIB)
    assert resources.memory_of_a_rank([free, free], ["a", "b"], shared=True) == 8192
    assert resources.memory_of_a_rank([free, free], ["a", "a"], shared=True) == 4096
    assert resources.memory_of_a_rank([free, memory.Found(5.0 * GIB)], ["a", "a"], shared=False) == 4096
    together = [memory.Found(10.0 * GIB, 5.0 * GIB, "one")] * 2
    assert resources.memory_of_a_rank(together, ["a", "a"], shared=True) == 2048
    apart = [memory.Found(10.0 * GIB, 5.0 * GIB, name) for name in ("one", "two")]
    assert resources.memory_of_a_rank(apart, ["a", "a"], shared=True) == 4096
    assert resources.memory_of_a_rank(together, ["a", "b"], shared=True) == 4096
