"""`trainshed tag`: gives tags to runs, and takes them away."""

from __future__ import annotations

import os
from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS, one_line
from trainshed.cli import say
from trainshed.cli.parser import RUN_HELP, Parser, UsageError


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.usage = "trainshed tag RUN ... [+TAG | +TAG=VALUE | -TAG] ..."
    parser.description = "Gives tags to runs (+TAG) and takes them away (-TAG); without any, prints the tags."
    parser.epilog = (
        "Tags are kept in the run's folder. `trainshed ls --where '\"best\" in tags'` finds them; the tag `group` puts runs "
        "into a group: +group=NAME, trainshed ls --group NAME."
    )
    parser.take_dashed_words()
    parser.add_argument("words", nargs="+", metavar="RUN|+TAG|-TAG", help=f"runs and tags; {RUN_HELP}")


def run(options: Namespace) -> int:
    """Changes tags, or prints them; returns the exit status. Raises TrainshedError."""
    from trainshed.runner.state.stored import find
    from trainshed.studio.catalogue import labels

    names = [word for word in options.words if word[:1] not in ("+", "-")]
    if not names:
        raise UsageError("name a run: trainshed tag RUN +TAG")
    wanted = labels.change_of([word for word in options.words if word[:1] in ("+", "-")])
    runs = list({run.folder: run for run in (find(name, os.environ) for name in names)}.values())
    problems = []
    for one in runs:
        given = labels.of_job(one)
        try:
            held = labels.change(one.folder, wanted, given) if wanted != labels.Change() else labels.read(one.folder, given)
        except labels.LabelError as error:
            problems.append(error)
            continue
        if held.problem:
            say(held.problem)
        shown = ", ".join(f"{name}={text}" if text else name for name, text in sorted(held.tags.items()))
        print(f"{one.name}: {one_line(shown) or 'no tags'}")
    for problem in problems[:-1]:
        say(problem.message)
    if problems:
        raise problems[-1]
    return EXIT_SUCCESS
