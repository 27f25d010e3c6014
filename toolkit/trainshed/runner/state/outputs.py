"""Finds where the hosts of a run, and of its earlier attempts, have left their output."""

from __future__ import annotations

import os
import re

from trainshed.base.files import leads_away, listed
from trainshed.base.numerals import whole

_HOST = re.compile(r"algo-([0-9]{1,4})")


def attempts_of(folder: str) -> list[list[tuple[str, str]]]:
    """Of each attempt in a run's folder, the present one last, the hosts' output folders and those of their data."""
    earlier = sorted(filter(None, (whole(name) for name in listed(f"{folder}/attempts"))))
    found = [_hosts(f"{folder}/attempts/{number}") for number in earlier]
    return [hosts for hosts in (*found, _hosts(folder)) if hosts]


def _hosts(folder: str) -> list[tuple[str, str]]:
    numbers = sorted(int(match[1]) for name in listed(folder) if (match := _HOST.fullmatch(name)))
    outputs = [f"{folder}/algo-{number}/output" for number in numbers]
    # A job could have made a link of each, to have another folder shown.
    found = [(output, f"{output}/data") for output in outputs if os.path.isdir(output)]
    return [(output, data) for output, data in found if not leads_away(folder, data)]
