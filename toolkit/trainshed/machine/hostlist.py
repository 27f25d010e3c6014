"""Slurm's notation for lists of hosts."""

from __future__ import annotations

import re


def expand(nodelist: str) -> tuple[str, ...]:
    """`gpu[01-03,7],login` as gpu01, gpu02, gpu03, gpu7, login: as `scontrol show hostnames` would (containers lack it)."""
    hosts: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", nodelist):
        expanded = [""]
        for text, ranges in re.findall(r"([^\[]+)|\[([^\]]*)\]", part):
            choices = [text] if text else [item for span in ranges.split(",") for item in _span(span)]
            expanded = [prefix + choice for prefix in expanded for choice in choices]
        hosts += expanded
    return tuple(dict.fromkeys(hosts))


def _span(span: str) -> list[str]:
    first, dash, last = span.partition("-")
    if not dash or not first.isdigit() or not last.isdigit():
        return [span]
    return [str(value).zfill(len(first)) for value in range(int(first), int(last) + 1)]
