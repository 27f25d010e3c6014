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
def _found(world: int) -> Any:
    # One work runs all cases of the table: a limit that grows with them.
    return ranks.shared(world, [("trust.table:run", (world,))], seconds=400 + 10 * len(table.names(world)))[0]


def _problems(world: int, name: str) -> str:
    answers = enumerate(ranks.result(_found(world)))
    return "\n".join(f"rank {rank}: {found[name]}" for rank, found in answers if found[name])


@pytest.mark.parametrize("name", table.names(2))
def test_with_two_ranks(name: str) -> None:
    assert not _problems(2, name)


@pytest.mark.parametrize("name", table.names(4))
def test_with_four_ranks(name: str) -> None:
    assert not _problems(4, name)
