"""One Slurm cluster for all tests of this folder."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.slurm.cluster import Cluster, missing


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A real cluster of two nodes. Without Slurm these tests are skipped; in CI they fail instead."""
    problem = missing()
    if problem and os.environ.get("CI") == "true":
        pytest.fail(f"CI needs Slurm: {problem}", pytrace=False)
    if problem:
        pytest.skip(f"needs a Slurm cluster: {problem}")
    folder = Path(tempfile.mkdtemp(prefix="slurm"))  # a short path: sockets live in it
    made = Cluster(folder)
    yield made
    made.close()
    shutil.rmtree(folder)
