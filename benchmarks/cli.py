"""How long `--help` of every command takes, beside an interpreter that does nothing.

    python benchmarks/cli.py [--runs 15]

The commands take turns, so that whatever else the machine does meets them alike. Least and median of the wall times in
milliseconds, from the start of the process to its end; the first round, which fills caches, does not count. The goal is
150 ms for each.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from _claims import claim
from _measure import summary

TOOLKIT = Path(__file__).resolve().parents[1] / "toolkit"
GOAL = 150.0  # milliseconds


def main() -> int:
    """Prints the table; 1 where a command's least time misses the goal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    ours = [sys.executable, "-m", "trainshed.cli"]
    lines = {"(bare interpreter)": [sys.executable, "-c", "pass"], "--help": [*ours, "--help"]}
    lines |= {f"{name} --help": [*ours, name, "--help"] for name in command_names()}
    samples: dict[str, list[float]] = {name: [] for name in lines}
    for number in range(runs + 1):
        for name, command in lines.items():
            milliseconds = timed(command)
            if number:
                samples[name].append(milliseconds)
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} CPUs, {runs} runs")
    print("| command | least ms | median ms | goal |\n|---|---|---|---|")
    slowest = 0.0
    for name, values in samples.items():
        found = summary(values)
        met = found["min"] <= GOAL
        slowest = max(slowest, found["min"])
        print(f"| `{name}` | {found['min']:.0f} | {found['median']:.0f} | {'met' if met else '**not met**'} |")
    return int(not claim("cli: the slowest --help", slowest, "ms", limit=GOAL))


def command_names() -> list[str]:
    """The commands that there are, asked of this checkout."""
    sys.path.insert(0, str(TOOLKIT))
    from trainshed.cli.commands import all_commands

    return list(all_commands())


def timed(command: list[str]) -> float:
    """Milliseconds of one process. Raises CalledProcessError if it fails."""
    environment = {**os.environ, "PYTHONPATH": str(TOOLKIT)}
    start = time.perf_counter()
    subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
    return (time.perf_counter() - start) * 1000


if __name__ == "__main__":
    sys.exit(main())
