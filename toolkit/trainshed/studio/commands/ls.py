"""`trainshed ls`: the catalogue of all runs, past and present."""

from __future__ import annotations

import os
import sys
from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS, visible
from trainshed.cli import say
from trainshed.cli.parser import Parser, UsageError


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.description = (
        "Lists the catalogue of runs: all that this user has started, and those in ./runs, past ones too. "
        "`trainshed ps` shows what runs here now."
    )
    parser.epilog = (
        "EXPRESSION compares metrics, hyperparameters, tags and facts: 'loss < 0.3 and lr > 1e-4', "
        "'state in (\"Failed\", \"Lost\")', 'best(accuracy) > 0.9 and started > 7d ago', '\"best\" in tags'. "
        "docs/catalogue.md describes it. The index is made of the runs' folders, and made again where it is lost."
    )
    parser.take_dashed_words()
    add = parser.add_argument
    add("--where", default="", metavar="EXPRESSION", help="which runs; in quotes, for the shell")
    add("--sort", default="", metavar="NAME,...", help="least first; -NAME: most first (default: newest first)")
    add("--columns", default="", metavar="NAME,...", help="what is shown of each run")
    add("--limit", default="", metavar="N", help="so many runs at most")
    add("--group", default="", metavar="NAME", help="the runs of a group, for example the trials of a tuning job")
    add("--runs", action="append", default=[], metavar="FOLDER", help="also runs in and below it; may be repeated")
    add("--json", action="store_true", help="print a list of objects; without --columns, all that is known")
    add("--csv", action="store_true", help="print comma-separated values")
    add("--rebuild", action="store_true", help="read every run again, whatever the index says")


def run(options: Namespace) -> int:
    """Prints the runs; returns the exit status. Raises TrainshedError."""
    from trainshed.studio.catalogue.listing import Wanted, as_csv, as_json, ask, everything_as_json, table
    from trainshed.studio.catalogue.open_catalogue import Catalogue

    if options.json and options.csv:
        raise UsageError("--json and --csv cannot be used together")
    if options.limit and not (options.limit.isascii() and options.limit.isdigit() and 0 < int(options.limit[:10]) < 1 << 31):
        raise UsageError(f"--limit {options.limit!r} is not a number of runs")
    for folder in options.runs:
        if not os.path.isdir(folder):
            raise UsageError(f"--runs {folder} is not a folder")
    wanted = Wanted(options.where, options.sort, options.columns, options.group, int(options.limit or 0))
    catalogue = Catalogue(os.environ, options.runs, say, rebuild=options.rebuild)
    catalogue.look()
    connection = catalogue.connection
    answer = ask(connection, wanted)
    if options.json:
        sys.stdout.write(as_json(answer) if options.columns else everything_as_json(connection, answer))
        return EXIT_SUCCESS
    if options.csv:
        sys.stdout.write(as_csv(answer))
        return EXIT_SUCCESS
    if not answer.rows:
        asked = options.where or options.group
        say("no run fits" if asked else "there are no runs, neither in ./runs nor in the index")
        return EXIT_SUCCESS
    print(visible(table(answer)), end="")
    if answer.total > len(answer.rows):
        say(f"{len(answer.rows):,} of {answer.total:,} runs; --limit N shows more")
    return EXIT_SUCCESS
