"""What a benchmark claims: a number of ours beside a limit, a peer's number, or both, measured in the same run.

A script calls `claim` once a number. It prints one line, and adds a line of JSON to the file that BENCH_CLAIMS names, where
`bench.py` (`make bench`) reads it.
"""

from __future__ import annotations

import json
import math
import os
from typing import NamedTuple


class Claim(NamedTuple):
    """A measured claim. `limit` is what `ours` may be: at most, or at least with `at_least`; None where nothing is claimed.

    name: what was measured, the same in each run. unit: of `ours`, `peer` and `limit`. peer_name: who the peer is.
    """

    name: str
    ours: float
    unit: str
    limit: float | None = None
    peer: float | None = None
    peer_name: str = ""
    at_least: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the claim holds; None where there is no limit."""
        if self.limit is None:
            return None
        return self.ours >= self.limit if self.at_least else self.ours <= self.limit

    @property
    def goal(self) -> str:
        """The limit in words."""
        return "" if self.limit is None else f"at {'least' if self.at_least else 'most'} {number(self.limit)}"

    @property
    def verdict(self) -> str:
        """`met`, `NOT MET`, or nothing."""
        return {True: "met", False: "NOT MET", None: ""}[self.met]


def claim(
    name: str,
    ours: float,
    unit: str,
    *,
    limit: float | None = None,
    times: float | None = None,
    peer: float | None = None,
    peer_name: str = "",
    at_least: bool = False,
) -> bool:
    """Tells a number, and whether its claim holds (true where there is none).

    Args:
        limit: what `ours` may be. times: the limit as a multiple of `peer`, in the place of `limit`.
        at_least: `ours` has to be as large as the limit, not as small.
    """
    if times is not None and peer is not None:
        limit = times * peer
    made = Claim(name, ours, unit, limit, peer, peer_name, at_least)
    beside = f", {peer_name} {number(peer)}" if peer is not None else ""
    print(f"claim: {name}: {number(ours)} {unit}{beside}; {made.goal or 'no goal'} {made.verdict}".rstrip(), flush=True)
    if path := os.environ.get("BENCH_CLAIMS"):
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(made._asdict()) + "\n")
    return made.met is not False


def number(value: float | None) -> str:
    """Three digits of a number that people read."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
