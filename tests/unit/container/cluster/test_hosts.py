"""The order of the hosts, which all of them must agree on, and whether names can be found."""

from __future__ import annotations

import random

import pytest

from support.properties import given, st
from trainshed.container.cluster.hosts import natural_order, resolves

TWELVE = tuple(f"algo-{number}" for number in range(1, 13))


def test_twelve_hosts_are_in_the_order_of_their_numbers_however_they_come() -> None:
    assert sorted(TWELVE) != list(TWELVE), "the platform sorts by letter"
    for seed in range(50):
        shuffled = random.Random(seed).sample(TWELVE, len(TWELVE))
        assert natural_order(shuffled) == TWELVE


@pytest.mark.parametrize(
    "ordered",
    [
        ("algo-1-abc12", "algo-2-abc12", "algo-10-abc12"),
        ("node9", "node10", "node011"),
        ("rack1-node10", "rack2-node9", "rack10-node1"),
        ("1", "2", "a", "b1"),
        ("10.0.0.2", "10.0.0.10", "10.0.1.1"),
        ("algo", "algo-1"),
        ("gpu-0.job.default.svc", "gpu-1.job.default.svc", "gpu-10.job.default.svc"),
        ("worker-99999999999999999999", "worker-100000000000000000000"),
    ],
)
def test_numbers_anywhere_in_names_are_compared_as_numbers(ordered: tuple[str, ...]) -> None:
    for seed in range(5):
        assert natural_order(random.Random(seed).sample(ordered, len(ordered))) == ordered


def test_names_with_the_same_numbers_have_one_order_too() -> None:
    assert natural_order(["n1", "n01"]) == natural_order(["n01", "n1"])


def test_repeated_names_are_one_host() -> None:
    assert natural_order(["b", "a", "b"]) == ("a", "b")


@given(lambda: (st.lists(st.text(max_size=8)), st.randoms()))
def test_any_names_have_one_order(names: list[str], source: random.Random) -> None:
    shuffled = source.sample(names, len(names))

    assert natural_order(shuffled) == natural_order(names)
    assert set(natural_order(names)) == set(names)


@pytest.mark.parametrize("name", ["no-such-host.invalid", "a" * 300, "x..y", "é" * 70, "a\x80b"])
def test_names_that_cannot_be_found_do_not_resolve(name: str) -> None:
    assert not resolves(name)


def test_addresses_and_this_host_resolve() -> None:
    assert resolves("127.0.0.1") and resolves("localhost")
