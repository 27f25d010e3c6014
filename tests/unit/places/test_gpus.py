"""Hosts on one machine share its GPUs without sharing any."""

from __future__ import annotations

import pytest

from trainshed.places.gpus import shares
from trainshed.runner.job.job import ALL_GPUS

EIGHT = tuple("01234567")


@pytest.mark.parametrize(
    ("devices", "wanted", "hosts", "expected"),
    [
        (EIGHT, None, 1, ["01234567"]),
        (EIGHT, ALL_GPUS, 2, ["0123", "4567"]),
        (EIGHT, 2, 3, ["01", "23", "45"]),
        (EIGHT, 0, 2, ["", ""]),
        (EIGHT, 16, 1, ["01234567"]),
        (("0", "1"), None, 3, ["0", "1", "0"]),
        (("0",), 1, 2, ["0", "0"]),
        ((), None, 2, ["", ""]),
        ((), ALL_GPUS, 1, [""]),
    ],
)
def test_shares(devices: tuple[str, ...], wanted: int | None, hosts: int, expected: list[str]) -> None:
    assert ["".join(one) for one in shares(devices, [wanted] * hosts)] == expected


@pytest.mark.parametrize(
    ("devices", "wanted", "expected"),
    [
        (EIGHT, [0, 4, 4], ["", "0123", "4567"]),
        (EIGHT, [1, None, None], ["0", "123", "456"]),
        (EIGHT, [0, ALL_GPUS], ["", "01234567"]),
        (EIGHT, [6, 6], ["012345", "670123"]),
        (("0",), [None, 1], ["0", "0"]),
        ((), [0, 4], ["", ""]),
    ],
)
def test_hosts_of_several_kinds_get_what_they_ask_for(
    devices: tuple[str, ...], wanted: list[int | None], expected: list[str]
) -> None:
    assert ["".join(one) for one in shares(devices, wanted)] == expected
