"""A state of so many MB: what a checkpoint of it costs the loop, beside the plain copies that no snapshot can beat."""

from __future__ import annotations

import argparse
import os

import torch
from _device import CUDA, DEVICE, tell, timed

from trainshed.checkpoint import Checkpointer

PIECE = 16 << 20  # elements of one tensor: 64 MB


def build(megabytes: int, sharded: bool) -> torch.nn.Module:
    """A model whose parameters make up the state."""
    count = max(1, megabytes * 1_000_000 // (PIECE * 4))
    size = PIECE if megabytes >= 64 else megabytes * 250_000
    values = [torch.nn.Parameter(torch.randn(size // 1024, 1024, device=DEVICE)) for _ in range(count)]
    model = torch.nn.Module()
    model.weights = torch.nn.ParameterList(values)
    if sharded:
        from torch.distributed.fsdp import fully_shard

        torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if CUDA else "gloo")
        fully_shard(model)
    return model


def main() -> None:
    """One job."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--sharded", type=int, default=0)
    options = parser.parse_args()
    model = build(options.megabytes, bool(options.sharded))
    sources = [getattr(one, "_local_tensor", one).detach() for one in model.parameters()]
    size = sum(one.numel() * one.element_size() for one in sources)
    pinned = [torch.empty(one.shape, pin_memory=CUDA) for one in sources]
    loose = [torch.zeros(one.shape) for one in sources]

    def copy(targets: list[torch.Tensor]) -> None:
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source, non_blocking=True)

    checkpointer = Checkpointer(os.environ["SM_CHECKPOINT_DIR"], model=model, every_steps=10, keep_last=2)
    checkpointer.restore()
    for step in range(1, 11):  # the first save makes its memory
        checkpointer.step(step)
    checkpointer.wait()
    stalls, durable, copies, loose_copies = [], [], [], []
    for number in range(2, options.repeat + 2):
        for _ in range(2):
            copy(pinned)
        copies.append(timed(lambda: copy(pinned)))
        loose_copies.append(timed(lambda: copy(loose)))
        stalls.append(timed(lambda number=number: checkpointer.step(10 * number)))
        durable.append(stalls[-1] + timed(checkpointer.wait))
    with torch.no_grad():
        before = [one.sum(dtype=torch.float64).item() for one in sources]
        for one in sources:
            one.zero_()
    loading = timed(checkpointer.restore)
    same = [one.sum(dtype=torch.float64).item() for one in sources] == before
    checkpointer.close()
    tell(bytes=size, stalls=stalls, durable=durable, pinned=copies, loose=loose_copies, load=loading, same=same)
    if options.sharded:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
