"""`trainshed describe NAME`: what a ready program takes and prints."""

from __future__ import annotations

import json
import os
from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS

from .parser import Parser


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.description = "Shows the channels, hyperparameters and metrics that a program declares (docs/algorithms.md)."
    parser.add_argument("name", metavar="NAME|PROGRAM.py", help="of `trainshed algorithms`, or a path")
    parser.add_argument("--json", action="store_true", help="the same as JSON")


def run(options: Namespace) -> int:
    """Prints it; returns the exit status."""
    from trainshed.algorithms import about, shelf

    algorithm = shelf.find(options.name, os.environ)
    print(json.dumps(about.plain(algorithm), indent=2) if options.json else about.description(algorithm))
    return EXIT_SUCCESS
