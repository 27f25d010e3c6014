"""Each distribution has traits and a launcher that agree; flags and settings name those."""

from __future__ import annotations

import sys
from importlib import metadata
from types import SimpleNamespace

import pytest

from trainshed.base.entry_points import load
from trainshed.base.errors import LaunchError
from trainshed.container.launchers import LAUNCHERS, Launcher, LaunchPlan, launcher_of
from trainshed.contract.choices import DISTRIBUTION_FLAGS
from trainshed.contract.distributions import DISTRIBUTIONS, GROUP, TRAITS, DistributionTraits, plugged_in, traits_of
from trainshed.contract.settings import CHOICES

POOL = Launcher(DistributionTraits("pool"), lambda _: LaunchPlan(processes=(), launcher="pool"))


@pytest.fixture(autouse=True)
def looked_up_anew() -> None:
    load.cache_clear()


def adds(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """An installed package adds a distribution."""
    entry = metadata.EntryPoint(name, value, GROUP)
    monkeypatch.setattr(metadata, "entry_points", lambda **wanted: [entry] if wanted["name"] == name else [])


def test_every_distribution_has_its_launcher() -> None:
    assert tuple(LAUNCHERS) == DISTRIBUTIONS
    for name in DISTRIBUTIONS:
        assert launcher_of(name).traits is TRAITS[name]


def test_the_platforms_flags_lead_to_known_distributions() -> None:
    assert {kind for _, kind in DISTRIBUTION_FLAGS} <= set(DISTRIBUTIONS)
    assert {traits.flag for traits in TRAITS.values()} <= {"", *(flag for flag, _ in DISTRIBUTION_FLAGS)}


def test_the_setting_takes_them() -> None:
    assert CHOICES["distribution"] == DISTRIBUTIONS


def test_a_package_adds_a_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    adds(monkeypatch, "pool", f"{__name__}:POOL")
    monkeypatch.setitem(sys.modules, __name__, SimpleNamespace(POOL=POOL))  # pytest does not keep it there

    assert launcher_of("pool") is POOL and traits_of("pool") is POOL.traits
    with pytest.raises(LaunchError, match=r"^the distribution 'pond' is not one of trainshed's, and no installed package"):
        launcher_of("pond")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("not_there:POOL", r"^the distribution pool cannot be loaded: ModuleNotFoundError"),
        ("os:getcwd", r"^the entry point pool of trainshed.launchers leads to no distribution of that name$"),
    ],
)
def test_a_package_that_is_wrong_is_named(value: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    adds(monkeypatch, "pool", value)

    with pytest.raises(LaunchError, match=message):
        plugged_in("pool")
