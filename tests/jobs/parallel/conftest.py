"""Helpers of this folder are plain modules beside the tests."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


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
