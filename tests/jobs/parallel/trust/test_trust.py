"""Causes of wrong results and hangs that are mended stay mended: each case of the table is one test."""

from __future__ import annotations

import pytest
import ranks
from trust.spine import SPINE
from trust.topics import ROOMS, TOPICS, Case, cases, chosen
from trust.topics import starts as starts_by_name

pytestmark = [pytest.mark.torch, pytest.mark.matrix, pytest.mark.exact]


# Few of these have cases for four ranks.
SMALL = ("training", "models", "defects")


def every(world: int, *parts: str, heavy: bool = False) -> pytest.MarkDecorator:
    """A test for each of these cases."""
    rows = chosen(world, *parts, heavy=heavy)
    return pytest.mark.parametrize("name", [pytest.param(case.name, marks=marks(case), id=case.name) for case in rows])


def marks(case: Case) -> list[pytest.MarkDecorator]:
    """What the gate asks about a case."""
    found = [pytest.mark.rooms(*ROOMS.get(case.topic, ()))]
    found += [pytest.mark.heavy] * case.heavy
    found += [pytest.mark.planted] * (case.topic in TOPICS["defects"])
    return found + [pytest.mark.spine] * (case.name in SPINE)


def play(name: str, starts: ranks.Starts) -> None:
    """Runs a case in the start of ranks that it is in."""
    (case,) = (case for case in cases() if case.name == name)
    starts.do(case.ranks, "trust.table:play", name, share=starts_by_name()[name])


def test_the_names_that_are_read_are_those_of_the_table() -> None:
    (registered,) = ranks.run(1, "trust.table:registered")
    assert sorted(registered) == sorted(cases())


@every(2, "training")
def test_training_on_two_ranks(name: str, starts: ranks.Starts) -> None:
    play(name, starts)


@every(2, "models")
def test_models_on_two_ranks(name: str, starts: ranks.Starts) -> None:
    play(name, starts)


@every(2, "defects")
def test_defects_on_two_ranks(name: str, starts: ranks.Starts) -> None:
    play(name, starts)


@every(2, "larger")
def test_larger_models_on_two_ranks(name: str, starts: ranks.Starts) -> None:
    play(name, starts)


@every(2, "joint")
def test_joint_ways_on_two_ranks(name: str, starts: ranks.Starts) -> None:
    play(name, starts)


@every(4, *SMALL)
def test_on_four_ranks(name: str, starts: ranks.Starts) -> None:
    play(name, starts)


@every(4, "larger")
def test_larger_models_on_four_ranks(name: str, starts: ranks.Starts) -> None:
    play(name, starts)


@every(4, "joint")
def test_joint_ways_on_four_ranks(name: str, starts: ranks.Starts) -> None:
    play(name, starts)


@every(4, "sequences")
def test_divided_sequences_of_stages_on_four_ranks(name: str, starts: ranks.Starts) -> None:
    play(name, starts)


@every(4, "sharded")
def test_sharded_parts_on_four_ranks(name: str, starts: ranks.Starts) -> None:
    play(name, starts)


@every(2, heavy=True)
def test_heavy_cases_on_two_ranks(name: str, starts: ranks.Starts) -> None:
    play(name, starts)


@every(4, heavy=True)
def test_heavy_cases_on_four_ranks(name: str, starts: ranks.Starts) -> None:
    play(name, starts)


@every(8, heavy=True)
def test_heavy_cases_on_eight_ranks(name: str, starts: ranks.Starts) -> None:
    play(name, starts)
