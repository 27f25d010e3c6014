"""`trainshed predict`: what a model makes of data."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS, EXIT_USER

from . import say
from .data import pair
from .parser import Parser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_EVERY = 100  # rows between two words of progress
_NAMED = 20  # rows without a prediction that --json tells


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.description = (
        "Predicts with a model: of a ready program, or of a script that has `predict` (docs/predict.md). Prints JSON lines, "
        "or writes the file OUT. Rows and files that cannot be predicted are named and counted; the others are predicted."
    )
    parser.add_argument(
        "model", metavar="RUN|MODEL", help="a run, or a model's folder, model.tar.gz or model://NAME of the model store"
    )
    parser.add_argument("data", metavar="DATA", help="a file or folder, in the form of the program's training data")
    parser.add_argument("-o", "--output", default="", metavar="OUT", help="a file: .csv, .parquet, .jsonl")
    parser.add_argument(
        "--hyperparameter", "--hp", type=pair, action="append", default=[], metavar="K=V",
        help="a hyperparameter of a ready program's predict, as score_threshold (again for more)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print how many there are, and what went wrong, as JSON")


def run(options: Namespace) -> int:
    """Predicts; returns the exit status. Raises TrainshedError."""
    from trainshed.places.predict import predict

    shown = not options.output and not options.json
    counted = _Counted(shown)
    rows = predict(options.model, options.data, options.output, os.environ, dict(options.hyperparameter), counted.see)
    counted.end()
    good = len(rows) - len(counted.failed)
    if options.json:
        told: dict[str, Any] = {
            "model": options.model,
            "data": options.data,
            "predicted": good,
            "failed": len(counted.failed),
        }
        told |= {"output": options.output} if options.output else {"predictions": rows}
        print(json.dumps({**told, "errors": counted.failed[:_NAMED]}, indent=2, ensure_ascii=False))
    failed = f", {len(counted.failed)} could not be: {counted.failed[0]['error']}" if counted.failed else ""
    say(f"{good} predicted{failed}" + (f"; {options.output}" if options.output else ""))
    return EXIT_SUCCESS if good or not rows else EXIT_USER


class _Counted:
    """Sees rows as they are made. printed: whether they are shown."""

    def __init__(self, printed: bool) -> None:
        self.printed, self.rows, self.live = printed, 0, sys.stderr.isatty() and not printed
        self.failed: list[dict[str, Any]] = []

    def see(self, row: dict[str, Any]) -> None:
        """Takes one."""
        self.rows += 1
        if "error" in row:
            self.failed.append(row)
        if self.printed:
            print(json.dumps(row, ensure_ascii=False), flush=True)
        if self.live and self.rows % _EVERY == 0:
            print(f"\rtrainshed: {self.rows:,} rows", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leaves the line of progress."""
        if self.live and self.rows >= _EVERY:
            print("\r\033[K", end="", file=sys.stderr)
