"""Sizes as people write them."""

from __future__ import annotations

import pytest

from trainshed.base.units import bytes_of, seconds_of


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("512m", 512 << 20), ("1.5 GiB", 3 << 29), (" 2 TB ", 2 << 40), ("7b", 7)]
    + [(text, None) for text in ("", "g", "-1g", "1e9", "1,5g", "9" * 400, "\u0661g", "1gg")],
)
def test_a_size_is_read_as_docker_reads_it(text: str, size: int | None) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90.0), ("1.5m", 90.0), (" 8h ", 28_800.0), ("2d", 172_800.0), ("", None), ("-1", None), ("1w", None)],
)
def test_a_time_is_read_with_its_unit(text: str, seconds: float | None) -> None:
    assert seconds_of(text) == seconds
