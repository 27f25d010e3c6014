"""What the search of a log for metrics costs, beside a bare loop over the same regular expressions.

    python benchmarks/observe.py               # 200,000 lines, eight definitions
    python benchmarks/observe.py --lines 20000

Two logs: one whose every tenth line is the Trainer's (`{'loss': ...}`), and one whose every line looks like a metric and is
one. CPU microseconds a line, of the search alone: the log itself never waits for it.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "toolkit"))

from trainshed.metrics.scraper import Scraper

NAMES = ("loss", "grad_norm", "learning_rate", "epoch", "eval_loss", "eval_accuracy", "eval_runtime", "train_loss")
DEFINITIONS = [(name, rf"'{name}': '?([-+0-9.eE]+)") for name in NAMES]
OTHER = b"2026-11-22 10:00:00,123 INFO data.loader worker 3: shard 0042 of 0100 opened, 1289 records, cached\n"
TRAINER = b"{'loss': '0.6931', 'grad_norm': '3.25', 'learning_rate': '4.9375e-05', 'epoch': '0.5'}\n"
PAIRS = b"step 10: loss=0.6931 lr=4.9375e-05 tokens_per_second=12345\n"
BLOCK = 1000  # lines


def seconds_of(work: Callable[[], None]) -> float:
    """CPU seconds of this process, the best of three."""
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def bare(block: bytes, blocks: int) -> None:
    """The least that any search must do: every expression on every line."""
    patterns = [re.compile(regex) for _, regex in DEFINITIONS]
    for _ in range(blocks):
        for line in block.decode().splitlines():
            for pattern in patterns:
                pattern.search(line)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=200_000)
    blocks = max(1, parser.parse_args().lines // BLOCK)
    logs = {"every tenth line is a metric": (OTHER * 9 + TRAINER) * (BLOCK // 10), "every line is a metric": PAIRS * BLOCK}
    print("| log | bare loop, us a line | definitions and formats | formats alone | ratio to the bare loop |")
    print("|---|---|---|---|---|")
    for name, block in logs.items():

        def search(definitions: list[tuple[str, str]], block: bytes = block) -> None:
            scraper = Scraper(definitions)
            for _ in range(blocks):
                scraper.scan(block, 0.0, rank=0)

        times = [seconds_of(lambda block=block: bare(block, blocks))]
        times += [seconds_of(lambda given=given, search=search: search(given)) for given in (DEFINITIONS, [])]
        cells = " | ".join(f"{1e6 * seconds / blocks / BLOCK:.2f}" for seconds in times)
        print(f"| {name} | {cells} | {times[1] / times[0]:.1f} |")


if __name__ == "__main__":
    main()
