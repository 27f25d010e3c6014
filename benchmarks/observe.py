"""What it costs to see a training: the search of its log for metrics, and the samples of its machine.

    python benchmarks/observe.py                        # 200,000 lines, eight definitions; a job of 30 s
    python benchmarks/observe.py --only log --lines 20000
    python benchmarks/observe.py --only write
    python benchmarks/observe.py --only sampler --seconds 10
    python benchmarks/observe.py --only steps
    python benchmarks/observe.py --only peers           # installs traceml-ai and smdebug into environments of their own

log: two logs, one whose every tenth line is the Trainer's (`{'loss': ...}`), and one whose every line looks like a metric
and is one. CPU microseconds a line beside a bare loop over the same regular expressions; the log itself never waits for it.

write: CPU microseconds of `metrics.log` with one value and with four, beside one JSON line that is flushed.

sampler: a job of nine processes that sleep. CPU time of the sampler's process in per cent of a core, and the memory that it
shares with nobody. Beside it, a process that takes the same numbers with psutil.

steps: what the marks of `profile: auto` cost a step of one batch: torch's functions that are marked, called on a
loader and a model so small that little else takes time, with marks and without, in two processes.

peers: the same loop under `train`, traceml-ai and smdebug (`_observe_peers.py`); not part of a run without --only.
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
from collections.abc import Callable
from pathlib import Path

from _claims import claim

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "toolkit"))

from trainshed import metrics
from trainshed.contract.wire import variables
from trainshed.contract.wire.step_profile import StepProfile
from trainshed.metrics.scraper import Scraper
from trainshed.metrics.writing import FOLDER_VARIABLE

TOOLKIT = Path(__file__).resolve().parents[1] / "toolkit"
NAMES = ("loss", "grad_norm", "learning_rate", "epoch", "eval_loss", "eval_accuracy", "eval_runtime", "train_loss")
DEFINITIONS = [(name, rf"'{name}': '?([-+0-9.eE]+)") for name in NAMES]
OTHER = b"2026-11-22 10:00:00,123 INFO data.loader worker 3: shard 0042 of 0100 opened, 1289 records, cached\n"
TRAINER = b"{'loss': '0.6931', 'grad_norm': '3.25', 'learning_rate': '4.9375e-05', 'epoch': '0.5'}\n"
PAIRS = b"step 10: loss=0.6931 lr=4.9375e-05 tokens_per_second=12345\n"
BLOCK = 1000  # lines


def seconds_of(work: Callable[[], None]) -> float:
    """CPU seconds of this process, the best of three."""
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def bare(block: bytes, blocks: int) -> None:
    """The least that any search must do: every expression on every line."""
    patterns = [re.compile(regex) for _, regex in DEFINITIONS]
    for _ in range(blocks):
        for line in block.decode().splitlines():
            for pattern in patterns:
                pattern.search(line)


def log(lines: int) -> None:
    """Prints the table of the log."""
    blocks = max(1, lines // BLOCK)
    logs = {"every tenth line is a metric": (OTHER * 9 + TRAINER) * (BLOCK // 10), "every line is a metric": PAIRS * BLOCK}
    print("| log | bare loop, us a line | definitions and formats | formats alone | ratio to the bare loop |")
    print("|---|---|---|---|---|")
    for name, block in logs.items():

        def search(definitions: list[tuple[str, str]], block: bytes = block) -> None:
            scraper = Scraper(definitions)
            for _ in range(blocks):
                scraper.text(block, 0.0, rank=0)

        times = [seconds_of(lambda block=block: bare(block, blocks))]
        times += [seconds_of(lambda given=given, search=search: search(given)) for given in (DEFINITIONS, [])]
        cells = " | ".join(f"{1e6 * seconds / blocks / BLOCK:.2f}" for seconds in times)
        print(f"| {name} | {cells} | {times[1] / times[0]:.1f} |")
        a_line = [1e6 * seconds / blocks / BLOCK for seconds in times]
        claim(f"metrics: searching a line, {name}", a_line[1], "us", limit=3.0, peer=a_line[0], peer_name="bare loop")


def write(calls: int) -> None:
    """Prints the table of `metrics.log`."""
    print("| us of CPU a call | one value | four values |")
    print("|---|---|---|")
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/plain", "a") as file:
        os.environ[FOLDER_VARIABLE] = folder
        measured: dict[str, list[float]] = {}
        given = [{"loss": 0.1}, {"loss": 0.1, "lr": 5e-05, "accuracy": 0.5, "grad_norm": 1.25}]

        def lines(values: dict[str, float]) -> None:
            for step in range(calls):
                file.write(json.dumps({**values, "step": step / 7, "time": time.time()}) + "\n")
                file.flush()

        def logged(values: dict[str, float]) -> None:
            for step in range(calls):
                metrics.log(values, step=step)

        for name, work in (("`metrics.log`", logged), ("a JSON line, flushed", lines)):
            times = [1e6 * seconds_of(lambda values=values, work=work: work(values)) / calls for values in given]
            print(f"| {name} | {times[0]:.1f} | {times[1]:.1f} |")
            measured[name] = times
        for place, (what, limit) in enumerate((("one value", 8.0), ("four values", 12.0))):
            hand, ours = measured["a JSON line, flushed"][place], measured["`metrics.log`"][place]
            claim(f"metrics.log of {what}", ours, "us", limit=limit, peer=hand, peer_name="a JSON line, flushed")
        del os.environ[FOLDER_VARIABLE]


PSUTIL = """
import sys, time, psutil
processes = [psutil.Process(int(pid)) for pid in sys.argv[1:]]
while True:
    psutil.cpu_times(percpu=True), psutil.virtual_memory(), psutil.disk_io_counters(True), psutil.net_io_counters(True)
    for process in processes:
        with process.oneshot():
            process.cpu_times(), process.memory_info()
    time.sleep(0.5)
