"""Steps of DDP whose gradients pass slow links between hosts: its own exchange beside trainshed's (docs/data-parallel.md).

    sudo python benchmarks/data_parallel.py [--links 1000 500 200] [--layouts 4x1 2x2] [--megabytes 24] [--models sleep]

Hosts are network namespaces of this machine, joined by a bridge; each host's link is limited both ways by `tc tbf`, so
that all ranks of a host share it. Needs root, iproute2 and the kernel's sch_tbf; Linux only. Two models: `sleep` computes by
sleeping (0.315 s a step, 12 layers), so that few cores are enough for many ranks; `real` is a small transformer on one
thread. Each cell is a job of its own; its rows take turns (`--rounds`), and the medians of their steps are compared.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LAYERS, FORWARD, BACKWARD = 12, 0.010, 0.01625  # seconds a layer
ROWS = ("ddp", "exact", "bf16")
SETTLED = 22  # steps after which `accelerate` has decided and compared
MEASURED = 8
PREFIX = "tsdp"


# --- hosts ---


def run(*words: str) -> None:
    """Runs a command; its words are its error."""
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr.strip()}")


@contextlib.contextmanager
def joined_hosts(count: int, megabits: int) -> Iterator[list[str]]:
    """Names of namespaces, each with one link of that rate to a bridge."""
    bridge, spaces = f"{PREFIX}-bridge", [f"{PREFIX}-{number}" for number in range(count)]
    try:
        run("ip", "netns", "add", bridge)
        run("ip", "-n", bridge, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", bridge, "link", "set", "br0", "up")
        for number, space in enumerate(spaces):
            run("ip", "netns", "add", space)
            run("ip", "link", "add", "link0", "netns", space, "type", "veth", "peer", "name", f"p{number}", "netns", bridge)
            run("ip", "-n", bridge, "link", "set", f"p{number}", "master", "br0", "up")
            run("ip", "-n", space, "addr", "add", f"10.78.0.{number + 1}/24", "dev", "link0")
            run("ip", "-n", space, "link", "set", "link0", "up")
            run("ip", "-n", space, "link", "set", "lo", "up")
            for where, device in ((space, "link0"), (bridge, f"p{number}")):
                limit = ("tbf", "rate", f"{megabits}mbit", "burst", "256kb", "latency", "400ms")
                run("ip", "netns", "exec", where, "tc", "qdisc", "add", "dev", device, "root", *limit)
        yield spaces
    finally:
        for space in (*spaces, bridge):
            subprocess.run(["ip", "netns", "del", space], capture_output=True)


def measure(layout: tuple[int, int], megabits: int, model: str, megabytes: int, rounds: int) -> dict[str, Any]:
    """What rank 0 found."""
    hosts, each = layout
    with joined_hosts(hosts, megabits) as spaces, tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(hosts * each):
            environ = {
                **os.environ, "RANK": str(rank), "WORLD_SIZE": str(hosts * each), "LOCAL_RANK": str(rank % each),
                "LOCAL_WORLD_SIZE": str(each), "GROUP_RANK": str(rank // each), "MASTER_ADDR": "10.78.0.1",
                "MASTER_PORT": "29611", "GLOO_SOCKET_IFNAME": "link0", "OMP_NUM_THREADS": "1",
                "PYTHONPATH": str(ROOT / "toolkit"),
            }  # fmt: skip
            words = [sys.executable, __file__, "--rank", folder, model, str(megabytes), str(rounds)]
            ranks.append(subprocess.Popen(["ip", "netns", "exec", spaces[rank // each], *words], env=environ))
        try:
            codes = [process.wait(timeout=900) for process in ranks]
        finally:
            for process in ranks:
                process.kill()
        if any(codes):
            raise SystemExit(f"a rank failed: {codes}")
        return dict(json.loads(Path(folder, "found.json").read_text()))


# --- ranks ---


def make_model(kind: str, megabytes: int) -> tuple[Any, Any]:
    """A model and its batch."""
    import torch
    from torch import nn

    class Sleeping(torch.autograd.Function):
        """A layer's computation, as long as it is told; its gradients differ by rank."""

        @staticmethod
        def forward(context: Any, x: Any, weight: Any) -> Any:
            time.sleep(FORWARD)
            context.save_for_backward(weight)
            return x + 0

        @staticmethod
        def backward(context: Any, *grads: Any) -> Any:
            time.sleep(BACKWARD)
            (weight,) = context.saved_tensors
            return grads[0], weight * (1 + int(os.environ["RANK"]))

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(megabytes * 2**20 // 4 // LAYERS // 1024, 1024))

        def forward(self, x: Any) -> Any:
            return Sleeping.apply(x, self.weight)

    torch.manual_seed(0)
    if kind == "sleep":
        return nn.Sequential(*[Layer() for _ in range(LAYERS)]), torch.ones(1, requires_grad=True)
    width = 64 * max(1, round((megabytes * 2**20 / 4 / LAYERS / 12) ** 0.5 / 64))
    block = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(block, LAYERS, enable_nested_tensor=False), torch.randn(2, 24, width)


def sent_bytes() -> int:
    """What this host has sent over its link."""
    return int(Path("/sys/class/net/link0/statistics/tx_bytes").read_text())


def rank_main(folder: str, kind: str, megabytes: int, rounds: int) -> None:
    """Trains by each row in turn, and has rank 0 write what it found."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    from trainshed.parallel import data

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model, batch = make_model(kind, megabytes)
    models = {}
    seconds: dict[str, list[float]] = {row: [] for row in ROWS}
    sent: dict[str, int] = {}
    grads = {}

    def steps(row: str, count: int) -> list[float]:
        times = []
        for _ in range(count):
            models[row].zero_grad()
            began = time.monotonic()
            models[row](batch).square().mean().backward() if kind == "real" else models[row](batch).sum().backward()
            times.append(time.monotonic() - began)
        return times

    import copy

    for row in ROWS:
        models[row] = DDP(copy.deepcopy(model))
        if row != "ddp":
            data.accelerate(models[row], "auto" if row == "exact" else "bf16")
        steps(row, SETTLED if row != "ddp" else 4)
    for _ in range(rounds):
        for row in ROWS:
            dist.barrier()
            before = sent_bytes()
            seconds[row] += steps(row, MEASURED)
            sent[row] = (sent_bytes() - before) // MEASURED
            dist.barrier()
            grads[row] = [one.grad.clone() for one in models[row].parameters()]
    if rank == 0:
        found: dict[str, Any] = {"megabytes": sum(one.numel() for one in grads["ddp"]) * 4 / 2**20}
        for row in ROWS:
            difference = max(
                float((one - other).abs().max() / one.abs().max())
                for one, other in zip(grads["ddp"], grads[row], strict=True)
            )
            found[row] = {"seconds": statistics.median(seconds[row]), "sent": sent[row], "difference": difference}
        Path(folder, "found.json").write_text(json.dumps(found))
    dist.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


# --- the table ---


def main() -> None:
    """Prints one line a cell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--links", type=int, nargs="+", default=[1000, 500, 200], metavar="MBIT", help="of a host")
    parser.add_argument("--layouts", nargs="+", default=["4x1", "2x2"], metavar="HxR", help="hosts x ranks on each")
    parser.add_argument("--megabytes", type=int, nargs="+", default=[24], help="of gradients (MiB)")
    parser.add_argument("--models", nargs="+", default=["sleep", "real"], choices=["sleep", "real"])
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    heads = ("model", "gradients", "hosts x ranks", "link, Mbit/s", "DDP, s", "exact", "bf16", "MB a host sends")
    heads += ("exact - DDP", "bf16 - DDP")
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for model in options.models:
        for megabytes in options.megabytes:
            for text in options.layouts:
                hosts, each = map(int, text.split("x"))
                for link in options.links:
                    found = measure((hosts, each), link, model, megabytes, options.rounds)
                    ddp, *ours = (found[row] for row in ROWS)
                    ratios = " | ".join(f"{ddp['seconds'] / one['seconds']:.2f}x ({one['seconds']:.3f} s)" for one in ours)
                    sent = ", ".join(f"{found[row]['sent'] / 1e6:.0f}" for row in ROWS)
                    apart = " | ".join(f"{one['difference']:.1g}" for one in ours)
                    cell = f"{model} | {found['megabytes']:.0f} MiB | {text} | {link} | {ddp['seconds']:.3f}"
                    print(f"| {cell} | {ratios} | {sent} | {apart} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank_main(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    else:
        main()
