"""Which device a rank of a pipeline computes on."""

from __future__ import annotations

import pytest

from support.lazy import Lazy
from trainshed.parallel.ground.errors import PipelineError

grid = Lazy("trainshed.parallel.ground.grid")


def test_ranks_of_a_host_get_its_gpus_in_turn() -> None:
    assert [str(grid.device_of(rank, 2)) for rank in range(2)] == ["cuda:0", "cuda:1"]


def test_a_host_without_gpus_computes_on_its_cpus() -> None:
    assert grid.device_of(3, 0).type == "cpu"


def test_a_rank_without_a_gpu_is_refused_with_what_to_do() -> None:
    with pytest.raises(
        PipelineError, match="local rank 1 has no GPU: this host has 1, and every stage needs one of its own"
    ) as told:
        grid.device_of(1, 1)
    assert "at most 1 ranks on each host" in str(told.value.hint)
