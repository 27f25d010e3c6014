"""The kinds of distribution stand in `contract.settings`; launchers and platform flags serve those."""

from __future__ import annotations

from trainshed.container.launchers import LAUNCHERS
from trainshed.contract.choices import DISTRIBUTION_FLAGS
from trainshed.contract.settings import CHOICES, DISTRIBUTIONS


def test_every_distribution_has_its_launcher() -> None:
    assert sorted(LAUNCHERS) == sorted(DISTRIBUTIONS)


def test_the_platforms_flags_lead_to_known_distributions() -> None:
    assert {kind for _, kind in DISTRIBUTION_FLAGS} <= set(DISTRIBUTIONS)


def test_the_setting_takes_them() -> None:
    assert CHOICES["distribution"] == DISTRIBUTIONS
