"""`PYTHONPATH=toolkit:tests python -m fuzz --cases 100000 --seed 1`: mutated inputs in a few processes; a table at the end.

A case is a target and a number: `--only TARGET --first NUMBER --cases 1` plays it again. Exit status 1 if one failed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import time
from collections import Counter

from fuzz.play import Result, play, share


def main() -> int:
    """Plays the cases and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--minutes", type=float, default=1e9, help="end earlier, with what has been played by then")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    began = time.monotonic()
    jobs = [
        (options.seed, name, first, count) for name, first, count in share(options.cases, options.first, options.only, 250)
    ]
    random.Random(options.seed).shuffle(jobs)  # so that all targets advance together
    counts: Counter[str] = Counter()
    slowest: dict[str, float] = {}
    failed: list[Result] = []
    with multiprocessing.get_context("spawn").Pool(options.processes, maxtasksperchild=20) as pool:
        for name, count, seconds, results in pool.imap_unordered(play, jobs):
            counts[name] += count
            slowest[name] = max(seconds, slowest.get(name, 0.0))
            failed += results
            if time.monotonic() - began > options.minutes * 60:
                pool.terminate()
                break
            for result in results:
                print(f"{result.target} {result.number}: {result.problem}", file=sys.stderr, flush=True)
    print("| input | cases | failed | slowest, s |\n|---|---|---|---|")
    for name in sorted(counts):
        wrong = sum(result.target == name for result in failed)
        print(f"| {name} | {counts[name]:,} | {wrong} | {slowest[name]:.1f} |")
    print(f"| together | {sum(counts.values()):,} | {len(failed)} | {max(slowest.values()):.1f} |")
    print(f"\nseed {options.seed}, {time.monotonic() - began:.0f} s", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
