"""Trains a model that is larger than a rank may have memory: the peak of each rank, by number of ranks and way to build it.

    python benchmarks/larger_model.py [--ranks 1 2 4] [--limit-mib 2048] [--parameters 368] [--out FILE]

The model is a stack of decoder layers (width 768). With AdamW in float32 a parameter takes 16 bytes: its value, its gradient
and two states. Each rank is a process in a memory cgroup of its own (Linux, version 1 or 2, as root) with the limit; a rank
that needs more is killed by the kernel, and the row says so. The peak is what the kernel counts as memory of its own (no
cached files: those it drops where memory is scarce), looked at twenty times a second. A case trains three steps, saves a
checkpoint and the weights as safetensors; a second start resumes and trains two more.

    whole       each rank builds the whole model, as without the block
    delayed     `pipe.delayed_initialization()`

With stages on half as many ranks, built without values. The other half are

    tensor      of tensor groups: two ranks divide the modules of each stage (`tensor_parallel_degree`)

or a second replica:

    replicas    each has everything
    states      optimizer states are shared out (`shard_optimizer_state`)
    sharded     parameters, gradients and states are (`sharded_data_parallel_degree`)
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TOOLKIT = Path(__file__).resolve().parents[1] / "toolkit"
V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
WIDTH, TOKENS, BATCH, WORDS = 768, 32, 4, 1024
HALVED: dict[str, dict[str, object]] = {
    "tensor": {"tensor_parallel_degree": 2, "prescaled_batch": True},
    "replicas": {},
    "states": {"shard_optimizer_state": True},
    "sharded": {"sharded_data_parallel_degree": 2},
}
TIMEOUT_S = 1800


def rank_process(way: str, parameters: int, folder: str, steps: int) -> None:
    """One rank: trains on from the checkpoint in `folder`, if there is one; prints what rank 0 sees as JSON lines."""
    import torch
    import torch.nn.functional as F
    from _decoder import Block
    from torch import nn

    import trainshed.parallel as pipe

    torch.set_num_threads(1)

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(WORDS, WIDTH)
            self.blocks = nn.ModuleList(Block(WIDTH, heads=12) for _ in range(round(parameters * 1e6 / (12 * WIDTH**2))))
            self.head = nn.Linear(WIDTH, WORDS, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.words(x)
            for block in self.blocks:
                h = block(h)
            return self.head(h)

    world = int(os.environ["WORLD_SIZE"])
    stages = world // 2 if way in HALVED else world

    def at(phase: str) -> None:
        (Path(folder) / f"at-{os.environ['RANK']}").write_text(phase)

    at("building")
    settings = {"pipeline_parallel_degree": stages, "microbatches": BATCH, "memory_weight": 1.0}
    pipe.init({**settings, **HALVED.get(way, {})})
    torch.manual_seed(0)
    with pipe.delayed_initialization(way != "whole"):
        module = Decoder()
    if pipe.rank() == 0:
        print(json.dumps({"parameters": sum(one.numel() for one in module.parameters())}), flush=True)
    model = pipe.PipelineModel(module)
    optimizer = pipe.PipelineOptimizer(torch.optim.AdamW(model.parameters(), lr=1e-4))
    checkpoints = Path(folder)
    first = 0
    if (checkpoints / "last").exists():
        at("loading")
        first = pipe.load_checkpoint(str(checkpoints / "last"), model, optimizer)

    @pipe.step
    def step(model, x):  # type: ignore[no-untyped-def]
        loss = F.cross_entropy(model(x).flatten(0, 1), x.flatten())
        model.backward(loss)
        return loss

    for number in range(first, first + steps):
        at(f"step {number}")
        torch.manual_seed(number)
        x = torch.randint(0, WORDS, (BATCH, TOKENS))
        optimizer.zero_grad()
        began = time.perf_counter()
        loss = step(model, x).reduce_mean()
        at(f"update {number}")
        optimizer.step()
        if pipe.rank() == 0:
            print(json.dumps({"step": number, "loss": loss.item(), "seconds": time.perf_counter() - began}), flush=True)
    at("saving")
    pipe.save_checkpoint(str(checkpoints / "last"), model, optimizer, first + steps)
    at("saving weights")
    model.save_weights(checkpoints / "weights")
    pipe.shutdown()


@contextmanager
def memory_group(name: str, limit: int) -> Iterator[Path]:
    """A memory cgroup below the one of this process; removed afterwards."""
    own = Path("/proc/self/cgroup").read_text()
    if (V1 / "memory.limit_in_bytes").exists():
        found = re.search(r"^\d+:[\w,]*\bmemory\b[\w,]*:(.*)$", own, re.MULTILINE)
        parent = V1 / (found[1].lstrip("/") if found is not None else "")
        files = "memory.limit_in_bytes"
    else:
        parent, files = V2, "memory.max"
    group = (parent if parent.exists() else V1) / f"larger-{os.getpid()}-{name}"
    try:
        group.mkdir()
        (group / files).write_text(str(limit))
    except OSError as error:
        raise SystemExit(f"no memory cgroup can be made here ({error}): run this as root on Linux") from error
    try:
        yield group
    finally:
        for _ in range(100):  # its last process may still be on its way out
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.1)


def anonymous(group: Path) -> int:
    """Bytes of memory that are not of files, which the processes of a group have now."""
    stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return int(stat["total_rss"] if "total_rss" in stat else stat["anon"])


Peak = tuple[int, str]  # bytes, and at what the rank was


def run(way: str, ranks: int, limit: int, parameters: int, folder: Path, steps: int) -> tuple[list[dict], Peak, str]:
    """What rank 0 said, the peak of the rank with the highest, and why a rank has failed, "" if none has."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    groups, started, peak = [], [], (0, "")
    names = [memory_group(f"{way}-{ranks}-{rank}", limit) for rank in range(ranks)]
    try:
        for rank, name in enumerate(names):
            groups.append(group := name.__enter__())
            environ = {
                **os.environ,
                **{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)},
                **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "PYTHONPATH": str(TOOLKIT), "OMP_NUM_THREADS": "1"},
                "PYTHONHASHSEED": "0",
                "MALLOC_MMAP_THRESHOLD_": str(2**20),  # freed tensors go back to the system (mallopt(3))
            }
            command = [sys.executable, __file__, "--rank", way, str(parameters), str(folder), str(steps)]
            inside = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh", *command]
            with open(folder / f"log-{rank}", "a") as log:
                started.append(subprocess.Popen(inside, env=environ, stdout=log, stderr=log))
        until = time.monotonic() + TIMEOUT_S
        while any(one.poll() is None for one in started) and time.monotonic() < until:
            peak = max(peak, *((anonymous(group), _phase(folder, rank)) for rank, group in enumerate(groups)))
            if any(one.poll() not in (None, 0) for one in started):
                break
            time.sleep(0.05)
        codes = [one.poll() for one in started]
    finally:
        for one in started:
            one.kill()
            one.wait()
        for name in names[: len(groups)]:
            name.__exit__(None, None, None)
    said = [json.loads(line) for line in (folder / "log-0").read_text().splitlines() if line.startswith("{")]
    return said, peak, _why(codes, folder)


