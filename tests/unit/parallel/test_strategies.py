"""Which way of running a model a job's settings get."""

from __future__ import annotations

from typing import Any

import pytest

from support.lazy import Lazy
from trainshed.contract.wire.pipeline import read_settings

strategies: Any = Lazy("trainshed.parallel.strategies")

pytestmark = pytest.mark.torch

WAYS = ("parts of modules and sequences", "sequences", "modules", "parameters", "stages")
TENSOR, CONTEXT, SHARDS = ({f"{one}_parallel_degree": 2} for one in ("tensor", "context", "sharded_data"))
ONE_BATCH, MASTERS = {"prescaled_batch": True}, {"bf16": True, "master_weights": True}


@pytest.mark.parametrize(("given", "way"), [
    ({}, "stages"),
    (TENSOR, "modules"),
    (CONTEXT, "sequences"),
    (SHARDS, "parameters"),
    ({**TENSOR, **SHARDS}, "modules"),
    ({**CONTEXT, **SHARDS}, "sequences"),
    ({**TENSOR, **CONTEXT, **SHARDS, **ONE_BATCH}, "parts of modules and sequences"),
    ({**SHARDS, **MASTERS}, "parameters"),
    ({**TENSOR, **MASTERS}, "modules"),
    ({**TENSOR, **SHARDS, **MASTERS, **ONE_BATCH}, "stages"),
    ({**TENSOR, **CONTEXT, **SHARDS, **ONE_BATCH, "partitions": 2}, "stages"),
])  # fmt: skip
def test_the_first_way_that_wants_a_job_runs_it(given: dict[str, Any], way: str) -> None:
    settings = read_settings(given)
    assert WAYS[[one.wants(settings) for one in strategies.STRATEGIES].index(True)] == way
