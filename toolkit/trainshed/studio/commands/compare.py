"""`trainshed compare`: runs of a job side by side."""

from __future__ import annotations

from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS, visible
from trainshed.cli.parser import Parser
from trainshed.cli.which import run_or_none


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.description = (
        "Compares throughput, loss, all other metrics, training time and billable seconds of runs; the first is the base."
    )
    parser.epilog = (
        "RUN is a run's name, the beginning of it, or its folder; or a job folder (/opt/ml), or a run record "
        "(output/data/run/HOST.json)."
    )
    add = parser.add_argument
    add("first", metavar="RUN", help="the base, for example without the compiler")
    add("others", metavar="RUN", nargs="+", help="the runs that are compared with it")
    add("--html", metavar="FILE", help="write a page with the table and the curves, in one file")
    add("--json", action="store_true", help="print the numbers as one line of JSON")


def run(options: Namespace) -> int:
    """Prints the comparison; returns the exit status. Raises TrainshedError: a run cannot be read."""
    from trainshed.studio.compare.facts import is_record, read_run
    from trainshed.studio.compare.table import rows, text_of

    named = [(text, run_or_none(text, is_record)) for text in (options.first, *options.others)]
    runs = [read_run(text if run is None else run.folder) for text, run in named]
    compared = rows(*runs)
    if options.json:
        import json

        told = {"runs": [facts.plain() for facts in runs], "rows": [row.plain() for row in compared]}
        print(json.dumps(told))
    else:
        print(visible(text_of(runs, compared)), end="")
    if options.html:
        from trainshed.studio.compare.page import write_page

        write_page(options.html, runs, compared)
    return EXIT_SUCCESS
