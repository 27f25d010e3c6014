"""Helpers of this folder are plain modules beside the tests."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import ranks

from support.gate.rows import rows

STARTS = pytest.StashKey[dict[str, tuple[ranks.SharedStart, int]]]()


@pytest.fixture
def found(request: pytest.FixtureRequest) -> list[Any]:
    """What each rank found for a test marked `on_ranks`; all such tests of its row and number of ranks share one start.

    Not those of other rows: these may run in another process, which would start all of them again.
    """
    node, starts = request.node, request.session.stash.setdefault(STARTS, {})
    if node.nodeid not in starts:
        items = {item.nodeid: item for item in request.session.items}
        of_row = rows(list(items))
        world = world_of(node)
        same = [name for name, item in items.items() if of_row[name] == of_row[node.nodeid] and world_of(item) == world]
        shared = ranks.SharedStart(world, [work_of(items[name]) for name in same])
        starts |= {name: (shared, number) for number, name in enumerate(same)}
    shared, number = starts[node.nodeid]
    return ranks.result(shared.result(number))


@pytest.fixture(autouse=True, scope="session")
def no_ranks_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Ends what was started for tests that nobody ran."""
    yield
    for shared, _ in request.session.stash.get(STARTS, {}).values():
        shared.end()


def world_of(item: pytest.Item) -> int:
    """How many ranks a test asks for, 0 for none."""
    mark = item.get_closest_marker("on_ranks")
    world = mark.kwargs["world"] if mark else 0
    return parameters_of(item)[world] if isinstance(world, str) else world


def work_of(item: pytest.Item) -> ranks.Work:
    """What each of them runs: the mark's arguments, then the test's parameters."""
    mark = item.get_closest_marker("on_ranks")
    assert mark is not None
    return mark.args[0], (*mark.args[1:], *parameters_of(item).values())


def parameters_of(item: pytest.Item) -> dict[str, Any]:
    """The parameters of a test, by name."""
    return item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """The process that the ranks are compared with splits its sums as they do: one thread each, or the last bits differ."""
    try:
        import torch
    except ImportError:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def no_pipeline() -> Iterator[None]:
    """Leaves nothing of the pipeline that a test starts in this process."""
    yield
    import trainshed.parallel as pipe

    pipe.shutdown()
