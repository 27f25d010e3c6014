"""`trainshed checkpoints`: looks after a folder of checkpoints."""

from __future__ import annotations

from argparse import Namespace

from .parser import Parser


def add_arguments(parser: Parser) -> None:
    """The command line."""
    from trainshed.checkpoint.__main__ import add_arguments

    add_arguments(parser)


def run(options: Namespace) -> int:
    """Runs the command; returns its exit status."""
    from trainshed.checkpoint.__main__ import run

    return run(options)
