"""Command lines read as `trainshed` reads them, without running what they ask for."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from importlib import import_module

from trainshed.cli.parser import Parser
from trainshed.runner.job import flags
from trainshed.runner.job.job import Job


def parser_of(command: str) -> Parser:
    """The parser of a command."""
    parser = Parser(prog=f"trainshed {command}")
    import_module(f"trainshed.cli.{command.replace('-', '_')}").add_arguments(parser)
    return parser


def options_of(command: str, arguments: list[str]) -> Namespace:
    """The options of a command line. Raises SystemExit where it cannot be read."""
    return parser_of(command).read(arguments)


def job_of(arguments: list[str], environ: Mapping[str, str]) -> Job:
    """The job that `trainshed run ARGUMENTS` would run. Raises JobError."""
    return flags.job_of(options_of("run", arguments), environ)
