"""What a fingerprint of a channel costs at start, beside reading the data whole.

    python benchmarks/fingerprint.py                    # 100,000 files; about a minute, most of it writing them
    python benchmarks/fingerprint.py --files 10000

Files of 1 to 50 KiB in folders of 1,000. `sampled` is what every job does; the goal is below 1 s of CPU for 100,000 files.
CPU seconds, the least of `--rounds`: what else the machine does makes them worse. Results are on stdout.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from _claims import claim

from trainshed.machine.fingerprint import Fingerprint, of_folder

GOAL = 1.0  # CPU seconds for 100,000 files
IN_A_FOLDER = 1000
KIB = b"0123456789abcdef" * 64


def write(folder: Path, files: int) -> None:
    """The data."""
    for number in range(files):
        place = folder / f"{number // IN_A_FOLDER:05d}"
        if number % IN_A_FOLDER == 0:
            place.mkdir()
        (place / f"{number:07d}.jpg").write_bytes(KIB * (1 + number % 50))


def measure(fingerprint: Callable[[], Fingerprint], rounds: int) -> tuple[float, float, Fingerprint]:
    """Least CPU seconds, least seconds, and what came of it."""
    took = []
    for _ in range(rounds):
        cpu, wall = time.process_time(), time.perf_counter()
        found = fingerprint()
        took.append((time.process_time() - cpu, time.perf_counter() - wall))
    return min(cpu for cpu, _ in took), min(wall for _, wall in took), found


def main() -> None:
    """Prints a table, and whether the goal is met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        write(Path(made), options.files)
        print(f"{'':<10}{'CPU s':>8}{'s':>8}{'files read':>12}{'MB':>8}")
        costs = {}
        for method in ("listed", "sampled", "whole"):
            cpu, wall, found = measure(lambda method=method: of_folder(made, method), options.rounds)  # type: ignore[misc]
            costs[method] = cpu
            print(f"{method:<10}{cpu:>8.2f}{wall:>8.2f}{found.read:>12,}{found.bytes / 1e6:>8,.0f}")
    scaled = costs["sampled"] * 100_000 / options.files
    claim("fingerprint: 100,000 files, sampled", scaled, "CPU s", limit=GOAL)


if __name__ == "__main__":
    main()
