"""`trainshed diff`: what differs between two runs."""

from __future__ import annotations

import os
from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS, visible
from trainshed.cli.parser import Parser


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.description = (
        "Shows what differs between two runs: hyperparameters, code (as a unified diff), packages, data, environment, "
        "image, machine, settings; and what came of it. What one of them has not noted is said, and never called equal. "
        "`trainshed compare` compares throughput, times and cost."
    )
    parser.add_argument("first", metavar="RUN", help="a run: its name, the beginning of it, or its folder")
    parser.add_argument("second", metavar="RUN", help="the run that is compared with it")
    parser.add_argument("--json", action="store_true", help="print the differences as JSON")


def run(options: Namespace) -> int:
    """Prints the differences; returns the exit status. Raises TrainshedError."""
    from trainshed.runner.state.stored import find
    from trainshed.studio.catalogue.differences import differences

    found = differences(find(options.first, os.environ), find(options.second, os.environ))
    if options.json:
        import json

        print(json.dumps(found.plain(), indent=2, allow_nan=False))
        return EXIT_SUCCESS
    from trainshed.studio.catalogue.showing import page_of_differences

    print(visible(page_of_differences(found)), end="")
    return EXIT_SUCCESS
