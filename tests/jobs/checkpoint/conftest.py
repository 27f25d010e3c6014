"""One process that starts ranks, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from jobs.checkpoint.loops import Forge


@pytest.fixture(scope="session")
def forge() -> Iterator[Forge]:
    """Starts ranks. Needs torch."""
    from jobs.checkpoint.loops import Forge

    one = Forge()
    yield one
    one.close()
