"""Reads much data in a container with little memory, through each input mode, and says what the reading process took.

    python benchmarks/data_memory.py --image trainshed:cpu                  # 20 GB through each mode, 512 MB of memory
    python benchmarks/data_memory.py --image trainshed:cpu --gb 2 --modes FastFile

The channel is 100 names of one file (links; on S3 copies) of recordio-protobuf records of 4 KB, read by
`trainshed.data` with two workers, and shuffled but for the pipe. FastFile needs moto (`pip install 'trainshed[dev]'`),
rclone and /dev/fuse. Printed: what was read, and the largest resident memory of the loop and of a worker; importing
torch alone is the first column.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "toolkit"), str(ROOT / "tests"), str(ROOT / "benchmarks")]

from data import record  # noqa: E402 (found by the line above)

NAMES = 100
MEMORY = "512m"
LOOP = """
import json, resource, time
import torch
def most(who): return resource.getrusage(who).ru_maxrss / 1024
begun = most(resource.RUSAGE_SELF)
from trainshed.data import channel
data = channel("train")
options = {} if data.__class__.__name__ == "Stream" else {"shuffle": True}
start, samples, elements = time.perf_counter(), 0, 0
for batch in data.loader(64, workers=2, **options):
    samples += len(batch["features"])
    elements += batch["features"].numel()
print("READ", json.dumps({"samples": samples, "bytes": elements * 4, "seconds": time.perf_counter() - start, "torch": begun,
    "loop": most(resource.RUSAGE_SELF), "worker": most(resource.RUSAGE_CHILDREN)}), flush=True)
"""


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", required=True, help="an image with trainshed and torch")
    parser.add_argument("--gb", type=float, default=20.0)
    parser.add_argument("--modes", default="File,Pipe,FastFile")
    asked = parser.parse_args()
    print(f"{asked.gb:g} GB, {MEMORY} of memory; MiB resident at most")
    print("mode       samples        GB/s   torch alone   the loop   a worker")
    with tempfile.TemporaryDirectory(prefix="trainshed-memory-") as made:
        folder = Path(made)
        count = max(1, round(asked.gb * 1e9 / NAMES / len(record())))
        (folder / "data").mkdir()
        first = folder / "data" / "000.pbr"
        with first.open("wb") as file:
            for _ in range(count):
                file.write(record())
        for number in range(1, NAMES):
            os.link(first, folder / "data" / f"{number:03d}.pbr")
        (folder / "code").mkdir()  # of its own: the storage lies beside it
        (folder / "code/loop.py").write_text(LOOP)
        for mode in asked.modes.split(","):
            found = run(folder, mode, asked.image)
            wanted = count * NAMES
            rate = found["bytes"] / found["seconds"] / 1e9
            print(
                f"{mode:8}{found['samples']:10,}{rate:12.2f}{found['torch']:14.0f}{found['loop']:11.0f}{found['worker']:11.0f}"
            )
            if found["samples"] != wanted:
                sys.exit(f"{mode}: {found['samples']} samples instead of {wanted}")


def run(folder: Path, mode: str, image: str) -> dict[str, float]:
    """What the loop printed, in a container."""
    with storage(folder) if mode == "FastFile" else nullcontext({}) as environment:
        path = "s3://bucket/train/" if environment else "data"
        (folder / "job.yaml").write_text(
            f"program: loop.py\nsource_dir: code\nimage: {image}\nresources: {{memory: {MEMORY}}}\nchannels:\n"
            f"  train: {{path: '{path}', input_mode: {mode}, content_type: application/x-recordio-protobuf}}\n"
        )
        done = subprocess.run(
            [sys.executable, "-m", "trainshed", "run", "job.yaml"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT / "toolkit"), **environment},
            capture_output=True,
            text=True,
        )
    found = re.search(r"READ (\{.*\})", done.stdout + done.stderr)
    if done.returncode or not found:
        sys.exit(f"{mode}: {(done.stdout + done.stderr)[-3000:]}")
    return json.loads(found[1])


def storage(folder: Path) -> object:
    """A context: the files as objects of an S3 of our own; gives the variables that lead there."""
    import logging
    from contextlib import contextmanager

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # of moto, whose server prints each request otherwise
    from support.own_s3 import BUCKET, client, own_s3

    @contextmanager
    def filled():  # type: ignore[no-untyped-def]
        with own_s3() as environment:
            s3 = client(environment)
            for path in sorted((folder / "data").iterdir()):
                s3.upload_file(str(path), BUCKET, f"train/{path.name}")
            yield environment

    return filled()


if __name__ == "__main__":
    main()
