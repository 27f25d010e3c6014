"""`trainshed rm`: removes runs."""

from __future__ import annotations

import os
from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS

from . import say
from .parser import Parser


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.description = "Removes runs with everything they left: folder, containers, networks, processes."
    parser.add_argument("runs", nargs="+", metavar="RUN", help="names, beginnings of names, or folders")
    parser.add_argument("--force", "-f", action="store_true", help="kill a run that is running")


def run(options: Namespace) -> int:
    """Removes the runs and prints their names; returns the exit status."""
    from trainshed.runner.control.operations import remove
    from trainshed.runner.state.stored import find

    for text in options.runs:
        stored = find(text, os.environ)
        remove(stored, os.environ, say, force=options.force)
        print(stored.name, flush=True)
    return EXIT_SUCCESS
