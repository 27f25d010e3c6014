"""Causes of wrong results and hangs that are mended stay mended: each case of the table is one test."""

from __future__ import annotations

import functools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import ranks  # noqa: E402
from trust import table  # noqa: E402

pytestmark = pytest.mark.torch


@functools.lru_cache
def _found(world: int) -> list[dict[str, Any]]:
    # As with torchrun, where nobody sees to one seed for all.
    return ranks.run(world, "trust.table:run", world, extra={"PYTHONHASHSEED": "random"})


@pytest.mark.parametrize("name", table.names(2))
def test_with_two_ranks(name: str) -> None:
    problems = [f"rank {rank}: {found[name]}" for rank, found in enumerate(_found(2)) if found[name]]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("name", table.names(4))
def test_with_four_ranks(name: str) -> None:
    problems = [f"rank {rank}: {found[name]}" for rank, found in enumerate(_found(4)) if found[name]]
    assert not problems, "\n".join(problems)
