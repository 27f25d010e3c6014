"""Steps of their own against DDP: bytes between hosts, and the loss in the end (docs/far-hosts.md).

    python benchmarks/local_steps.py [--steps 1500] [--every 50 100] [--hosts 2] [--seeds 0 1]

A GPT-2 of two blocks learns the reference topics of Python's `help()` (the demo data of language_model.py, by bytes). Each
rank is a host; all ways take the same batches, as many steps, the same AdamW and schedule. Bytes are those of a ring's
all-reduce, 2 (N-1)/N of what is summed, which gloo and NCCL send; the loss is that of the text held out. `alone`: one host
with its own part of the batches, which is what hosts that never exchange would have.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch.nn.parallel import DistributedDataParallel

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "toolkit"), str(ROOT / "entrypoints")]

BATCH, LENGTH, RATE, WARM = 8, 64, 3e-3, 50  # sequences a rank and step; tokens; of AdamW; steps of warm-up


def corpus() -> tuple[torch.Tensor, torch.Tensor]:
    """The demo text as bytes: for training, and held out."""
    import demo_data

    parts = demo_data.text()
    train, held = (torch.tensor(list("\n".join(parts[name].values()).encode())) for name in ("train", "validation"))
    return train, held


def model_of(seed: int) -> Any:
    """A GPT-2 of 255,000 weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    sizes = {
        "vocab_size": 256,
        "bos_token_id": None,
        "eos_token_id": None,
        "n_positions": LENGTH,
        "n_embd": 96,
        "n_layer": 2,
        "n_head": 4,
    }
    return GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))


def rows(text: torch.Tensor, draw: torch.Generator, count: int) -> torch.Tensor:
    """Sequences from random places, [count, LENGTH]."""
    return torch.stack(
        [text[at : at + LENGTH] for at in torch.randint(len(text) - LENGTH, (count,), generator=draw).tolist()]
    )


@torch.no_grad()
def loss_on(model: Any, text: torch.Tensor) -> float:
    """The mean loss of a byte over all the text."""
    model.eval()
    whole = text[: len(text) // LENGTH * LENGTH].view(-1, LENGTH)
    losses = [model(part, labels=part).loss.item() * len(part) for part in whole.split(64)]
    model.train()
    return sum(losses) / len(whole)


def work(
    rank: int,
    world: int,
    port: int,
    way: str,
    every: int,
    steps: int,
    seed: int,
    options: dict[str, Any],
    found: Any,
) -> None:
    """One host's training."""
    from trainshed.parallel import data

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(world)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train, held = corpus()
    model = model_of(seed)
    weights = sum(one.numel() for one in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.01)
    local = None
    trained: Any = model
    if way == "ddp":
        trained = DistributedDataParallel(model)
    elif way == "local":
        local = data.LocalSteps(model, optimizer, every=every, hosts=list(range(world)), **options)
    draw = torch.Generator().manual_seed(1000 * seed + rank)
    began = time.perf_counter()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min((step + 1) / WARM, 0.5 * (1 + math.cos(math.pi * step / steps)))
        batch = rows(train, draw, BATCH)
        trained(batch, labels=batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    if local is not None:
        local.finish()
    seconds = time.perf_counter() - began
    sent = local.sent if local is not None else steps * 2 * (world - 1) / world * 4 * weights if way == "ddp" else 0
    if rank == 0:
        found[way, every, seed] = (loss_on(local.outer if local is not None else model, held), sent, seconds)
    dist.destroy_process_group()


def main() -> None:
    """The command line."""
    from trainshed.machine.network import free_port

    os.environ |= {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1"}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--every", type=int, nargs="+", default=[50, 100])
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--outer", type=float, nargs=2, default=[0.7, 0.9], help="rate and momentum")
    parser.add_argument("--bits", type=int, default=32, help="of a number that hosts exchange: 32, 8 or 4")
    parser.add_argument("--fragments", type=int, default=1, help="pieces that are exchanged in turn")
    parser.add_argument("--overlap", type=int, default=0, help="steps beside which one is exchanged")
    parser.add_argument("--mix", type=float, help="the part of a host's own values that stays")
    parser.add_argument("--ways", nargs="+", default=["ddp", "local", "alone"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    given = parser.parse_args()
    ways = [("ddp", 1), *(("local", every) for every in given.every), ("alone", 0)]
    ways = [one for one in ways if one[0] in given.ways]
    options = {"outer_rate": given.outer[0], "outer_momentum": given.outer[1], "bits": given.bits}
    options |= {"fragments": given.fragments, "overlap": given.overlap, "mix": given.mix}
    with processes.Manager() as manager:
        found = manager.dict()
        for seed in given.seeds:
            for way, every in ways:
                arguments = (given.hosts, free_port(0), way, every, given.steps, seed, options, found)
                processes.spawn(work, arguments, nprocs=given.hosts)
        results = dict(found)
    print(f"| {given.hosts} hosts, {given.steps} steps | seed | loss | of DDP's | bytes a host sends | fewer | seconds |")
    print("|---|---|---|---|---|---|---|")
    for way, every in ways:
        for seed in given.seeds:
            loss, sent, seconds = results[way, every, seed]
            base, bytes_, _ = results.get(("ddp", 1, seed), (math.nan, math.nan, 0))
            name = f"local, every {every}, {given.bits} bits" if way == "local" else way
            if way == "local" and given.fragments > 1:
                name += f", {given.fragments} fragments, overlap {given.overlap}"
            fewer = f"{bytes_ / sent:.1f}x" if sent else ""
            print(f"| {name} | {seed} | {loss:.4f} | {loss / base:.4f} | {sent / 1e6:.1f} MB | {fewer} | {seconds:.0f} |")


if __name__ == "__main__":
    main()
