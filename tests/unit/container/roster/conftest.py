"""The network that most tests of the roster begin with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.roster_network import Network


@pytest.fixture
def net() -> Iterator[Network]:
    """Two hosts that have begun to run."""
    made = Network(2)
    made.until(lambda: all(node.state == "running" for node in made.nodes))
    yield made
    made.close()
