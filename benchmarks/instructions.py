"""User instructions of what every job pays, counted by valgrind: the same on a busy machine as on a quiet one.

    python benchmarks/instructions.py            # beside the last count in results/instructions.json
    python benchmarks/instructions.py --record   # writes that file anew

Three costs: the start of `train` for a job that prints nothing, without its script; a log line with numbers, all
processes together, without the report; a sample of a JSON-lines channel. Counts are kept by the version of Python:
others cannot be compared. `make test-all` fails where one became a tenth dearer.
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
LINES, SAMPLES = 2000, 2000
SCRIPT = """
import sys
sys.stdout.write("".join(f"step {{step}} loss=0.69 accuracy=0.91 of the batch\\n" for step in range({lines})))
"""
TRAIN = "import os; from trainshed.container.main import train; assert train(os.environ) == 0"
READ = """
import sys
from trainshed.data.formats.lines import JsonLines
reader = JsonLines()
with open(sys.argv[1], "rb") as stream:
    assert sum(len(reader.sample(record)) for _, record in reader.split(stream, sys.argv[1])) == 3 * int(sys.argv[2])
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
    start, _ = job(0)
    (_, few), (_, many) = job(LINES), job(3 * LINES)
    a_line = round((many - few) / (2 * LINES))
    few, many = samples(0), samples(SAMPLES)
    return {
        "start of train": start,
        "a log line with numbers": a_line,
        "a sample of JSON lines": round((many - few) / SAMPLES),
    }


def job(lines: int) -> tuple[int, int]:
    """Instructions of `train`, and of all processes, for a job that prints so many lines with numbers."""
    found = []
    for _ in range(2):  # the first run writes the bytecode of what it imports
        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder, "input/config")
            config.mkdir(parents=True)
            Path(folder, "code").mkdir()
            Path(folder, "code/train.py").write_text(SCRIPT.format(lines=lines))
            values = {"sagemaker_program": "train.py", "trainshed_system_metrics": "off"}
            (config / "hyperparameters.json").write_text(json.dumps(values))
            found.append(instructions(["-S", "-c", TRAIN], {"SAGEMAKER_BASE_DIR": folder}))
    return min(found)


def samples(count: int) -> int:
    """Instructions of a process that reads so many JSON lines."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "train.jsonl")
        path.write_text("".join(json.dumps({"id": row, "text": "of the batch", "label": 7}) + "\n" for row in range(count)))
        return min(instructions(["-S", "-c", READ, str(path), str(count)], {})[0] for _ in range(2))


def instructions(words: list[str], environ: dict[str, str]) -> tuple[int, int]:
    """User instructions of Python with these arguments, and those of all processes that it starts, too.

    Raises:
        NoValgrind: it is not installed.
        CalledProcessError: the command failed.
    """
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise NoValgrind("valgrind is not installed: apt-get install valgrind")
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "toolkit"), "PYTHONHASHSEED": "0", **environ}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder:
        tool = [valgrind, "--tool=callgrind", "--trace-children=yes", f"--callgrind-out-file={folder}/%p"]
        subprocess.run([*tool, sys.executable, *words], env=environ, capture_output=True, text=True, check=True)
        totals = {}
        for path in Path(folder).iterdir():
            facts = dict(
                line.split(": ", 1) for line in path.read_text().splitlines() if line.startswith(("cmd:", "summary:"))
            )
            # The report is drawn once; a process that was ended leaves no summary.
            if "summary" in facts and "trainshed.studio.pages" not in facts["cmd"]:
                totals[int(path.name)] = int(facts["summary"].split()[0])
    return totals[min(totals)], sum(totals.values())


if __name__ == "__main__":
    sys.exit(main())
