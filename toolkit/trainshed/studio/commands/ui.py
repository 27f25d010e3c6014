"""`trainshed ui`: a web page over the runs."""

from __future__ import annotations

import os
from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS
from trainshed.cli import say
from trainshed.cli.parser import Parser


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.description = (
        "Serves a page over the runs of this machine: a table of all, live curves, logs, files, and buttons that stop, "
        "resume and repeat them. It listens on 127.0.0.1 alone; the address that it prints holds the token without which "
        "it tells nothing."
    )
    parser.epilog = "Needs the extra: pip install 'trainshed[ui]'."
    parser.add_argument(
        "--runs", action="append", default=[], metavar="FOLDER",
        help="also the runs in this folder and below, for example on a shared disk; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--port", type=int, default=0, metavar="N", help="to listen on (default: the first free one from 8811)"
    )


def run(options: Namespace) -> int:
    """Serves until it is interrupted; returns the exit status. Raises TrainshedError."""
    from trainshed.studio.ui.server import serve

    serve(os.environ, tuple(map(os.path.abspath, options.runs)), options.port, say)
    return EXIT_SUCCESS
