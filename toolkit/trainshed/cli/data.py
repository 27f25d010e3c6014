"""`trainshed data`: what is in a channel, what a ready program makes of it, and how fast this machine reads it."""

from __future__ import annotations

import os
from argparse import ArgumentTypeError, Namespace

from trainshed.base.errors import EXIT_SUCCESS, TrainshedError, visible
from trainshed.base.units import size

from .parser import Parser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trainshed.data.dataset import Files

_PLACE = "a folder or file; in a job's container the name of a channel, too"
_FORMAT = "how records lie in its files (default: as the names and first bytes tell)"
_LONGEST = 100  # characters of a text that is shown


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.description = (
        "Shows what trainshed.data finds in a channel, checks data as a ready program does before it trains, or measures "
        "how fast it is read (docs/data.md)."
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    show = commands.add_parser("show", help="format, files, samples", usage="trainshed data show PLACE [options]")
    bench = commands.add_parser(
        "bench", help="samples a second, by the number of workers", usage="trainshed data bench PLACE [options]"
    )
    check = commands.add_parser(
        "check",
        help="what a ready program makes of data, without training",
        usage="trainshed data check PROGRAM PATH [--hp K=V ...]",
    )
    check.add_argument("program", metavar="PROGRAM", help="a ready program of `trainshed algorithms`")
    check.add_argument("place", metavar="PATH", help="the training data, or a folder with a folder for each channel")
    check.add_argument(
        "--hyperparameter", "--hp", type=pair, action="append", default=[], metavar="K=V",
        help="a hyperparameter, as the job has it (again for more)",
    )  # fmt: skip
    for one in (show, bench):
        one.add_argument("place", metavar="PLACE", help=_PLACE)
        one.add_argument("--json", action="store_true", help="print JSON")
        one.add_argument("--format", default="", metavar="NAME", help=_FORMAT)
    bench.add_argument("--batch-size", type=_count, default=32, metavar="N", help="samples of a batch (default: 32)")
    bench.add_argument(
        "--workers", type=_counts, default=(0, 1, 2, 4), metavar="N,N", help="numbers of workers to try (default: 0,1,2,4)"
    )
    bench.add_argument("--seconds", type=_seconds, default=5.0, metavar="S", help="for each of them (default: 5)")
    bench.add_argument(
        "--step-seconds", type=_seconds, default=0.0, metavar="S", help="how long the training computes for a batch"
    )


def run(options: Namespace) -> int:
    """Prints; returns the exit status. Raises TrainshedError."""
    if options.command == "check":
        return _check(options)
    files = _files(options.place, options.format)
    if options.command == "show":
        _show_json(files) if options.json else _show(files)
        return EXIT_SUCCESS
    try:
        import torch  # noqa: F401
    except ImportError:
        raise TrainshedError("trainshed data bench needs torch", hint="pip install 'trainshed[torch,data]'") from None
    _bench(files, options)
    return EXIT_SUCCESS


def _check(options: Namespace) -> int:
    from trainshed.algorithms import looking, shelf

    try:
        algorithm = shelf.find(options.program, os.environ)
    except TrainshedError as error:
        raise looking.LookError(error.message, hint=error.hint) from error
    return looking.look(algorithm, options.place, dict(options.hyperparameter), os.environ)


def pair(text: str) -> tuple[str, str]:
    """A hyperparameter of the command line. Raises ArgumentTypeError."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _files(place: str, form: str) -> Files:
    from trainshed.data.api import channel, folder
    from trainshed.data.dataset import Files

    if os.path.exists(place):
        return folder(place, format=form)
    found = channel(place, format=form)
    if not isinstance(found, Files):
        raise TrainshedError(f"{found.name} is in Pipe mode: what is read from it is gone for the job")
    return found


def _show(files: Files) -> None:
    count = len(files)
    print(visible(f"{files.name}: {count:,} samples in {len(files.paths)} {files.format.name} files, {size(files.bytes)}"))
    for path, one in list(zip(files.paths, files.counted, strict=True))[:10]:
        print(visible(f"  {path}  {one.records:,}"))
    if len(files.paths) > 10:
        print(f"  and {len(files.paths) - 10} more")
    if count:
        print(visible(f"the first: {_described(files[0])}"))


def _show_json(files: Files) -> None:
    from trainshed.base.plain_json import as_json

    held = [{"path": path, "samples": one.records} for path, one in zip(files.paths, files.counted, strict=True)]
    told = {"name": files.name, "format": files.format.name, "samples": len(files), "bytes": files.bytes, "files": held}
    print(as_json({**told, "first": _described(files[0]) if len(files) else ""}), end="")


def _bench(files: Files, options: Namespace) -> None:
    from trainshed.data.bench import measure

    each = files.bytes / max(1, len(files))
    if options.json:
        from trainshed.base.plain_json import as_json

        found = [measure(files, options.batch_size, workers, options.seconds) for workers in options.workers]
        rows = [
            {**one.plain(), "rate": one.rate, "bytes_per_second": None if one.rate is None else one.rate * each}
            for one in found
        ]
        print(as_json({"name": files.name, "batch_size": options.batch_size, "rows": rows}), end="")
        return
    what = f"{len(files):,} {files.format.name} samples of {size(each)}, batches of {options.batch_size}"
    print(visible(f"{files.name}: {what}"))
    print("workers   samples/s      MB/s   first batch" + ("   the training waits" if options.step_seconds else ""))
    for workers in options.workers:
        speed = measure(files, options.batch_size, workers, options.seconds)
        rates = f"{'-':>11} {'-':>9}" if speed.rate is None else f"{speed.rate:11,.0f} {speed.rate * each / 1e6:9,.1f}"
        line = f"{workers:7} {rates} {speed.first:11.2f} s"
        if options.step_seconds:
            waits = max(0.0, speed.step - options.step_seconds) if workers else speed.step
            line += f" {100 * waits / (waits + options.step_seconds):10.0f} % of a step"
        print(line, flush=True)


def _described(sample: Any) -> str:
    """A sample on one line: shapes of arrays, lengths of bytes."""
    if isinstance(sample, dict):
        return "{" + ", ".join(f"{key}: {_described(value)}" for key, value in sample.items()) + "}"
    if isinstance(sample, (list, tuple)):
        return "(" + ", ".join(map(_described, sample)) + ")"
    if isinstance(sample, bytes):
        return f"{len(sample):,} bytes"
    if hasattr(sample, "dtype") and hasattr(sample, "shape"):
        return f"{sample.dtype}{list(sample.shape)}"
    text = repr(sample)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1 << 20:
        raise ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def _counts(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) <= 256 for part in parts):
        raise ArgumentTypeError(f"{text!r} is not a list of numbers of workers, such as 0,2,4")
    return tuple(int(part) for part in parts)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e6:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value
