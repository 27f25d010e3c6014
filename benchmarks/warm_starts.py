"""What forked ranks save: the first start of several ranks with torch, and the way from SIGKILL of a rank to its next step.

    python benchmarks/warm_starts.py [--ranks 8] [--rounds 1] [--in-place]

Each round runs one job plainly and with `trainshed_warm_start=auto`, in turns: ranks that import torch, meet by gloo, take a
step of DistributedDataParallel by hand and end: at once after that step, as programs of Python end, and after a restart,
since rank 0 has killed itself. Printed are the CPU seconds of `train` with all that it started, the seconds to the first
step and from the kill to the next step, and the proportional share of memory (PSS) of a rank at its step. `--in-place`
measures the way from the kill alone: a warm restart of all ranks beside `trainshed.resumable`, where the others live on.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = """\
import torch
import torch.distributed as dist
import trainshed
import os, signal, time

def train():
    dist.init_process_group("gloo")
    layer = torch.nn.Linear(8, 8)
    layer(torch.randn(2, 8)).sum().backward()
    for parameter in layer.parameters():
        dist.all_reduce(parameter.grad)
    with open("/proc/self/smaps_rollup") as file:
        share = next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    dist.barrier()
    if dist.get_rank() == 0:
        print("step", time.time(), share, flush=True)
        if os.environ["BENCH_KILL"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            print("kill", time.time(), 0, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    if os.environ["BENCH_END"] == "0":  # without what Python does at its end, which is no part of a start
        os._exit(0)
    dist.destroy_process_group()

(trainshed.resumable(train) if os.environ["BENCH_IN_PLACE"] == "1" else train)()
"""
Numbers = dict[str, float]


def run(how: str, ranks: int, kill: bool, end: bool, in_place: bool = False) -> Numbers:
    """One job: CPU seconds, seconds to the first step, from the kill to the next one, MiB of a rank."""
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        (base / "input/config").mkdir(parents=True)
        (base / "code").mkdir()
        (base / "code/train.py").write_text(SCRIPT)
        given = {"distribution": "torchrun", "processes_per_host": ranks, "warm_start": how, "max_restarts": 1}
        settings = {f"trainshed_{name}": str(value) for name, value in given.items()}
        (base / "input/config/hyperparameters.json").write_text(json.dumps({"sagemaker_program": "train.py", **settings}))
        environ = {
            **{name: os.environ[name] for name in ("PATH", "HOME")},
            **{
                "SAGEMAKER_BASE_DIR": folder,
                "PYTHONPATH": str(ROOT / "toolkit"),
                "BENCH_KILL": str(int(kill)),
                "BENCH_END": str(int(end)),
                "BENCH_IN_PLACE": str(int(in_place)),
            },
        }
        before, began = cpu(), time.time()
        command = [sys.executable, "-m", "trainshed.container.main"]
        done = subprocess.run(command, env=environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        marks = [line.split()[-3:] for line in done.stdout.splitlines() if " step " in line or " kill " in line]
        times = [float(at) for _, at, _ in marks]
        (record,) = (base / "output/data/run").glob("*.json")
        told = json.loads(record.read_text())
        starts = told.get("starts", [])
        assert all(one["plain"] == 0 for one in starts), starts
        assert all(("in place" in one["reason"]) == in_place for one in told.get("restarts", [])), done.stdout + done.stderr
        return {
            "cpu": cpu() - before,
            "first step": times[0] - began,
            "after the kill": times[2] - times[1] if kill else 0.0,
            "MiB of a rank": int(marks[0][2]) / 1024,
        }


def cpu() -> float:
    """CPU seconds of all processes that have been waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--in-place", action="store_true")
    options = parser.parse_args()
    if options.in_place:
        pairs = [
            [run("auto", options.ranks, True, True, one)["after the kill"] for one in (False, True)]
            for _ in range(options.rounds)
        ]
        warm, alone = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(f"{options.ranks} ranks, rank 0 killed")
        print(f"    after the kill   all {warm:8.2f}   one {alone:8.2f}   ratio {alone / warm:.2f}")
        return
    for what, kill, end in (
        ("to their first step", False, False),
        ("to their end", False, True),
        ("rank 0 killed", True, True),
    ):
        rounds = [{how: run(how, options.ranks, kill, end) for how in ("off", "auto")} for _ in range(options.rounds)]
        print(f"{options.ranks} ranks, {what}")
        for name in rounds[0]["off"]:
            plain, warm = (statistics.median(one[how][name] for one in rounds) for how in ("off", "auto"))
            if plain:
                print(f"    {name:<16} plain {plain:8.2f}   warm {warm:8.2f}   ratio {warm / plain:.2f}")


if __name__ == "__main__":
    main()
