"""Causes of wrong results and hangs that are mended stay mended: each case of the table is one test."""

from __future__ import annotations

from typing import Any

import pytest
from trust import topics
from trust.spine import SPINE

pytestmark = [pytest.mark.torch, pytest.mark.matrix, pytest.mark.exact]

# Few of these have cases for four ranks: one start runs all of them.
SMALL = ("training", "models", "defects")


def cases(ranks: int, *parts: str, heavy: bool = False) -> Any:
    """The tests of these cases, and of how many ranks; each has the marks of its topic."""

    def marks(name: str) -> list[pytest.MarkDecorator]:
        topic = name.partition(":")[0]
        found = [pytest.mark.rooms(*topics.ROOMS.get(topic, ()))]
        found += [pytest.mark.planted] if topic in topics.TOPICS["defects"] else []
        found += [pytest.mark.heavy] if heavy else []
        return [*found, pytest.mark.spine] if name in SPINE else found

    def put(test: Any) -> Any:
        names = topics.names(ranks, *parts, heavy=heavy)
        listed = pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in names])
        return pytest.mark.on_ranks("trust.table:run", world=ranks)(listed(test))

    return put


def problems(found: list[str]) -> str:
    return "\n".join(f"rank {rank}: {wrong}" for rank, wrong in enumerate(found) if wrong)


@pytest.mark.on_ranks("trust.table:listed", world=1)
def test_the_list_of_cases_is_fresh(found: list[list[str]]) -> None:
    """`python -m trust.topics`, in tests/jobs/parallel, writes it anew."""
    assert topics.CASES.read_text().splitlines() == found[0]


@cases(2, "training")
def test_training_on_two_ranks(name: str, found: list[str]) -> None:
    assert not problems(found)


@cases(2, "models")
def test_models_on_two_ranks(name: str, found: list[str]) -> None:
    assert not problems(found)


@cases(2, "defects")
def test_defects_on_two_ranks(name: str, found: list[str]) -> None:
    assert not problems(found)


@cases(2, "larger")
def test_larger_models_on_two_ranks(name: str, found: list[str]) -> None:
    assert not problems(found)


@cases(2, "joint")
def test_joint_ways_on_two_ranks(name: str, found: list[str]) -> None:
    assert not problems(found)


@cases(4, *SMALL)
def test_on_four_ranks(name: str, found: list[str]) -> None:
    assert not problems(found)


@cases(4, "larger")
def test_larger_models_on_four_ranks(name: str, found: list[str]) -> None:
    assert not problems(found)


@cases(4, "joint")
def test_joint_ways_on_four_ranks(name: str, found: list[str]) -> None:
    assert not problems(found)


@cases(4, "sequences")
def test_divided_sequences_of_stages_on_four_ranks(name: str, found: list[str]) -> None:
    assert not problems(found)


@cases(4, "sharded")
def test_sharded_parts_on_four_ranks(name: str, found: list[str]) -> None:
    assert not problems(found)


@cases(2, heavy=True)
def test_heavy_cases_on_two_ranks(name: str, found: list[str]) -> None:
    assert not problems(found)


@cases(4, heavy=True)
def test_heavy_cases_on_four_ranks(name: str, found: list[str]) -> None:
    assert not problems(found)


@cases(8, heavy=True)
def test_heavy_cases_on_eight_ranks(name: str, found: list[str]) -> None:
    assert not problems(found)
