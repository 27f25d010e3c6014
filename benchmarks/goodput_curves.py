"""Goodput from 8 to 16,384 hosts, by the simulator, with the failure rate that a large training has published.

    python benchmarks/goodput_curves.py                                     # a table
    python benchmarks/goodput_curves.py --svg docs/pictures/goodput.svg     # and the curves

The rate is that of Llama 3 405B (arXiv 2407.21783, 3.3.4): 419 unexpected interruptions in 54 days on 16,384 GPUs. A host
here has 8 of them; 78 of 100 interruptions were hardware's, and take a host away. The other numbers are assumptions, not
measurements: a checkpoint holds up the steps for 30 s, starting again takes 5 minutes, another host comes after 20. Each
number is the mean of 10 jobs of 30 days; the interval between checkpoints is the best one but in the first variant.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from html import escape
from pathlib import Path

from _claims import claim

from trainshed.studio.forecast import MEMORY_EVERY, WARM, Case, expected
from trainshed.studio.simulation import Fleet, simulated

DAY = 86400.0
HOST_BETWEEN = 54 * DAY * (16384 / 8) / 419  # seconds between the interruptions of one host
HARDWARE, STALL, RESTART, REPLACED = 0.78, 30.0, 300.0, 1200.0
HOSTS = tuple(2**power for power in range(3, 15))
LASTING, JOBS = 30 * DAY, 10
SPARES = 8
OFF = 1.0  # per cent, between the simulator and the formula where no host is lost
VARIANTS = {
    "a checkpoint every hour": {"interval": 3600.0},
    "at the best interval": {},
    "and copies in memory": {"memory": MEMORY_EVERY},
    f"and {SPARES} spare hosts": {"memory": MEMORY_EVERY, "spares": SPARES},
    "and warm starts": {"memory": MEMORY_EVERY, "spares": SPARES, "restart": WARM},
}
WIDTH, HEIGHT, LEFT, TOP, ROOM = 720, 400, 50, 20, 190  # of the picture; ROOM: on its right, for the names
COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#e15759")


def main() -> int:
    """Prints the table; 0 if the simulator agrees with the formula."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the curves there")
    options = parser.parse_args()
    curves = {name: [goodput(fleet(hosts, **changed)) for hosts in HOSTS] for name, changed in VARIANTS.items()}
    print(f"| hosts | {' | '.join(curves)} |\n|---|{'---|' * len(curves)}")
    for at, hosts in enumerate(HOSTS):
        print(f"| {hosts:,} | {' | '.join(f'{100 * curve[at]:.1f}' for curve in curves.values())} |")
    if options.svg:
        options.svg.write_text(picture(curves))
    # Without lost hosts the formula is exact: of 64 hosts and more there are enough interruptions for a mean.
    alone = [fleet(hosts, lost=0.0) for hosts in HOSTS if hosts >= 64]
    off = max(abs(100 * (goodput(one) - expected(one.case).goodput)) for one in alone)
    return int(not claim("goodput: simulator beside the formula", off, "points", limit=OFF))


def fleet(hosts: int, *, interval: float = 0.0, memory: float = 0.0, spares: int = 0, restart: float = RESTART,
          lost: float = HARDWARE) -> Fleet:  # fmt: skip
    """So many hosts with the published rate of failures."""
    case = Case(HOST_BETWEEN / hosts, STALL, restart, interval, memory)
    return Fleet(case, hosts, lost, spares=spares, replaced_in=REPLACED)


def goodput(one: Fleet) -> float:
    """The mean of several jobs."""
    return statistics.fmean(simulated(one, LASTING, seed).goodput for seed in range(JOBS))


def picture(curves: dict[str, Sequence[float]]) -> str:
    """The curves over the logarithm of hosts, as SVG."""
    right, bottom = WIDTH - ROOM, HEIGHT - 40
    first, last = math.log2(HOSTS[0]), math.log2(HOSTS[-1])
    across = [LEFT + (math.log2(hosts) - first) / (last - first) * (right - LEFT) for hosts in HOSTS]
    parts = [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for share in range(0, 101, 20):
        y = _down(share / 100, bottom)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{right}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{share} %</text>')
    parts += [
        f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{n:,}</text>' for x, n in zip(across, HOSTS, strict=True)
    ]
    parts.append(f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 6}" text-anchor="middle">hosts of 8 GPUs</text>')
    ends = _apart([_down(curve[-1], bottom) for curve in curves.values()])
    for (name, curve), colour, end in zip(curves.items(), COLOURS, ends, strict=True):
        points = " ".join(f"{x:.1f},{_down(share, bottom):.1f}" for x, share in zip(across, curve, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(
            f'<text x="{right + 8}" y="{end + 4:.1f}" fill="{colour}">{escape(name)} {100 * curve[-1]:.0f} %</text>'
        )
    style = 'xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="11"'
    return f'<svg {style} viewBox="0 0 {WIDTH} {HEIGHT}">\n' + "\n".join(parts) + "\n</svg>\n"


def _down(share: float, bottom: int) -> float:
    return bottom - share * (bottom - TOP)


def _apart(heights: Sequence[float], least: float = 14.0) -> list[float]:
    """The same heights, moved up until none is nearer to the next lower one than `least`."""
    moved, lowest = list(heights), math.inf
    for at in sorted(range(len(moved)), key=lambda at: -moved[at]):
        lowest = moved[at] = min(moved[at], lowest - least)
    return moved


if __name__ == "__main__":
    raise SystemExit(main())