"""


def cost_of(pid: int, seconds: float) -> tuple[float, float]:
    """(per cent of a core, MiB that are its own) of a process, from now on for so many seconds."""

    def nanoseconds() -> int:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])

    start, before = time.monotonic(), nanoseconds()
    time.sleep(seconds)
    spent = (nanoseconds() - before) / 1e9 / (time.monotonic() - start)
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 100 * spent, sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def sampler(seconds: float) -> None:
    """Prints the table of the sampler."""
    print("| every half second | CPU, % of a core | memory of its own, MiB | bytes a sample |")
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory() as base:
        config = Path(base, "input/config")
        config.mkdir(parents=True)
        Path(base, "code").mkdir()
        Path(base, "code/train.sh").write_text("for i in 1 2 3 4 5 6 7 8; do sleep 3600 & done; wait\n")
        (config / "hyperparameters.json").write_text(json.dumps({"sagemaker_program": "train.sh"}))
        command = [sys.executable, "-m", "trainshed.container.main"]
        environ = os.environ | {"SAGEMAKER_BASE_DIR": base, "PYTHONPATH": str(TOOLKIT)}
        train = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            pid = 0
            while not pid:
                time.sleep(0.1)
                found = subprocess.run(
                    ["pgrep", "-x", "train-sampler", "-P", str(train.pid)], capture_output=True, text=True
                )
                pid = int(found.stdout.split()[0]) if found.stdout else 0
            time.sleep(2)
            cpu, memory = cost_of(pid, seconds)
            texts = [path.read_bytes() for path in Path(base, "output/profiler").rglob("*.json")]
            samples = {line.rpartition(b" ")[2] for text in texts for line in text.splitlines()}
            size = sum(map(len, texts)) / len(samples)
            print(f"| `train`'s sampler | {cpu:.3f} | {memory:.1f} | {size:.0f} |")
            own = cpu
            shell = subprocess.run(["pgrep", "-P", str(train.pid)], capture_output=True, text=True).stdout.split()
            below = subprocess.run(["pgrep", "-P", ",".join(shell)], capture_output=True, text=True).stdout.split()
            pids = [*(one for one in shell if int(one) != pid), *below]
            other = subprocess.Popen([sys.executable, "-I", "-c", PSUTIL, *pids])
            try:
                time.sleep(2)
                cpu, memory = cost_of(other.pid, seconds)
            finally:
                other.kill()
                other.wait()
            print(f"| a process with psutil | {cpu:.3f} | {memory:.1f} | none are written |")
            claim("profiler: the sampler", own, "% of a core", limit=0.5, peer=cpu, peer_name="psutil")
        finally:
            train.terminate()
            train.wait()


STEPS = """
import sys, time, torch
loader = torch.utils.data.DataLoader(list(range(int(sys.argv[1]))))
weight = torch.ones(1, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.0)
best = float("inf")
for _ in range(5):
    start = time.process_time()
    for batch in loader:
        (weight * batch).sum().backward()
        optimizer.step()
    best = min(best, time.process_time() - start)
print(best / int(sys.argv[1]))
"""
STEP_SECONDS = 0.02


def steps(count: int) -> None:
    """Prints the table of the marks."""
    print("| marks | CPU us a step | added, % of a step of 20 ms |")
    print("|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        profile = StepProfile(folder, "algo-1", 1, 1).to_text()
        path = {"PYTHONPATH": f"{TOOLKIT}/trainshed/autopatch/startup:{TOOLKIT}", "OMP_NUM_THREADS": "1"}
        seconds = []
        for more in ({}, {variables.AUTOPATCH: "steps", variables.STEP_PROFILE: profile}):
            command = [sys.executable, "-c", STEPS, str(count)]
            done = subprocess.run(command, env=os.environ | path | more, capture_output=True, text=True, check=True)
            seconds.append(float(done.stdout))
        added = seconds[1] - seconds[0]
        claim("profiler: marks of a step of 20 ms", 100 * added / STEP_SECONDS, "%", limit=1.0)
        print(f"| without | {1e6 * seconds[0]:.1f} | |")
        print(f"| `profile: auto` | {1e6 * seconds[1]:.1f} | {100 * added / STEP_SECONDS:.2f} |")


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("log", "write", "sampler", "steps", "peers"), help="one table alone")
    parser.add_argument("--lines", type=int, default=200_000)
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    if options.only in (None, "log"):
        log(options.lines)
    if options.only in (None, "write"):
        write(20_000)
    if options.only in (None, "sampler"):
        sampler(options.seconds)
    if options.only in (None, "steps"):
        steps(2000)
    if options.only == "peers":
        from _observe_peers import peers

        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        peers(200, Path(cache, "trainshed-bench"))


if __name__ == "__main__":
    main()
