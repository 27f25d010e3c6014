"""Fails in one of the ways in which GPU jobs fail; without a GPU, in the way that comes nearest."""

from __future__ import annotations

import argparse
import ctypes
import time
from datetime import timedelta

import torch
from _device import CUDA, DEVICE


def out_of_memory() -> None:
    """More memory than there is, a GB at a time."""
    kept = []
    while True:
        kept.append(torch.empty(1 << (30 if CUDA else 56), dtype=torch.uint8, device=DEVICE))


def device_assert() -> None:
    """An index that an embedding does not have."""
    table = torch.nn.Embedding(10, 4, device=DEVICE)
    print(table(torch.tensor([3, 11], device=DEVICE)).sum().item())


def illegal_address() -> None:
    """A write to memory that is nobody's."""
    if not CUDA:
        ctypes.memset(1, 0, 8)
    import triton
    import triton.language as language

    @triton.jit
    def astray(pointer, distance, size: language.constexpr):  # type: ignore[no-untyped-def]
        places = language.arange(0, size).to(language.int64) + distance
        language.store(pointer + places, 1.0)

    astray[(1,)](torch.zeros(64, device=DEVICE), 1 << 40, 64)
    torch.cuda.synchronize()


def missing_rank() -> None:
    """A rank that never comes to a collective. With fewer GPUs than ranks the others wait for it at the beginning."""
    backend = "nccl" if torch.cuda.device_count() > 1 else "gloo"
    torch.distributed.init_process_group(backend, timeout=timedelta(seconds=10))
    rank = torch.distributed.get_rank()
    if rank == 1:
        time.sleep(600)
    value = torch.ones(8)
    if backend == "nccl":
        torch.cuda.set_device(rank)
        value = value.cuda()
    torch.distributed.all_reduce(value)
    print(value.sum().item())


def same_gpu() -> None:
    """Two ranks of one NCCL group on one GPU, which NCCL refuses."""
    torch.distributed.init_process_group("nccl" if CUDA else "gloo", timeout=timedelta(seconds=60))
    if CUDA:
        torch.cuda.set_device(0)
    value = torch.ones(8, device=DEVICE)
    torch.distributed.all_reduce(value)
    print(value.sum().item())


def endless_kernel() -> None:
    """A kernel that does not end; without a GPU, a loop in Python that waits for nothing."""
    print("the kernel begins", flush=True)
    if CUDA:
        for _ in range(64):
            torch.cuda._sleep(1 << 40)
        torch.cuda.synchronize()
    while True:
        time.sleep(0.05)


def main() -> None:
    """One job."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=[name for name, value in globals().items() if callable(value)])
    globals()[parser.parse_args().kind]()


if __name__ == "__main__":
    main()
