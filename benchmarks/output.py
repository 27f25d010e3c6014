"""What the output of many ranks costs `train`, and whether all of it arrives: whole lines, in each rank's order.

    python benchmarks/output.py                        # 64 ranks, 10,000 lines a second each, for 5 seconds
    python benchmarks/output.py --ranks 8 --rate 1000 --seconds 2

The ranks print blocks of lines a hundred times a second, as scripts with a buffer do. Every line has its rank and its
number; `train` tags them, writes them to the console (a file here) and to a log a rank. Exit status 1 if a line is lost,
torn or out of its rank's order. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _claims import claim

TOOLKIT = Path(__file__).resolve().parents[1] / "toolkit"
SCRIPT = """\
import os, time
rank, rate, seconds = int(os.environ["RANK"]), int(os.environ["BENCH_RATE"]), float(os.environ["BENCH_SECONDS"])
block, number, start = max(1, rate // 100), 0, time.monotonic()
for turn in range(int(seconds * 100)):
    lines = b"".join(b"bench rank %d line %d loss 0.6931471805599453 end\\n" % (rank, number + n) for n in range(block))
    number += block
    while lines:
        lines = lines[os.write(1, lines):]
    time.sleep(max(0.0, start + (turn + 1) / 100 - time.monotonic()))
"""
LINE = re.compile(rb"\[[^\]\n]*:(\d+)\] bench rank (\d+) line (\d+) loss 0\.6931471805599453 end")


def cpu_seconds(pid: int) -> float:
    """User and system time of one process so far, without its children (proc(5), stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(base: Path, ranks: int, rate: int, seconds: float) -> tuple[float, float]:
    """One job whose console is the file `base`/console; returns CPU seconds of `train` and wall seconds."""
    for folder in ("code", "input/config", "model", "output"):
        (base / folder).mkdir(parents=True)
    (base / "code/train.py").write_text(SCRIPT)
    asked = {"trainshed_distribution": "torchrun", "trainshed_processes_per_host": str(ranks)}
    (base / "input/config/hyperparameters.json").write_text(json.dumps(asked))
    environ = {
        **os.environ,
        "SAGEMAKER_BASE_DIR": str(base),
        "PYTHONPATH": str(TOOLKIT),
        "BENCH_RATE": str(rate),
        "BENCH_SECONDS": str(seconds),
    }
    start, cpu = time.monotonic(), 0.0
    with (base / "console").open("wb") as console, (base / "errors").open("wb") as errors:
        command = [sys.executable, "-m", "trainshed.container.main"]
        process = subprocess.Popen(command, env=environ, stdout=console, stderr=errors)
        while process.poll() is None:
            try:
                cpu = cpu_seconds(process.pid)
            except (OSError, IndexError):
                pass
            time.sleep(0.02)
    wall = time.monotonic() - start
    if process.returncode != 0:
        sys.exit(f"output.py: the job ended with {process.returncode}:\n{(base / 'errors').read_text()[-2000:]}")
    return cpu, wall


def check(base: Path, ranks: int, each: int) -> tuple[int, int, int]:
    """Lines that are missing, torn, and out of order, on the console."""
    nexts, torn, disordered, seen = [0] * ranks, 0, 0, 0
    with (base / "console").open("rb") as console:
        for line in console:
            match = LINE.fullmatch(line.rstrip(b"\n"))
            if match is None or match[1] != match[2]:
                torn += 1
                continue
            rank, number = int(match[2]), int(match[3])
            disordered += number != nexts[rank]
            nexts[rank] = number + 1
            seen += 1
    return ranks * each - seen, torn, disordered


def main() -> int:
    """Runs the job and prints the numbers; 1 if anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--rate", type=int, default=10_000, help="lines a second and rank (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=5.0)
    args = parser.parse_args()
    each = max(1, args.rate // 100) * int(args.seconds * 100)
    with tempfile.TemporaryDirectory(prefix="bench-output-") as folder:
        base = Path(folder) / "ml"
        idle, _ = run(Path(folder) / "idle", args.ranks, args.rate, 0.0)
        cpu, wall = run(base, args.ranks, args.rate, args.seconds)
        lost, torn, disordered = check(base, args.ranks, each)
        logs = sum(path.read_bytes().count(b"\n") for path in (base / "output/data/logs").glob("*.log"))
    lines = args.ranks * each
    print(f"{args.ranks} ranks, {lines:,} lines in {wall:.1f} s: {lines / wall:,.0f} lines a second")
    print(
        f"CPU of train a line: {max(0.0, cpu - idle) / lines * 1e6:.2f} us ({cpu:.2f} s in all, {idle:.2f} s without lines)"
    )
    broken = lost + torn + disordered + lines - logs
    claim("output: lines lost, torn or out of order", broken, "lines", limit=0)
    claim("output: CPU of train a line, 64 ranks", max(0.0, cpu - idle) / lines * 1e6, "us")
    print(f"lost: {lost}, torn: {torn}, out of order: {disordered}; missing in the logs: {lines - logs}")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
