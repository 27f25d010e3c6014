"""Tests of the runner work in a project folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.faulty_s3 import FaultyS3, faulty_s3
from support.prey import prey
from support.runner_project import project

__all__ = ["prey", "project"]


@pytest.fixture
def faulty(s3: dict[str, str]) -> Iterator[FaultyS3]:
    """S3 with faults."""
    with faulty_s3(s3) as proxy:
        yield proxy
