"""Versions of torch whose own stages fail are refused before any rank has done something."""

from __future__ import annotations

from typing import Any

import pytest

from trainshed.parallel.ground.errors import NotServed

pytestmark = pytest.mark.torch


def test_an_older_torch_has_no_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    import trainshed.parallel as pipe

    monkeypatch.setattr("trainshed.parallel.ground.grid.TORCH", (2, 11))
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(NotServed, match="models in stages need torch") as refused:
        pipe.init({"partitions": 2})
    assert "sharded_data_parallel_degree" in str(refused.value)
    found: Any = pipe.init({})  # one rank, without stages
    assert pipe.size() == 1, found
    pipe.shutdown()
