"""`trainshed lineage`: where a run comes from."""

from __future__ import annotations

import os
from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS, TrainshedError, visible
from trainshed.cli.parser import Parser
from trainshed.cli.which import run_of


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.description = (
        "Shows where a run comes from: code and git commit, image, packages, fingerprints of its data, the runs that it "
        "went on from or makes again, and theirs. A parent that was moved is known by its id, or by its model's hashes."
    )
    parser.epilog = "Runs are looked for in ./runs and in this user's index. docs/lineage.md says what each run notes."
    parser.add_run(acts=False)
    parser.add_argument("--down", action="store_true", help="also what came of it: runs that go on from it or make it again")
    parser.add_argument("--among", action="append", default=[], metavar="DIR", help="also look for runs in this folder")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="as JSON")
    shown.add_argument("--svg", default="", metavar="FILE", help="write a picture")


def run(options: Namespace) -> int:
    """Prints the lineage, or writes its picture; returns the exit status. Raises TrainshedError."""
    from trainshed.runner.state.stored import every, load
    from trainshed.studio.lineage.ancestry import ancestry
    from trainshed.studio.lineage.family import family_of

    stored = run_of(options)
    runs = every(os.environ)
    for folder in options.among:
        try:
            with os.scandir(folder) as entries:
                runs += [load(entry.path) for entry in entries if os.path.exists(f"{entry.path}/status.json")]
        except OSError as error:
            raise TrainshedError(f"{folder} cannot be looked through for runs: {error.strerror}") from error
    told = ancestry(stored, family_of([*runs, stored]), down=options.down)
    if options.json:
        import json

        print(json.dumps(told, indent=2))
    elif options.svg:
        from trainshed.base.files import write_atomic
        from trainshed.studio.lineage.drawing import drawing

        try:
            write_atomic(options.svg, drawing(told))
        except OSError as error:
            raise TrainshedError(f"{options.svg} cannot be written: {error.strerror}") from error
        print(options.svg)
    else:
        from trainshed.studio.lineage.outline import outline

        print(visible(outline(told)), end="")
    return EXIT_SUCCESS
