"""Keeps the device busy for some seconds; says what CPU it used itself, and where it may run."""

from __future__ import annotations

import argparse
import os
import time

import torch
from _device import DEVICE, synchronize, tell


def main() -> None:
    """One job."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--wait", type=int, default=0)
    options = parser.parse_args()
    value = torch.randn(2048 if DEVICE.type == "cuda" else 64, 64, device=DEVICE)
    print("busy", flush=True)
    ends = time.monotonic() + options.seconds
    steps = 0
    while time.monotonic() < ends:
        for _ in range(20):
            value = torch.tanh(value @ (value.T @ value) / 1000)
        synchronize()
        time.sleep(0.02)
        steps += 1
    usage = os.times()
    tell(
        cpu=usage.user + usage.system,
        steps=steps,
        affinity=sorted(os.sched_getaffinity(0)),
        threads=torch.get_num_threads(),
        omp=os.environ.get("OMP_NUM_THREADS", ""),
    )


if __name__ == "__main__":
    main()
