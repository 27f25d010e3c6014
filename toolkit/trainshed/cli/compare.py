"""`trainshed compare`: two runs of a job side by side."""

from __future__ import annotations

from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS, visible

from .parser import Parser


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.description = "Compares throughput, loss, training time and billable seconds of two runs; the first is the base."
    parser.epilog = (
        "A run is a folder of `trainshed run`, a job folder (/opt/ml), or a run record (output/data/run/HOST.json)."
    )
    add = parser.add_argument
    add("first", metavar="RUN_A", help="the base, for example without the compiler")
    add("second", metavar="RUN_B", help="the run that is compared with it")
    add("--html", metavar="FILE", help="write a page with the table and the curves, in one file")
    add("--json", action="store_true", help="print the numbers as one line of JSON")


def run(options: Namespace) -> int:
    """Prints the comparison; returns the exit status. Raises TrainshedError: a run cannot be read."""
    from trainshed.runner.tools.compare.facts import read_run
    from trainshed.runner.tools.compare.table import rows, text_of

    pair = (read_run(options.first), read_run(options.second))
    compared = rows(*pair)
    if options.json:
        import json

        runs = [facts.plain() for facts in pair]
        print(json.dumps({"runs": runs, "rows": [row.plain() for row in compared]}))
    else:
        print(visible(text_of(pair, compared)), end="")
    if options.html:
        from trainshed.runner.tools.compare.page import write_page

        write_page(options.html, pair, compared)
    return EXIT_SUCCESS
