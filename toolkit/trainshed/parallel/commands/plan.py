"""`trainshed plan`: profiles a model and writes its pipeline plan."""

from __future__ import annotations

from argparse import Namespace

from trainshed.cli.parser import Parser


def add_arguments(parser: Parser) -> None:
    """The command line; torch is not loaded for it."""
    from trainshed.parallel.plan.arguments import add_arguments

    add_arguments(parser)


def run(options: Namespace) -> int:
    """Writes the plan; returns the exit status."""
    from trainshed.parallel.plan.command import run

    return run(options)
