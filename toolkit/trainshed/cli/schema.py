"""`trainshed schema`: the JSON schemas of what people write."""

from __future__ import annotations

from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS

from .parser import Parser


def add_arguments(parser: Parser) -> None:
    """The command line."""
    from trainshed.runner.job.schema_json import KINDS

    parser.description = "Prints a JSON schema, for editors that check while you write."
    what = "of a job file (the default), a tuning file, a pipeline of steps, or what a program declares"
    parser.add_argument("kind", nargs="?", default="job", choices=KINDS, help=what)


def run(options: Namespace) -> int:
    """Prints the schema; returns the exit status. Raises TrainshedError."""
    from trainshed.runner.job.schema_json import text

    print(text(options.kind), end="")
    return EXIT_SUCCESS
