"""Trains one GPT in several ways to share it out over ranks: time, memory and bytes of a step, and how the losses differ.

    python benchmarks/tensor_parallel.py [--ranks 4] [--width 512] [--layers 6] [--words 2048] [--gated]
        [--tokens 64] [--rows 16] [--whole] [--steps 5] [--out FILE]

All ways train on the same global batches. Each runs in a network namespace of its own, where Linux counts the bytes of the
loopback device (with `unshare`, as root; "-" where that is not possible). Memory is what the kernel counts as the process's
own (no files): the largest of the first step, which may hold the whole model, and of the steps after it. What is kept for
the backward is what autograd saves in the last step, each storage once, parameters left out. The last column compares the
losses with those of one process.

    dp             replicas (DistributedDataParallel's sums, by trainshed.parallel)
    fsdp           `sharded_data_parallel_degree`: FSDP2
    pp             stages, 1F1B
    tp             `tensor_parallel_degree`, each rank with a batch of its own
    tp_prescaled   the same, with one batch for all ranks of a group
    dp_x_tp        two replicas of tensor groups
    fsdp_x_tp      the same, with parameters sharded over the replicas
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

TOOLKIT = Path(__file__).resolve().parents[1] / "toolkit"
HEADS = 8
WAYS: dict[str, dict[str, Any]] = {
    "alone": {},
    "dp": {},
    "fsdp": {"sharded_data_parallel_degree": 0},
    "pp": {"partitions": 0, "microbatches": 8},
    "tp": {"tensor_parallel_degree": 0},
    "tp_prescaled": {"tensor_parallel_degree": 0, "prescaled_batch": True},
    "dp_x_tp": {"tensor_parallel_degree": 2},
    "fsdp_x_tp": {"tensor_parallel_degree": 2, "sharded_data_parallel_degree": 2},
}
TIMEOUT_S = 900


class Memory(threading.Thread):
    """Looks at this process's own memory fifty times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = 0
        self.start()

    def run(self) -> None:
        while True:
            self.most = max(self.most, self.now())
            time.sleep(0.02)

    @staticmethod
    def now() -> int:
        """Bytes of memory that are not of files."""
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.partition("RssAnon:")[2].split()[0])

    def taken(self) -> int:
        """The most since it was last asked."""
        most, self.most = max(self.most, self.now()), 0
        return most


def sent() -> int:
    """Bytes that the loopback device of this network namespace has carried."""
    return int(Path("/proc/net/dev").read_text().partition("lo:")[2].split()[0])


