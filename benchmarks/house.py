"""How large the wings are, and which files a value crosses on its way: the tables of docs/evidence/house.md.

    python benchmarks/house.py                     # this checkout
    python benchmarks/house.py FOLDER              # another one, as `git archive COMMIT | tar -x -C FOLDER` makes it

The walks are those of one job, with a process as its host. A file is on the way of a value when one of its functions is
called with it, in `trainshed run` or in `train`; a return is a step back into a file that was on the way before.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(sys.argv[1] if sys.argv[1:] else Path(__file__).parents[1]).resolve()
PACKAGE = FOLDER / "toolkit/trainshed"
STUDIO = ("catalog", "lineage", "models", "pages", "rules", "steps", "studio", "tracking", "tune", "ui")  # also as they were
WALKS = {"a hyperparameter": "0.77177", "a channel": "zebra", "a metric line": "0.31313"}
JOB = {"program": "train.py", "hyperparameters": {"lr": 0.77177}, "channels": {"zebra": "data"}}
SCRIPT = 'import os, sys\nprint("metric loss=0.31313", os.environ["SM_CHANNEL_ZEBRA"], sys.argv, flush=True)\n'
# Runs a command in this process; writes the files that each value crosses, in their order.
TRACED = """
import json, os, reprlib, sys, threading
walks, out, package = json.loads(os.environ["WALKS"]), os.environ["WALKS_OUT"], os.environ["WALKS_PACKAGE"]
crossed = {name: [] for name in walks}
short = reprlib.Repr()
short.maxlevel = short.maxdict = short.maxlist = short.maxtuple = short.maxset = 40
short.maxstring = short.maxother = 20_000
def trace(frame, event, _):
    code = frame.f_code
    if event != "call" or not code.co_filename.startswith(package):
        return
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    try:
        told = " ".join(short.repr(frame.f_locals.get(name)) for name in names)
    except Exception:
        return
    for walk, value in walks.items():
        if value in told and crossed[walk][-1:] != [code.co_filename]:
            crossed[walk].append(code.co_filename)
threading.setprofile(trace)
sys.setprofile(trace)
try:
    exec(os.environ["WALKS_CODE"])
finally:
    sys.setprofile(None)
    json.dump(crossed, open(out, "w"))
"""


def lines_of(paths: list[Path]) -> str:
    """Files and lines of Python."""
    return f"{len(paths)} files, {sum(path.read_bytes().count(10) for path in paths):,} lines"


def wing_of(path: Path) -> str:
    """The wing of a file of the toolkit, by where it is now."""
    first, *more = path.relative_to(PACKAGE).parts
    if first == "places" or (first == "runner" and more[0] == "places"):
        return "places"
    return (
        "studio" if first in STUDIO else first if first in ("cli", "compat", "compiler", "parallel", "runner") else "ground"
    )


def sizes() -> dict[str, str]:
    """Files and lines of each wing."""
    wings: dict[str, list[Path]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        wings.setdefault(wing_of(path), []).append(path)
    return {name: lines_of(paths) for name, paths in sorted(wings.items())}


def words() -> dict[str, int]:
    """Words of the pages, those that are written by the code apart."""
    counts = {"pages": 0, "tables in pages that the code writes": 0, "generated reference": 0, "CHANGELOG.md": 0}
    for path in sorted(FOLDER.rglob("*.md")):
        if not {".venv", "build", ".git"} & set(path.relative_to(FOLDER).parts):
            text = path.read_text()
            made = "docs/reference/" in str(path) and "<!-- table:" in text
            kind = "generated reference" if made else path.name if path.name in counts else "pages"
            counts[kind] += len(text.split())
            if kind == "pages":
                tables = re.findall(r"<!-- table: .*?<!-- end of table -->", text, re.DOTALL)
                counts["tables in pages that the code writes"] += sum(len(one.split()) for one in tables)
    return counts


def first_screen() -> str:
    """What `trainshed --help` shows."""
    environ = {**os.environ, "PYTHONPATH": str(FOLDER / "toolkit"), "COLUMNS": "80"}
    command = [sys.executable, "-m", "trainshed", "--help"]
    said = subprocess.run(command, env=environ, capture_output=True, text=True, cwd="/").stdout
    singles = said.partition("\nfamilies")[0]
    found = re.findall(
        r"^(?:  |run        |look       |repeat     |look after | {11})([a-z][a-z-]*) ", singles, re.MULTILINE
    )
    return f"{len(said.splitlines())} lines, {len(found)} commands"


def walked(code: str, folder: Path, environ: dict[str, str]) -> dict[str, list[str]]:
    """The files that each value crosses while the code runs."""
    out = folder / "walks.json"
    told = {"WALKS": json.dumps(WALKS), "WALKS_OUT": str(out), "WALKS_PACKAGE": str(PACKAGE), "WALKS_CODE": code}
    command = [sys.executable, "-c", TRACED]
    done = subprocess.run(command, env={**environ, **told}, cwd=folder, capture_output=True, text=True)
    if not out.exists():
        raise SystemExit(done.stderr)
    found: dict[str, list[str]] = json.loads(out.read_text())
    return found


def counted(files: list[str]) -> str:
    """How many files, and how many steps back into one of them."""
    seen: set[str] = set()
    returns = 0
    for file in files:
        returns += file in seen
        seen.add(file)
    return f"{len(seen)} files, {returns} returns"


def walks() -> dict[str, str]:
    """The walk of each value, in the runner and in `train`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "data").mkdir()
        (folder / "data/a.txt").write_text("a")
        (folder / "train.py").write_text(SCRIPT)
        (folder / "job.yaml").write_text(json.dumps(JOB))
        environ = {**os.environ, "PYTHONPATH": str(FOLDER / "toolkit"), "XDG_STATE_HOME": f"{folder}/state"}
        ran = "from trainshed.cli import main; main(['run', 'job.yaml', '--name', 'walk', '--output', 'out'])"
        runner = walked(ran, folder, environ)
        base = folder / "out/algo-1"
        trained = "from trainshed.container.main import train; train(os.environ)"
        train = walked(trained, folder, {**environ, "SAGEMAKER_BASE_DIR": str(base)})
    return {walk: f"run: {counted(runner[walk])}; train: {counted(train[walk])}" for walk in WALKS}


if __name__ == "__main__":
    tests = sorted((FOLDER / "tests").rglob("*.py"))
    for title, found in (
        ("wings", {**sizes(), "all": lines_of(sorted(PACKAGE.rglob("*.py"))), "tests": lines_of(tests)}),
        ("words", {name: f"{count:,}" for name, count in words().items()}),
        ("first screen", {"trainshed --help": first_screen()}),
        ("walks", walks()),
    ):
        print(title, *(f"  {name:22} {value}" for name, value in found.items()), sep="\n")