def _phase(folder: Path, rank: int) -> str:
    try:
        return (folder / f"at-{rank}").read_text()
    except OSError:
        return ""


def _why(codes: list[int | None], folder: Path) -> str:
    if -signal.SIGKILL in codes:
        return "ended by its limit"
    for rank, code in enumerate(codes):
        if code:
            return f"rank {rank} failed: " + (folder / f"log-{rank}").read_text().strip().splitlines()[-1][:200]
    return f"not at its end after {TIMEOUT_S} s" if None in codes else ""


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--ways", nargs="+", default=["whole", "delayed"], choices=["whole", "delayed", *HALVED])
    parser.add_argument("--limit-mib", type=int, default=2048, help="of each rank")
    parser.add_argument("--parameters", type=int, default=368, help="millions, rounded to whole layers")
    parser.add_argument("--out", type=Path, help="Markdown file for the table")
    parser.add_argument("--keep", type=Path, help="folder for logs and checkpoints, which stay there")
    parser.add_argument("--rank", nargs=4, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.rank:
        way, parameters, folder, steps = asked.rank
        rank_process(way, int(parameters), folder, int(steps))
        return
    rows = ["| way | ranks | peak of the largest rank, MiB | at | first start | resumed |", "|---|--:|--:|---|---|---|"]
    print("\n".join(rows), flush=True)
    for ranks in asked.ranks:
        for way in asked.ways:
            folder = Path(tempfile.mkdtemp(prefix="larger-", dir=asked.keep))
            try:
                row = case(way, ranks, asked.limit_mib * 2**20, asked.parameters, folder)
            finally:
                if asked.keep is None:
                    shutil.rmtree(folder)
            print(row, flush=True)
            rows.append(row)
    if asked.out is not None:
        asked.out.write_text("\n".join(rows) + "\n")


def case(way: str, ranks: int, limit: int, parameters: int, folder: Path) -> str:
    """A row of the table."""
    said, peak, why = run(way, ranks, limit, parameters, folder, 3)
    if why:
        return f"| {way} | {ranks} | {peak[0] / 2**20:.0f}, then it failed | {peak[1]} | {why} | |"
    began = "losses " + ", ".join(f"{one['loss']:.6f}" for one in said if "loss" in one)
    said, again, why = run(way, ranks, limit, parameters, folder, 2)
    resumed = why if why else ", ".join(f"{one['loss']:.6f}" for one in said[-2:])
    peak = max(peak, again)
    return f"| {way} | {ranks} | {peak[0] / 2**20:.0f} | {peak[1]} | {began} | {resumed} |"


if __name__ == "__main__":
    main()
