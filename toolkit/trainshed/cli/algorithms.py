"""`trainshed algorithms`: the programs that declare what they take."""

from __future__ import annotations

import json
import os
from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS
from trainshed.contract.wire.variables import ENTRYPOINTS

from . import say
from .parser import Parser


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.description = (
        f"Lists the ready programs: those of this folder, of {ENTRYPOINTS}, of the image and of this checkout "
        "(docs/algorithms.md)."
    )
    parser.add_argument("--json", action="store_true", help="everything that they declare, as JSON")


def run(options: Namespace) -> int:
    """Prints them; returns the exit status."""
    from trainshed.algorithms import about, shelf

    found, wrong = shelf.every(os.environ)
    for error in wrong:
        say(f"WARNING: {error.message}")
    if options.json:
        print(json.dumps([about.plain(one) for one in found], indent=2))
        return EXIT_SUCCESS
    width = max((len(one.name) for one in found), default=0)
    for one in found:
        missing = shelf.missing(one)
        lacks = f"  (needs {', '.join(missing)}, not installed here)" if missing else ""
        print(f"{one.name:<{width}}  {one.description}{lacks}")
    if not found:
        say("no program here declares what it takes; see docs/algorithms.md")
    return EXIT_SUCCESS
