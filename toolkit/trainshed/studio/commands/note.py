"""`trainshed note`: what a person says of a run."""

from __future__ import annotations

import os
import sys
from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS, visible
from trainshed.cli import say
from trainshed.cli.parser import RUN_HELP, Parser, UsageError


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.description = "Adds a note to a run, with the time; without TEXT, prints the notes."
    parser.epilog = "Notes are kept in the run's folder. `trainshed ls --where 'note ~ \"word\"'` finds them."
    parser.take_dashed_words()
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    parser.add_argument("text", nargs="?", default="", metavar="TEXT", help="the note; `-` reads it from standard input")
    parser.add_argument("--clear", action="store_true", help="remove the notes that are there")


def run(options: Namespace) -> int:
    """Adds a note, or prints the notes; returns the exit status. Raises TrainshedError."""
    from trainshed.runner.state.stored import find
    from trainshed.studio.catalogue import labels

    text = sys.stdin.read() if options.text == "-" else options.text
    if options.text and not text.strip():
        raise UsageError("the note is empty; --clear removes those that are there")
    stored = find(options.run, os.environ)
    wanted = labels.Change(note=text.strip(), clear_notes=options.clear)
    given = labels.of_job(stored)
    held = labels.read(stored.folder, given) if wanted == labels.Change() else labels.change(stored.folder, wanted, given)
    if held.problem:
        say(held.problem)
    for at, note in held.notes:
        print(visible(f"{at[:16].replace('T', ' ')}  {note}"))
    return EXIT_SUCCESS
