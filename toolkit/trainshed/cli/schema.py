"""`trainshed schema`: the job file's JSON schema."""

from __future__ import annotations

from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS

from .parser import Parser


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.description = "Prints the JSON schema of the job file, for editors that check while you write."


def run(options: Namespace) -> int:
    """Prints the schema; returns the exit status."""
    from trainshed.runner.job.schema_json import text

    print(text(), end="")
    return EXIT_SUCCESS
