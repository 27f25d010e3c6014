"""What `trainshed verify` costs a script of DDP: CPU seconds of a rank's step, and its memory, beside the script alone.

    python benchmarks/torch_verify.py [--rounds 3]

Both take turns, so that whatever else the machine does meets them alike. Least CPU seconds of a step over all rounds; the
first step, which also looks at all modules, by itself; the largest memory of rank 0; and of the one process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

TOOLKIT = Path(__file__).resolve().parents[1] / "toolkit"
STEPS = 4
SCRIPT = f"""
import json, os, resource, sys, time, torch, torch.distributed as dist, torch.nn as nn, torch.nn.functional as F
dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
rank, world = dist.get_rank(), dist.get_world_size()
layers = [nn.TransformerEncoderLayer(384, 6, 1536, dropout=0.0, batch_first=True) for _ in range(8)]
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Embedding(8000, 384), *layers, nn.Linear(384, 8000)))
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
for step in range({STEPS}):
    began = time.process_time()
    x = torch.randint(8000, (16, 129), generator=torch.Generator().manual_seed(step)).chunk(world)[rank]
    F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
    took, peak = time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if rank == 0:
        print("TOOK", json.dumps([world, step, took, peak]), flush=True)
"""
Row = tuple[int, int, float, float]  # world, step, CPU seconds, MiB


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    environ = {**os.environ, "PYTHONPATH": str(TOOLKIT), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "train.py")
        script.write_text(SCRIPT)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
        verify = [sys.executable, "-m", "trainshed.cli", "verify", str(script), "-n", "2", "--steps", str(STEPS)]
        plain: list[Row] = []
        seen: list[Row] = []
        for _ in range(rounds):
            plain += rows(torchrun, environ)
            seen += rows(verify, environ)
    ranks, alone = [one for one in seen if one[0] == 2], [one for one in seen if one[0] == 1]
    print("| | alone | verified | ratio |\n|---|---|---|---|")
    for what, steps in (("first step, CPU s", {0}), ("later steps, CPU s", set(range(1, STEPS)))):
        a, b = (min(one[2] for one in found if one[1] in steps) for found in (plain, ranks))
        print(f"| {what} | {a:.2f} | {b:.2f} | {b / a:.2f} |")
    a, b = (max(one[3] for one in found if one[1] < STEPS - 1) for found in (plain, ranks))
    print(f"| memory of rank 0, MiB | {a:.0f} | {b:.0f} | {b / a:.2f} |")
    c = max(one[3] for one in alone)
    print(f"| memory of the one process, MiB | | {c:.0f} | {c / a:.2f} |")
    return 0


def rows(command: list[str], environ: dict[str, str]) -> list[Row]:
    """What the script has said of its steps."""
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    found = [line.removeprefix("TOOK ") for line in done.stdout.splitlines() if line.startswith("TOOK ")]
    assert found, done.stderr
    return [tuple(json.loads(line)) for line in found]


if __name__ == "__main__":
    sys.exit(main())
