"""`python -m trainshed.checkpoint COMMAND FOLDER`: lists, verifies, prunes and converts checkpoints.

Only `convert` needs torch.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from trainshed.base.errors import one_line
from trainshed.base.plain_json import as_json
from trainshed.base.record import Record
from trainshed.base.voice import tell

from . import folder as folders
from . import foreign_manifest as sealed
from .manifest import Damaged

USAGE = """\
list FOLDER                 lists checkpoints, newest first, checked by manifests and sizes; includes those of
                            transformers' Trainer and Lightning in jobs with checkpoint=auto
verify FOLDER               reads everything and compares checksums; exit status 1 if one is not whole, or there is none
prune FOLDER --keep-last N  deletes all but the newest N whole ones (and, with --keep-every K, multiples of K)
convert CHECKPOINT TARGET   writes the model's weights to one safetensors file; to a folder (TARGET/) in files of
                            --shard-gb each, with the index that transformers' from_pretrained reads
"""


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m trainshed.checkpoint")
    add_arguments(parser)
    return run(parser.parse_args(argv))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line, also of `trainshed checkpoints`."""
    parser.description = USAGE
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("command", choices=("list", "verify", "prune", "convert"), help="what to do")
    parser.add_argument("folder", metavar="FOLDER", help="of checkpoints; for convert one checkpoint")
    parser.add_argument("file", metavar="TARGET", nargs="?", help="for convert")
    parser.add_argument("--json", action="store_true", help="list, verify: print JSON")
    parser.add_argument("--keep-last", type=int, default=0, metavar="N", help="prune: how many whole ones stay")
    parser.add_argument(
        "--keep-every", type=int, default=0, metavar="K", help="prune: those of multiples of this many steps stay, too"
    )
    parser.add_argument(
        "--model", default="model", metavar="NAME", help="for convert, where the checkpoint holds several models"
    )
    parser.add_argument(
        "--shard-gb", type=float, default=5, metavar="GB", help="for convert to a folder: most GB in a file (default: 5)"
    )


def run(options: argparse.Namespace) -> int:
    """Runs one command; returns its exit status."""
    path = os.path.abspath(options.folder)
    if not os.path.isdir(path):
        return _fail(f"there is no folder {path}")
    if options.command == "prune":
        if options.keep_last < 1:
            return _fail("prune needs --keep-last of at least 1")
        gone = folders.prune(path, keep_last=options.keep_last, keep_every=options.keep_every)
        print(f"deleted {len(gone)}: {', '.join(map(folders.STEPS.name_of, gone))}" if gone else "nothing to delete")
        return 0
    if options.command == "convert":
        if not options.file:
            return _fail("convert needs the file or folder to write")
        if options.shard_gb <= 0:
            return _fail("--shard-gb must be more than 0")
        return _convert(path, options.file, options.model, int(options.shard_gb * 1e9))
    return _list(path, options.command == "verify", options.json)


class Row(Record):
    """A checkpoint in a folder. problem: why it is not whole, "" where it is. created: seconds since the epoch."""

    path: str
    size: int = 0
    created: float = 0.0
    problem: str = ""
    verified: bool = False

    def line(self) -> str:
        """The row for a person."""
        told = f"{self.size / 1e6:10.1f} MB  {_age(self.created)}" + "  verified" * self.verified
        return f"{os.path.basename(self.path)}  {f'not whole: {self.problem}' if self.problem else told}"

    def facts(self) -> dict[str, object]:
        """The row for a program."""
        told = {"name": os.path.basename(self.path), "path": self.path, "step": _step(self.path), "bytes": self.size}
        return {
            **told,
            "created": self.created,
            "whole": not self.problem,
            "verified": self.verified,
            "problem": self.problem,
        }


def _list(path: str, verify: bool, json: bool) -> int:
    checkpoints, skipped = folders.scan(path)
    rows = [Row(item.path, problem=item.why) for item in skipped]
    rows += [_row(item, verify) for item in checkpoints]
    rows += [_sealed(f"{path}/{name}", verify) for name in os.listdir(path) if sealed.CHECKPOINTS.step_of(name) is not None]
    rows.sort(key=lambda row: _step(row.path), reverse=True)
    if json:
        print(as_json([row.facts() for row in rows]), end="")
    for row in rows if not json else ():
        print(one_line(row.line()))
    if not rows and not json:
        print(one_line(f"no checkpoints in {path}"))
    return int(verify and (not rows or any(row.problem for row in rows)))


def _row(found: folders.Found, verify: bool) -> Row:
    row = Row(found.path, found.size, found.parts[0].created, verified=verify)
    try:
        if verify:
            folders.verify(found)
    except Damaged as error:
        return row.replace(problem=str(error), verified=False)
    return row


def _sealed(path: str, verify: bool) -> Row:
    """The row of a sealed folder that another library has written."""
    try:
        manifest = sealed.check(path) if verify else sealed.open_sealed(path)
    except Damaged as error:
        return Row(path, problem=str(error))
    return Row(path, manifest.size, manifest.created, verified=verify)


def _convert(path: str, file: str, model: str, shard_bytes: int) -> int:
    from .export import export_weights

    try:
        size = export_weights(path, file, model, shard_bytes=shard_bytes)
    except (Damaged, ValueError, OSError) as error:
        return _fail(f"{path}: {error}")
    print(one_line(f"{file}: {size / 1e6:.1f} MB"))
    return 0


def _step(path: str) -> int:
    return int(path.rpartition("-")[2])


def _age(created: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(created))


def _fail(message: str) -> int:
    tell(message)
    return 2


if __name__ == "__main__":
    sys.exit(main())