def rank_process(
    way: str, width: int, layers: int, words: int, tokens: int, rows: int, gated: int, whole: int, steps: int
) -> None:
    """One rank; prints what it finds as JSON."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch import nn
    from torch.distributed.tensor import DTensor

    import trainshed.parallel as pipe
    from trainshed.parallel.engine.tensor import sequences

    if whole:
        sequences._MORE = float("-inf")  # nothing is cheap enough
    torch.set_num_threads(1)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
            mixing = [nn.Linear(width, width) for _ in range(3)] if gated else [nn.Linear(width, 3 * width)]
            self.mixing, self.out = nn.ModuleList(mixing), nn.Linear(width, width)
            self.gate = nn.Linear(width, 4 * width) if gated else None
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            read = self.norms[0](x)
            found = [mix(read) for mix in self.mixing]
            three = found if len(found) == 3 else found[0].chunk(3, -1)
            query, key, value = (one.unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in three)
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).flatten(-2))
            read = self.norms[1](x)
            inner = F.gelu(self.up(read)) if self.gate is None else F.silu(self.gate(read)) * self.up(read)
            return x + self.down(inner)

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(words, width)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.head = nn.Linear(width, words, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.words(x)
            for block in self.blocks:
                h = block(h)
            return self.head(h)

    memory = Memory()
    world = int(os.environ.get("WORLD_SIZE", "1"))
    settings = {name: world if value == 0 else value for name, value in WAYS[way].items()}
    pipe.init({"microbatches": 1, **settings})
    torch.manual_seed(0)
    model = pipe.PipelineModel(Gpt())
    optimizer = pipe.PipelineOptimizer(torch.optim.AdamW(model.parameters(), lr=1e-4))
    shared = bool(settings.get("prescaled_batch"))
    mine, count = (pipe.rdp_rank(), pipe.rdp_size()) if shared else (pipe.dp_rank(), pipe.dp_size())

    @pipe.step
    def step(model, x):  # type: ignore[no-untyped-def]
        loss = F.cross_entropy(model(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten())
        model.backward(loss)
        return loss

    saved: dict[int, Any] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    def kept() -> int:
        parameters = {
            one.untyped_storage()._cdata
            for one in (p.to_local() if isinstance(p, DTensor) else p for p in model.parameters())
        }
        return sum(one.nbytes() for key, one in saved.items() if key not in parameters)

    losses, seconds, peaks, carried = [], [], [], []
    for number in range(steps + 1):
        x = torch.randint(0, words, (rows, tokens), generator=torch.Generator().manual_seed(number))
        optimizer.zero_grad()
        if world > 1:
            dist.barrier()
        bytes_before, began = sent(), time.perf_counter()
        counting = (
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor) if number == steps else nullcontext()
        )
        with counting:
            loss = step(model, x.chunk(count)[mine]).reduce_mean()
        optimizer.step()
        if world > 1:
            dist.barrier()
        seconds.append(time.perf_counter() - began)
        carried.append(sent() - bytes_before)
        peaks.append(memory.taken())
        if world > 1:
            dist.all_reduce(loss)
        losses.append(loss.item() / world)
        sizes = kept()
        saved.clear()
    found = {"losses": losses, "seconds": median(seconds[1:]), "sent": median(carried[1:]), "kept": sizes}
    found |= {"first": peaks[0], "after": max(peaks[1:]), "parameters": sum(one.numel() for one in model.parameters())}
    os.write(1, f"\nFOUND {json.dumps(found)}\n".encode())  # at once: all ranks write to one pipe
    pipe.shutdown()


def run(way: str, ranks: int, *sizes: int) -> tuple[list[dict[str, Any]], bool]:
    """What each rank found, and whether bytes were counted."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    me = [sys.executable, __file__, "--rank", way, *map(str, sizes)]
    launcher = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", f"--master-port={port}"]
    command = [*launcher, *me[1:]]
    environ = {**os.environ, "PYTHONPATH": str(TOOLKIT), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    environ["MALLOC_MMAP_THRESHOLD_"] = str(2**20)  # freed tensors go back to the system (mallopt(3))
    apart = ["unshare", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    counts = shutil.which("unshare") is not None and not subprocess.run([*apart, "true"], capture_output=True).returncode
    done = subprocess.run(
        [*(apart if counts else []), *command], env=environ, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    found = [json.loads(line.partition("FOUND ")[2]) for line in done.stdout.splitlines() if "FOUND " in line]
    if len(found) < ranks:
        raise SystemExit(f"{way}: {done.stdout[-1000:]}{done.stderr[-3000:]}")
    return found, counts


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--words", type=int, default=2048, help="of the vocabulary")
    parser.add_argument("--tokens", type=int, default=64, help="of a row")
    parser.add_argument("--rows", type=int, default=16, help="of the batch of all ranks")
    parser.add_argument(
        "--whole", action="store_true", help="results are whole between pairs, and not in parts along the tokens"
    )
    parser.add_argument("--gated", action="store_true", help="q, k, v and a gate as Linears of their own, as Llama has them")
    parser.add_argument("--steps", type=int, default=5, help="after the first one")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--out", type=Path, help="Markdown file for the table")
    parser.add_argument("--rank", nargs=9, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.rank:
        rank_process(asked.rank[0], *map(int, asked.rank[1:]))
        return
    rows = [
        "| way | ranks | step, s | MB sent by all ranks a step | peak of the first step, MiB | after, MiB "
        "| kept for the backward, MiB | losses apart |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    expected: list[float] = []
    for way in dict.fromkeys(["alone", *asked.ways]):
        ranks = 1 if way == "alone" else asked.ranks
        sizes = asked.width, asked.layers, asked.words, asked.tokens, asked.rows, int(asked.gated), int(asked.whole)
        found, counts = run(way, ranks, *sizes, asked.steps)
        losses = found[0]["losses"]
        expected = expected or losses
        apart = max(abs(one - other) / other for one, other in zip(losses, expected, strict=True))
        moved = f"{median(one['sent'] for one in found) / 1e6:.1f}" if counts else "-"
        first, after, kept = (max(one[name] for one in found) / 2**20 for name in ("first", "after", "kept"))
        times = f"{found[0]['seconds']:.2f} | {moved}"
        rows.append(f"| {way} | {ranks} | {times} | {first:.0f} | {after:.0f} | {kept:.1f} | {apart:.1e} |")
        print(rows[-1] if way != "alone" else "\n".join(rows), flush=True)
    print(f"{found[0]['parameters']:,} parameters")
    if asked.out:
        asked.out.write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
