"""`python -m trainshed.checkpoint COMMAND FOLDER`: lists, verifies, prunes and converts checkpoints.

Only `convert` needs torch.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from trainshed.base.errors import one_line
from trainshed.base.voice import tell

from . import folder as folders
from . import foreign_manifest as sealed
from .manifest import Damaged

USAGE = """\
list FOLDER                 lists checkpoints, newest first, checked by manifests and sizes; includes those of
                            transformers' Trainer and Lightning in jobs with checkpoint=auto
verify FOLDER               reads everything and compares checksums; exit status 1 if a checkpoint is not whole
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
    parser.add_argument("command", choices=("list", "verify", "prune", "convert"))
    parser.add_argument("folder")
    parser.add_argument("file", metavar="TARGET", nargs="?", help="for convert")
    parser.add_argument("--keep-last", type=int, default=0)
    parser.add_argument("--keep-every", type=int, default=0)
    parser.add_argument("--model", default="model", help="for convert, where the checkpoint holds several models")
    parser.add_argument("--shard-gb", type=float, default=5, help="for convert to a folder: most GB in a file (default: 5)")


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
    return _list(path, options.command == "verify")


def _list(path: str, verify: bool) -> int:
    checkpoints, skipped = folders.scan(path)
    rows = {item.path: f"{item.size / 1e6:10.1f} MB  {_age(item.parts[0].created)}" for item in checkpoints}
    rows |= {item.path: f"not whole: {item.why}" for item in skipped}
    wrong = len(skipped)
    for checkpoint in checkpoints if verify else ():
        try:
            folders.verify(checkpoint)
            rows[checkpoint.path] += "  verified"
        except Damaged as error:
            rows[checkpoint.path] = f"not whole: {error}"
            wrong += 1
    for name in os.listdir(path):
        if sealed.CHECKPOINTS.step_of(name) is not None:
            rows[f"{path}/{name}"], bad = _sealed(f"{path}/{name}", verify)
            wrong += bad
    for name in sorted(rows, key=_step, reverse=True):
        print(one_line(f"{os.path.basename(name)}  {rows[name]}"))
    if not rows:
        print(one_line(f"no checkpoints in {path}"))
    return int(verify and wrong > 0)


def _sealed(path: str, verify: bool) -> tuple[str, bool]:
    """The row of a sealed folder that another library has written, and whether the checkpoint is not whole."""
    try:
        manifest = sealed.check(path) if verify else sealed.open_sealed(path)
    except Damaged as error:
        return f"not whole: {error}", True
    return f"{manifest.size / 1e6:10.1f} MB  {_age(manifest.created)}" + "  verified" * verify, False


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
