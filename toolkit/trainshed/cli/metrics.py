"""`trainshed metrics`: the metrics of a run, and what a log would give."""

from __future__ import annotations

import sys
from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS, EXIT_USER, TrainshedError, visible
from trainshed.contract.wire.metric_lines import FORMATS

from .parser import Parser, UsageError
from .which import run_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from trainshed.metrics.media_reading import Medium
    from trainshed.metrics.reading import Curve

BLOCK = 1 << 20


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.description = "Shows the metrics of a run, or tries on a log what a job would find in it (docs/metrics.md)."
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    show = commands.add_parser("show", help="the metrics of a run", usage="trainshed metrics show [RUN] [options]")
    show.add_run(acts=False)
    show.add_argument("--csv", action="store_true", help="every value: name,rank,step,epoch,time,value")
    show.add_argument(
        "--tensorboard", default="", metavar="FOLDER", help="write them as an event file for TensorBoard into FOLDER"
    )
    test = commands.add_parser(
        "test", help="what a job finds in a log; status 1 where a definition does not fit",
        usage="trainshed metrics test LOG [options]",
    )  # fmt: skip
    for one in (show, test):
        one.add_argument("--json", action="store_true", help="print the table as JSON")
    test.add_argument("log", help="a file, or `-` for standard input")
    test.add_argument(
        "--definitions", default="", metavar="FILE",
        help="a job file, or definitions as in metric-definition-regex.json: a list of Name and Regex, or an object",
    )  # fmt: skip
    test.add_argument(
        "--regex", action="append", default=[], metavar="NAME=REGEX", help="one more definition; may be given several times"
    )
    test.add_argument("--format", choices=FORMATS, default="auto", help="formats to look for besides (default: auto)")


def run(options: Namespace) -> int:
    """Prints metrics; returns the exit status. Raises TrainshedError."""
    return _show(options) if options.command == "show" else _test(options)


def _show(options: Namespace) -> int:
    from trainshed.metrics.media_reading import media_of
    from trainshed.metrics.reading import read
    from trainshed.runner.state.outputs import outputs_of

    stored = run_of(options)
    outputs = outputs_of(stored.folder)
    series = read(outputs)
    if options.tensorboard:
        from trainshed.metrics.tensorboard import write

        count, others = write(options.tensorboard, series.values(), media_of(outputs))
        more = f" and {others} pictures and the like" if others else ""
        print(visible(f"{count} values of {len(series)} metrics{more}: tensorboard --logdir {options.tensorboard}"))
        return EXIT_SUCCESS
    if options.json:
        if options.csv:
            raise UsageError("--json and --csv cannot be used together")
        _print_json(series)
        return EXIT_SUCCESS
    if not options.csv:
        media = media_of(outputs)
        if not series and not media:
            print(f"{stored.name} has no metrics{'' if stored.ended else ' yet'}; docs/metrics.md says where they come from")
        _table(series)
        _media_table(media)
        return EXIT_SUCCESS
    import csv

    from trainshed.base.plain_json import finite

    out = csv.writer(sys.stdout)
    out.writerow(("name", "rank", "step", "epoch", "time", "value"))
    for one in series.values():
        out.writerows(
            (one.name, point.rank, point.step, point.epoch, point.time, finite(point.value)) for point in one.points()
        )
    return EXIT_SUCCESS


def _test(options: Namespace) -> int:
    import time

    from trainshed.metrics.reading import curves_of
    from trainshed.metrics.scraper import Scraper, scan_file

    scraper = Scraper(_definitions(options), options.format)
    series = curves_of(scan_file(scraper, _blocks(options.log), time.time()))
    remarks = scraper.finish()
    if options.json:
        _print_json(series)
    else:
        if not series:
            print("no metrics found")
        _table(series)
    for remark in remarks:
        print(visible(f"warning: {remark}"), file=sys.stderr if options.json else sys.stdout)
    return EXIT_USER if remarks else EXIT_SUCCESS


def _rows(series: dict[str, Curve]) -> list[dict[str, Any]]:
    """The columns of the table, by metric."""
    rows = []
    for one in series.values():
        count, *numbers = one.summary().as_dict().values()
        rows.append(
            {"metric": one.name, "values": count, **dict(zip(("first", "last", "least", "most"), numbers, strict=True))}
        )
    return rows


def _print_json(series: dict[str, Curve]) -> None:
    from trainshed.base.plain_json import as_json

    print(as_json(_rows(series)), end="")


def _table(series: dict[str, Curve]) -> None:
    rows = [["metric", "values", "first", "last", "least", "most"]]
    for one in _rows(series):
        name, count, *numbers = one.values()
        rows.append([name, str(count), *(f"{value:.6g}" for value in numbers)])
    _print_rows(rows)


def _media_table(media: dict[str, tuple[Medium, ...]]) -> None:
    """Pictures, tables and the like, each name with its latest file."""
    rows = [["name", "kind", "kept", "logged", "last step", "last file"]]
    for name, found in media.items():
        last, steps = found[-1], len({(one.path.rpartition("/")[0], one.call) for one in found})
        rows.append([name, last.kind, str(steps), str(last.call), str("" if last.step is None else last.step), last.path])
    _print_rows(rows)


def _print_rows(rows: list[list[str]]) -> None:
    """A table; nothing where it has a head alone."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows if len(rows) > 1 else []:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        print(visible("  ".join(cells)))


def _definitions(options: Namespace) -> list[tuple[str, str]]:
    definitions = _defined(options.definitions) if options.definitions else []
    for text in options.regex:
        name, equals, regex = text.partition("=")
        if not (name and equals and regex):
            raise TrainshedError(f"--regex {text!r} is not NAME=REGEX")
        definitions.append((name, regex))
    return definitions


def _defined(path: str) -> list[tuple[str, str]]:
    """The definitions in a file."""
    import yaml

    try:
        with open(path) as file:
            found = yaml.safe_load(file)
        if isinstance(found, dict) and ("metric_definitions" in found or "MetricDefinitions" in found):
            found = found.get("metric_definitions") or found.get("MetricDefinitions")
        elif isinstance(found, dict) and "program" in found:
            raise ValueError("it is a job file without metric_definitions")
        pairs = list(found.items() if isinstance(found, dict) else [(one["Name"], one["Regex"]) for one in found])
        if not all(isinstance(text, str) for pair in pairs for text in pair):
            raise TypeError("a name or a regular expression is not a text")
    except OSError as error:
        raise TrainshedError(f"{path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise TrainshedError(
            f"{path} holds no metric definitions: {type(error).__name__}: {error}",
            hint="a job file with metric_definitions, a list of Name and Regex, or names with regular expressions",
        ) from error
    return pairs


def _blocks(path: str) -> Iterator[bytes]:
    try:
        with sys.stdin.buffer if path == "-" else open(path, "rb") as file:
            while block := file.read(BLOCK):
                yield block
    except OSError as error:
        raise TrainshedError(f"{path} cannot be read: {error.strerror}") from error
