from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.ssh.machines import Lab


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path / "lab")
    try:
        yield made
    finally:
        made.close()
