"""Helpers of this folder are plain modules beside the tests."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import ranks


@pytest.fixture(scope="module")
def starts() -> Iterator[ranks.Starts]:
    """The starts of ranks that the tests of a file share; those of other files may run in another process."""
    starts = ranks.Starts()
    yield starts
    starts.end()


@pytest.fixture
def found(request: pytest.FixtureRequest, starts: ranks.Starts) -> list[Any]:
    """What each rank found for a test marked `on_ranks`."""
    worker, args = work_of(request.node)
    return starts.do(world_of(request.node), worker, *args)


def world_of(item: pytest.Item) -> int:
    """How many ranks a test asks for, 0 for none."""
    mark = item.get_closest_marker("on_ranks")
    world = mark.kwargs["world"] if mark else 0
    return parameters_of(item)[world] if isinstance(world, str) else world


def work_of(item: pytest.Item) -> tuple[str, tuple[Any, ...]]:
    """What each of them runs: the mark's arguments, then the test's parameters."""
    mark = item.get_closest_marker("on_ranks")
    assert mark is not None
    return mark.args[0], (*mark.args[1:], *parameters_of(item).values())


def parameters_of(item: pytest.Item) -> dict[str, Any]:
    """The parameters of a test, by name."""
    return item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}


@pytest.fixture
def no_pipeline() -> Iterator[None]:
    """Leaves nothing of the pipeline that a test starts in this process."""
    yield
    import trainshed.parallel as pipe

    pipe.shutdown()
