"""Slurm's notation for lists of hosts."""

from __future__ import annotations

import re

from trainshed.base.errors import TrainshedError
from trainshed.base.numerals import whole

MOST_HOSTS = 100_000


def expand(nodelist: str) -> tuple[str, ...]:
    """`gpu[01-03,7],login` as gpu01, gpu02, gpu03, gpu7, login: as `scontrol show hostnames` would (containers lack it).

    Raises:
        TrainshedError: it names more than `MOST_HOSTS` hosts.
    """
    hosts: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\[\]]*\])+", nodelist):
        expanded = [""]
        for text, ranges in re.findall(r"([^\[]+)|\[([^\[\]]*)\]", part):
            choices = [text] if text else [item for span in ranges.split(",") for item in _span(span)]
            if len(expanded) * len(choices) + len(hosts) > MOST_HOSTS:
                raise _too_many()
            expanded = [prefix + choice for prefix in expanded for choice in choices]
        hosts += expanded
    return tuple(dict.fromkeys(hosts))


def _span(span: str) -> list[str]:
    first, dash, last = span.partition("-")
    low, high = whole(first), whole(last)
    if not dash or low is None or high is None:
        return [span]
    if high - low >= MOST_HOSTS:
        raise _too_many()
    return [str(value).zfill(len(first)) for value in range(low, high + 1)]


def _too_many() -> TrainshedError:
    return TrainshedError(f"a list of hosts in Slurm's notation names more than {MOST_HOSTS:,} hosts")
