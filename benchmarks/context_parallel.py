"""What a rank keeps for the backward when the sequence is divided inside of blocks, and what it sends.

    python benchmarks/context_parallel.py [--ranks 1 2 4] [--length 2048] [--sharded] [--stages 2]

A GPT by hand of 4 blocks (width 128, 4 heads, causal, no dropout) on one row. Kept: bytes of tensors that autograd saves in
a forward, parameters left out, each storage once. Gathered: bytes that a rank has after its exchanges of a step. Of the
third step, in which nothing is tried or compared any more. Held: parameters, gradients and optimizer states of a rank after
it; with `--sharded` they are sharded over all ranks. With `--stages` the ranks are stages, and those of a stage divide its
sequences; rank 0 has the first. The losses are compared with those of one rank.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

TOOLKIT = Path(__file__).resolve().parents[1] / "toolkit"


def rank_process(length: int, sharded: bool, stages: int) -> None:
    """One rank; rank 0 prints JSON."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    import trainshed.parallel as pipe
    from trainshed.parallel.engine.context.crossing import Crossing
    from trainshed.parallel.ground.shards import local
    from trainshed.parallel.stages.stage import StageModule

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.after = nn.LayerNorm(128), nn.LayerNorm(128)
            self.qkv, self.out = nn.Linear(128, 384), nn.Linear(128, 128)
            self.mlp = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128))

        def forward(self, x: Any) -> Any:
            q, k, v = (one.unflatten(-1, (4, -1)).transpose(1, 2) for one in self.qkv(self.before(x)).chunk(3, -1))
            x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))
            return x + self.mlp(self.after(x))

    torch.set_num_threads(1)
    ranks = int(os.environ["WORLD_SIZE"])
    stages = min(stages, ranks)
    shards = ranks // stages if sharded else 1
    pipe.init(
        {
            "context_parallel_degree": ranks // stages,
            "sharded_data_parallel_degree": shards,
            "pipeline_parallel_degree": stages,
        }
    )
    torch.manual_seed(0)
    model = pipe.PipelineModel(nn.Sequential(*[Block() for _ in range(4)]))
    optimizer = pipe.PipelineOptimizer(torch.optim.AdamW(model.parameters(), lr=1e-3))
    kept: dict[int, int] = {}
    gathered = [0]
    native = Crossing.gathered

    def counted(*args: Any) -> Any:
        found = native(*args)
        gathered[0] += found.numel() * found.element_size()
        return found

    Crossing.gathered = counted  # type: ignore[method-assign]

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    def counting() -> Any:
        return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)

    forward = StageModule._forward

    def counted_forward(*args: Any) -> Any:
        with counting():
            return forward(*args)

    StageModule._forward = counted_forward  # type: ignore[method-assign]
    own: set[int] = set()

    @pipe.step
    def train(model: Any, x: Any) -> Any:
        # Stages would take such a context for an activation checkpoint, which they must not cut through.
        with counting() if stages == 1 else nullcontext():
            loss = model(x).square().mean()
        model.backward(loss)
        return loss

    losses = []
    for number in range(3):
        own = {local(one.detach()).untyped_storage().data_ptr() for one in model.local_parameters()}
        kept.clear()
        gathered[0] = 0
        optimizer.zero_grad()
        x = torch.randn(1, length, 128, generator=torch.Generator().manual_seed(number))
        losses.append(float(train(model, x).reduce_mean()))
        optimizer.step()
    states = [one for entry in optimizer.optimizer.state.values() for one in entry.values() if isinstance(one, torch.Tensor)]
    mine = list(model.local_parameters())
    every = [*mine, *(one.grad for one in mine if one.grad is not None), *states]
    storages = [local(one.detach()).untyped_storage() for one in every]
    held = sum({one.data_ptr(): one.nbytes() for one in storages}.values())
    if pipe.rank() == 0:
        found = {"kept": sum(kept.values()), "gathered": gathered[0], "held": held, "losses": losses}
        print(json.dumps(found), flush=True)


def play(ranks: int, length: int, sharded: bool, stages: int) -> dict[str, Any]:
    """What rank 0 found."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": str(TOOLKIT), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment |= {"WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONHASHSEED": "0"}
    command = [sys.executable, __file__, "--rank", "--length", str(length), "--stages", str(stages)]
    command += ["--sharded"] if sharded else []
    started = [
        subprocess.Popen(
            command, env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stdout=subprocess.PIPE, text=True
        )
        for rank in range(ranks)
    ]
    out = [process.communicate(timeout=300)[0] for process in started]
    return json.loads(next(line for line in out[0].splitlines() if line.startswith('{"kept"')))


def main() -> int:
    """0, whatever is found: this measures."""
    parser = argparse.ArgumentParser(description="Sequences divided among ranks.")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--sharded", action="store_true", help="shard parameters, gradients and states over all ranks")
    parser.add_argument("--stages", type=int, default=1, help="stages; the ranks of each divide its sequences")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        rank_process(options.length, options.sharded, options.stages)
        return 0
    print("| ranks | kept by a rank, MiB | gathered by a rank a step, MiB | held between steps, MiB | losses apart |")
    print("|--:|--:|--:|--:|--:|")
    first: list[float] = []
    for ranks in options.ranks:
        found = play(ranks, options.length, options.sharded, options.stages)
        first = first or found["losses"]
        off = max(abs(a - b) / abs(b) for a, b in zip(found["losses"], first, strict=True))
        numbers = [found[name] / 2**20 for name in ("kept", "gathered", "held")]
        print(f"| {ranks} | {' | '.join(f'{one:.1f}' for one in numbers)} | {off:.0e} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
