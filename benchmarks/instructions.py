"""User instructions of what every job pays, counted by valgrind: the same on a busy machine as on a quiet one.

    python benchmarks/instructions.py            # beside the last count in results/instructions.json
    python benchmarks/instructions.py --record   # writes that file anew

Four costs, each of one process: the start of `train` for a job that prints nothing; a log line with numbers on its way
to the console and the log file; the search of such a line for metrics; a sample of a JSON-lines channel. Counts are kept
by the version of Python: others cannot be compared. `make test-all` fails where one became a tenth dearer.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from _claims import claim

ROOT = Path(__file__).resolve().parents[1]
RECORDED = Path(__file__).with_name("results") / "instructions.json"
DEARER = 1.10  # of the last count
LINES = 2000
JSON_LINE = '{"step": {row}, "text": "of the batch, loss=0.69 accuracy=0.91", "label": 7}'
TRAIN = "import os, sys; from trainshed.container.main import train; assert train(os.environ) == 0; print(*sys.modules)"
# From a file, not from a pipe: how many lines a pipe holds when it is read depends on what else runs.
PASS_ON = """
import os, sys
from trainshed.machine.streams import Console, LogFile, RankPipe
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
console = Console(1)
stream = RankPipe(os.open(sys.argv[1], os.O_RDONLY), console, LogFile(sys.argv[1] + ".log"), "")
while stream.read(0.0):
    console.flush(True)
"""
SEARCH = """
import sys
from trainshed.metrics.scraper import Scraper
with open(sys.argv[1], "rb") as lines:
    Scraper([]).text(lines.read(), 0.0, rank=0)
"""
READ = """
import sys
from trainshed.data.formats.lines import JsonLines
reader = JsonLines()
with open(sys.argv[1], "rb") as stream:
    assert all(len(reader.sample(record)) == 3 for _, record in reader.split(stream, sys.argv[1]))
"""


class NoValgrind(Exception):
    """valgrind is not installed."""


def main() -> int:
    """Prints the counts beside the last ones; 1 where one became a tenth dearer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write results/instructions.json anew")
    record = parser.parse_args().record
    try:
        found = counts()
    except NoValgrind as error:
        print(error, file=sys.stderr)
        return 2
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    before = {} if record else recorded.get(version(), {})
    kept = [
        claim(f"instructions: {name}", value, "instructions", times=DEARER, peer=before.get(name), peer_name="last count")
        for name, value in found.items()
    ]
    if record:
        RECORDED.write_text(json.dumps(recorded | {version(): found}, indent=2) + "\n")
    return int(not all(kept))


def version() -> str:
    """Counts of one Python can be compared with its own alone."""
    return f"Python {platform.python_version()}, {platform.machine()}"


def counts() -> dict[str, int]:
    """Each cost, in instructions. Raises NoValgrind."""
    return {
        "start of train": job(),
        "a log line passed on": of_one(PASS_ON, "step {row} loss=0.69 accuracy=0.91 of the batch"),
        "a log line searched": of_one(SEARCH),
        "a sample of JSON lines": of_one(READ),
    }


def job() -> int:
    """Instructions of `train` for a job whose script does nothing."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "input/config")
        config.mkdir(parents=True)
        Path(folder, "code").mkdir()
        Path(folder, "code/train.py").touch()
        values = {"sagemaker_program": "train.py", "trainshed_system_metrics": "off", "trainshed_metrics": "off"}
        (config / "hyperparameters.json").write_text(json.dumps(values))
        return instructions(["-S", "-c", TRAIN], {"SAGEMAKER_BASE_DIR": folder})


def of_one(script: str, line: str = JSON_LINE) -> int:
    """Instructions of what a script does to each line of a file, of which it gets the path."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for count in (LINES, 2 * LINES):
            path = Path(folder, f"{count}.jsonl")
            path.write_text("".join(line.replace("{row}", str(row)) + "\n" for row in range(count)))
            found.append(instructions(["-S", "-c", script, str(path)], {}))
    return round((found[1] - found[0]) / LINES)


def instructions(words: list[str], environ: dict[str, str]) -> int:
    """User instructions of Python with these arguments, the least of two runs: the first one writes bytecode.

    Raises:
        NoValgrind: it is not installed.
        CalledProcessError: the command failed.
    """
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise NoValgrind("valgrind is not installed: apt-get install valgrind")
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "toolkit"), "PYTHONHASHSEED": "0", **environ}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    found = {}
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            # A file for each process: those that `train` forks write theirs whenever they end.
            tool = [valgrind, "-q", "--tool=callgrind", "--trace-children=no", f"--callgrind-out-file={folder}/%p"]
            output = Path(folder, "output")
            with output.open("wb") as file:
                process = subprocess.Popen([*tool, sys.executable, *words], env=environ, stdout=file, stderr=file)
            if process.wait():
                raise subprocess.CalledProcessError(process.returncode, words, output.read_text())
            each = {path.name: _summary(path) for path in Path(folder).iterdir() if path.name.isdecimal()}
            found[each[str(process.pid)]] = f"{output.read_text()}{each}"
    # Where a count is dearer this tells why: the messages, and for `train` the modules that it has loaded.
    print(f"counts {[*found]}; the least: {found[min(found)]}", file=sys.stderr)
    return min(found)


def _summary(path: Path) -> int:
    """The instructions of one process; 0 for one that was killed before it wrote its count."""
    return next((int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith("summary:")), 0)


if __name__ == "__main__":
    sys.exit(main())
