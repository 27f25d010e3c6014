"""`trainshed compare RUN_A RUN_B`: two runs of a job side by side, usually without and with the compiler."""

from __future__ import annotations

import argparse
import json
from typing import NoReturn

from .facts import Facts, read_run
from .table import rows, text_of


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line."""
        self.exit(2, f"trainshed compare: {message}; see `trainshed compare --help`\n")


def main(arguments: list[str]) -> int:
    """The command; returns its exit status.

    Raises:
        TrainshedError: a run cannot be read.
    """
    parser = _Parser(
        prog="trainshed compare",
        description="Compares throughput, loss, training time and billable seconds of two runs; the first is the base.",
        epilog="A run is a folder of `trainshed run`, a job folder (/opt/ml), or a run record (output/data/run/HOST.json).",
        allow_abbrev=False,
    )
    parser.add_argument("first", metavar="RUN_A", help="the base, as without the compiler")
    parser.add_argument("second", metavar="RUN_B", help="what is compared with it")
    parser.add_argument("--html", metavar="FILE", help="write a page with the table and the curves, in one file")
    parser.add_argument("--json", action="store_true", help="print the numbers as one line of JSON")
    options = parser.parse_args(arguments)
    pair: tuple[Facts, Facts] = (read_run(options.first), read_run(options.second))
    made = rows(*pair)
    if options.json:
        print(json.dumps({"runs": [facts.plain() for facts in pair], "rows": [row.plain() for row in made]}))
    else:
        print(text_of(pair, made), end="")
    if options.html:
        from .page import write_page

        write_page(options.html, pair, made)
    return 0
