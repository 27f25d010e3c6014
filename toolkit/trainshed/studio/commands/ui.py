"""`trainshed ui`: a web page over the runs."""

from __future__ import annotations

import os
from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS
from trainshed.cli import say
from trainshed.cli.parser import Parser, UsageError


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.description = (
        "Serves a page over the runs of this machine: a table of all, live curves, logs, files, and buttons that stop, "
        "resume and repeat them. It listens on 127.0.0.1 alone; the address that it prints holds the token without which "
        "it tells nothing. With --export it writes a copy that opens without a server."
    )
    parser.epilog = "Needs the extra: pip install 'trainshed[ui]'."
    parser.add_argument(
        "--runs", action="append", default=[], metavar="FOLDER",
        help="also the runs in this folder and below, for example on a shared disk; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--port", type=int, default=0, metavar="N", help="to listen on (default: the first free one from 8811)"
    )
    add = parser.add_argument
    add("--read-only", action="store_true", help="who has the address may look, and do nothing")
    add(
        "--behind", default="", metavar="URL",
        help="the address under which a reverse proxy shows the page, like https://team.example/trainshed/",
    )  # fmt: skip
    add("--export", default="", metavar="FOLDER", help="write a copy of the page that opens without a server, and end")
    add("--where", default="", metavar="WORDS", help="with --export: of these runs alone, as in the page's filter")


def run(options: Namespace) -> int:
    """Serves until it is interrupted; returns the exit status. Raises TrainshedError."""
    from trainshed.studio.ui.server import require, serve

    folders = tuple(map(os.path.abspath, options.runs))
    if options.where and not options.export:
        raise UsageError("--where goes with --export; the page has a filter")
    if options.export and (options.port or options.behind or options.read_only):
        raise UsageError("--export writes a copy, and serves nothing: --port, --behind and --read-only cannot be used")
    require(folders)
    if options.export:
        from trainshed.studio.ui.offline import export

        print(export(os.environ, folders, options.export, options.where, say))
        return EXIT_SUCCESS
    serve(os.environ, folders, options.port, say, behind=options.behind, read_only=options.read_only)
    return EXIT_SUCCESS
