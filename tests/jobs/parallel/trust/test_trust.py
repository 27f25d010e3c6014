"""Causes of wrong results and hangs that are mended stay mended: each case of the table is one test."""

from __future__ import annotations

import functools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import ranks  # noqa: E402
from trust import table  # noqa: E402

pytestmark = pytest.mark.torch


# Few of these have cases for four ranks: one start runs all of them.
SMALL = ("training", "models", "defects")


@functools.lru_cache
def _found(world: int, *parts: str, heavy: bool = False) -> Any:
    return ranks.shared(world, [("trust.table:run", (world, tuple(table.names(world, *parts, heavy=heavy))))])[0]


def _problems(name: str, world: int, *parts: str, heavy: bool = False) -> str:
    answers = enumerate(ranks.result(_found(world, *parts, heavy=heavy)))
    return "\n".join(f"rank {rank}: {found[name]}" for rank, found in answers if found[name])


@pytest.mark.parametrize("name", table.names(2, "training"))
def test_training_on_two_ranks(name: str) -> None:
    assert not _problems(name, 2, "training")


@pytest.mark.parametrize("name", table.names(2, "models"))
def test_models_on_two_ranks(name: str) -> None:
    assert not _problems(name, 2, "models")


@pytest.mark.parametrize("name", table.names(2, "defects"))
def test_defects_on_two_ranks(name: str) -> None:
    assert not _problems(name, 2, "defects")


@pytest.mark.parametrize("name", table.names(2, "larger"))
def test_larger_models_on_two_ranks(name: str) -> None:
    assert not _problems(name, 2, "larger")


@pytest.mark.parametrize("name", table.names(2, "joint"))
def test_joint_ways_on_two_ranks(name: str) -> None:
    assert not _problems(name, 2, "joint")


@pytest.mark.parametrize("name", table.names(4, *SMALL))
def test_on_four_ranks(name: str) -> None:
    assert not _problems(name, 4, *SMALL)


@pytest.mark.parametrize("name", table.names(4, "larger"))
def test_larger_models_on_four_ranks(name: str) -> None:
    assert not _problems(name, 4, "larger")


@pytest.mark.parametrize("name", table.names(4, "joint"))
def test_joint_ways_on_four_ranks(name: str) -> None:
    assert not _problems(name, 4, "joint")


@pytest.mark.parametrize("name", table.names(4, "sequences"))
def test_divided_sequences_of_stages_on_four_ranks(name: str) -> None:
    assert not _problems(name, 4, "sequences")


@pytest.mark.parametrize("name", table.names(4, "sharded"))
def test_sharded_parts_on_four_ranks(name: str) -> None:
    assert not _problems(name, 4, "sharded")


@pytest.mark.heavy
@pytest.mark.parametrize("name", table.names(2, heavy=True))
def test_heavy_cases_on_two_ranks(name: str) -> None:
    assert not _problems(name, 2, heavy=True)


@pytest.mark.heavy
@pytest.mark.parametrize("name", table.names(4, heavy=True))
def test_heavy_cases_on_four_ranks(name: str) -> None:
    assert not _problems(name, 4, heavy=True)


@pytest.mark.heavy
@pytest.mark.parametrize("name", table.names(8, heavy=True))
def test_heavy_cases_on_eight_ranks(name: str) -> None:
    assert not _problems(name, 8, heavy=True)
