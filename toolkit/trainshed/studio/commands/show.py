"""`trainshed show`: everything about one run."""

from __future__ import annotations

import os
from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS, visible
from trainshed.cli.parser import Parser
from trainshed.cli.which import run_of


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.description = (
        "Shows everything about one run: state and cause, hyperparameters, metrics, data, code, packages, image, machine, "
        "times, tags and notes. `trainshed status` shows how it stands, `trainshed diff` compares two."
    )
    parser.add_run(acts=False)
    parser.add_argument("--json", action="store_true", help="print all of it as JSON")


def run(options: Namespace) -> int:
    """Prints the run; returns the exit status. Raises TrainshedError."""
    from trainshed.runner.state.stored import find
    from trainshed.studio.catalogue.run_facts import told_of

    told = told_of(find(options.run, os.environ) if options.run else run_of(options))
    if options.json:
        import json

        print(json.dumps(told, indent=2, allow_nan=False))
        return EXIT_SUCCESS
    from trainshed.studio.catalogue.showing import page

    print(visible(page(told)), end="")
    return EXIT_SUCCESS
