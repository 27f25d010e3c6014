"""The network that most tests of the roster begin with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.roster_network import Network, running


@pytest.fixture
def net() -> Iterator[Network]:
    """Two hosts that have begun to run."""
    with running(2) as made:
        yield made
