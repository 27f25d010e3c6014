"""`trainshed steps`: runs jobs that depend on each other, and what has not changed only once."""

from __future__ import annotations

import os
from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS
from trainshed.cli import say
from trainshed.cli.parser import Parser, UsageError

_WHICH = "its name in ./pipelines, the beginning of that, or its folder (default: the newest)"


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.description = (
        "Runs a pipeline: jobs, conditions and registrations that depend on each other. A step whose job, code and data are "
        "as they were is not run again; the same command goes on where something failed or was killed."
    )
    parser.epilog = (
        "Exit status of run: 0 if every step has completed or was skipped, 1 if one has not, 130 after Ctrl-C, 2 if the "
        "file cannot be read. docs/steps.md describes it."
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="run|status|show|stop")

    what = "run a pipeline, or go on with it"
    ran = actions.add_parser("run", help=what, description=f"{what.capitalize()}.")
    _add_file(ran)
    ran.add_argument("--output", default="", metavar="DIR", help="its folder (default: pipelines/NAME)")
    ran.add_argument("--no-cache", action="store_true", help="run every step, also what was done")
    ran.add_argument("--from", dest="from_step", default="", metavar="STEP", help="run a step again, and all that need it")
    ran.add_argument("--max-parallel", default="", metavar="N", help="runs beside each other (max_parallel)")

    what = "show how a pipeline stands"
    stands = actions.add_parser("status", help=what, description=f"{what.capitalize()}.")
    stands.add_argument("pipeline", nargs="?", default="", metavar="PIPELINE", help=_WHICH)
    stands.add_argument("--json", action="store_true", help="print JSON")
    stands.add_argument("--svg", default="", metavar="FILE", help="write a picture")

    what = "check a pipeline's file and show its steps; nothing is started"
    shown = actions.add_parser("show", help=what, description=f"{what.capitalize()}.")
    _add_file(shown)
    shown.add_argument("--json", action="store_true", help="print JSON")
    shown.add_argument("--svg", default="", metavar="FILE", help="write a picture")

    what = "stop a pipeline with its runs; `run` goes on with it"
    stopped = actions.add_parser("stop", help=what, description=f"{what.capitalize()}.")
    stopped.add_argument("pipeline", nargs="?", default="", metavar="PIPELINE", help=_WHICH)
    stopped.add_argument("--kill", action="store_true", help="do not wait for the scripts")


def _add_file(parser: Parser) -> None:
    parser.add_argument("file", metavar="PIPELINE.yaml", help="the pipeline's file")
    parser.add_argument("--param", action="append", default=[], metavar="NAME=VALUE", help="value of a parameter")


def run(options: Namespace) -> int:
    """Does what is asked for; returns the exit status. Raises JobError, TrainshedError, UsageError."""
    from trainshed.studio.steps import running
    from trainshed.studio.steps.steps_folder import PIPELINES, StepsFolder

    if options.action in ("run", "show"):
        from dataclasses import replace

        from trainshed.base.numerals import whole
        from trainshed.studio.steps.steps_file import read_pipeline

        pipeline = read_pipeline(options.file, os.environ, _params(options.param))
        if options.action == "show" and options.json:
            from trainshed.base.plain_json import as_json

            print(as_json({"pipeline": pipeline.name, "steps": [box.plain() for box in running.plan(pipeline)]}), end="")
            return EXIT_SUCCESS
        if options.action == "show":
            return _show(pipeline.name, running.plan(pipeline), options.svg)
        if options.from_step and options.no_cache:
            raise UsageError("use one of --from and --no-cache")
        if options.max_parallel:
            count = whole(options.max_parallel) or 0
            if not 0 < count <= 100:
                raise UsageError(f"--max-parallel {options.max_parallel}: must be a whole number from 1 to 100")
            pipeline = replace(pipeline, max_parallel=count)
        folder = options.output or f"{PIPELINES}/{pipeline.name}"
        return running.run(pipeline, folder, os.environ, from_step=options.from_step, no_cache=options.no_cache)
    found = StepsFolder.find(options.pipeline)
    if options.action == "stop":
        return running.stop(found, os.environ, say, kill=options.kill)
    if options.svg:
        if options.json:
            raise UsageError("use one of --json and --svg")
        return _show(os.path.basename(found.path), running.standing(found), options.svg)
    return running.status(found, as_json=options.json)


def _show(name: str, boxes: object, svg: str) -> int:
    from trainshed.base.files import write_atomic
    from trainshed.studio.steps.drawing import picture, table

    print(table(boxes), end="")  # type: ignore[arg-type]
    if svg:
        try:
            write_atomic(svg, picture(name, boxes))  # type: ignore[arg-type]
        except OSError as error:
            raise UsageError(f"{svg} cannot be written: {error.strerror}") from error
    return EXIT_SUCCESS


def _params(given: list[str]) -> dict[str, str]:
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UsageError(f"--param {text}: must be NAME=VALUE")
        found[name] = value
    return found
