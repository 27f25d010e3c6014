"""Command lines in this process: read as `trainshed` reads them, or answered by `trainshed` itself."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from unittest import mock

import pytest

from support.finished import Finished
from trainshed.cli import main, parser
from trainshed.cli.parser import Parser
from trainshed.runner.job import flags
from trainshed.runner.job.job import Job


def answer(arguments: Sequence[str], folder: Path, environ: Mapping[str, str]) -> Finished:
    """What `trainshed ARGUMENTS` answers in a folder, with these variables and no others, called in this process.

    For commands that only read, print or refuse. One that starts jobs, takes signals or detaches needs its own process.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
        with (
            _standard_streams(out.fileno(), error.fileno()),
            mock.patch.dict(os.environ, environ, clear=True),
            pytest.MonkeyPatch.context() as patch,
        ):
            patch.chdir(folder)
            patch.setattr(sys, "argv", ["trainshed", *arguments])
            patch.setattr(tempfile, "tempdir", None)  # asked of the variables once, and kept
            try:
                status = main(list(arguments))
            except SystemExit as end:
                status = int(end.code or 0)
        return Finished(status, *(file.seek(0) or file.read().decode() for file in (out, error)))


@contextlib.contextmanager
def _standard_streams(out: int, error: int) -> Iterator[None]:
    """Descriptors 0 to 2 and Python's own streams are as a process has them that reads nothing and prints to these two."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    kept = [os.dup(number) for number in range(3)]
    try:
        for number, other in enumerate((nothing, out, error)):
            os.dup2(other, number)
        with (
            open(0, closefd=False) as stdin,
            open(1, "w", closefd=False) as stdout,
            open(2, "w", buffering=1, errors="backslashreplace", closefd=False) as stderr,
            mock.patch.multiple(sys, stdin=stdin, stdout=stdout, stderr=stderr),
        ):
            yield
    finally:
        for number, other in enumerate(kept):
            os.dup2(other, number)
        for descriptor in (nothing, *kept):
            os.close(descriptor)


def parser_of(command: str) -> Parser:
    """The parser of a command."""
    return parser.parser_of(command)[1]


def options_of(command: str, arguments: list[str]) -> Namespace:
    """The options of a command line. Raises SystemExit where it cannot be read."""
    return parser_of(command).read(arguments)


def job_of(arguments: list[str], environ: Mapping[str, str]) -> Job:
    """The job that `trainshed run ARGUMENTS` would run. Raises JobError."""
    return flags.job_of(options_of("run", arguments), environ)
