"""How long an MPI job of three seconds' work takes on two hosts, from the start of `train` to the end of the last one.

    python benchmarks/mpi.py [--repeat 5]

The hosts are two `train` processes on loopback addresses; each runs two ranks of a script that sleeps for three
seconds. The goal is 6 s. sagemaker-training 5.1.4 takes 35 s for the same job, of which it sleeps 30 s after the end.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _claims import claim

WORK, GOAL, PEER = 3.0, 6.0, 35.0
SCRIPT = f"import time\ntime.sleep({WORK})\n"
TOOLKIT = Path(__file__).parents[1] / "toolkit"


def main() -> int:
    """Prints one line a run and the median; fails where a job does."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    alone, jobs = [], []
    for _ in range(repeat):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", SCRIPT], check=True)
        alone.append(time.perf_counter() - start)
        jobs.append(run_job())
        print(f"script alone {alone[-1]:5.2f} s   MPI job on 2 hosts {jobs[-1]:5.2f} s", flush=True)
    job, bare = statistics.median(jobs), statistics.median(alone)
    print(
        f"median: {job:.2f} s, {job - bare:.2f} s more than the script alone; "
        f"{job / GOAL:.2f} of the goal of {GOAL:g} s, {job / PEER:.2f} of sagemaker-training's {PEER:g} s"
    )
    return int(not claim("mpi: a job of 3 s on 2 hosts", job, "s", limit=GOAL))


def run_job() -> float:
    """Seconds of one job."""
    hosts = ["127.0.0.2", "127.0.0.3"]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        for host in hosts:
            base = Path(folder, host)
            (base / "input/config").mkdir(parents=True)
            (base / "code").mkdir()
            (base / "code/train.py").write_text(SCRIPT)
            hyperparameters = {"sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2"}
            (base / "input/config/hyperparameters.json").write_text(json.dumps(hyperparameters))
            resources = {"current_host": host, "hosts": hosts}
            (base / "input/config/resourceconfig.json").write_text(json.dumps(resources))
        start = time.perf_counter()
        running = [
            subprocess.Popen(
                [sys.executable, "-m", "trainshed.container.main"],
                env={
                    **os.environ,
                    "SAGEMAKER_BASE_DIR": f"{folder}/{host}",
                    "PYTHONPATH": str(TOOLKIT),
                    "MASTER_PORT": str(port),
                },
                stderr=subprocess.DEVNULL,
            )
            for host in hosts
        ]
        codes = [process.wait() for process in running]
        seconds = time.perf_counter() - start
    if any(codes):
        raise SystemExit(f"the job failed: {codes}")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
