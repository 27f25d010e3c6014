"""A step of the engine beside the same plan as plain torch: what `trainshed plan --emit` writes.

    python benchmarks/emit.py [--ways stages tensor ...] [--steps 8]

A Llama of 6 layers of width 256 on two ranks that share this machine's cores, float32, AdamW, gloo. Both train the same
model on the same batches; the script says so where their losses are apart. Read the ratios, not the times.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from _claims import claim

TOOLKIT = Path(__file__).resolve().parents[1] / "toolkit"
ROWS, TOKENS, WORDS, WARM = 8, 64, 512, 2
# Way -> settings of the engine, options of the plan.
WAYS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "replicas": ({}, ["--stages", "1"]),
    "shards": ({"sharded_data_parallel_degree": 2}, ["--stages", "1", "--settings", '{"sharded_data_parallel_degree": 2}']),
    "stages": ({"partitions": 2, "microbatches": 4}, ["--stages", "2", "--microbatches", "4"]),
    "tensor": ({"tensor_parallel_degree": 2, "prescaled_batch": True}, ["--stages", "1", "--tensor", "2"]),
}


def build() -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6, "num_attention_heads": 8}
    return LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, max_position_embeddings=TOKENS, use_cache=False, **sizes))


def batch(step: int) -> dict[str, Any]:
    import torch

    words = torch.randint(0, WORDS, (ROWS, TOKENS), generator=torch.Generator().manual_seed(step))
    return {"input_ids": words, "labels": words.clone()}


def adam(parameters: Any) -> Any:
    import torch

    return torch.optim.AdamW(parameters, lr=1e-3)


def engine(settings: dict[str, Any]) -> Callable[[int], Any]:
    """A step of the engine, or the first one, which is planned."""
    import trainshed.parallel as pipe

    pipe.init(settings)
    model = pipe.ParallelModel(build())
    optimizer = pipe.ParallelOptimizer(adam(model.parameters()))

    @pipe.step
    def train(model: Any, batch: dict[str, Any]) -> Any:
        loss = model(**batch).loss
        model.backward(loss)
        return loss

    def step(number: int) -> Any:
        optimizer.zero_grad()
        own = {name: one.chunk(pipe.rdp_size())[pipe.rdp_rank()] for name, one in batch(number).items()}
        loss = train(model, own).reduce_mean()
        optimizer.step()
        return loss

    return step


def emitted(file: str) -> Callable[[int], Any]:
    """A step of an emitted file."""
    spec = importlib.util.spec_from_file_location("parallel", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model, optimizer, *staged = module.parallelize(build(), adam)

    def step(number: int) -> Any:
        own = module.own_rows(batch(number))
        if staged:
            loss = staged[0](own)
        else:
            optimizer.zero_grad()
            loss = model(**own).loss
            loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def rank_process(step: Callable[[int], Any], steps: int) -> None:
    """Prints the median of its steps, and the last loss."""
    seconds = []
    for number in range(steps + WARM):
        began = time.perf_counter()
        loss = float(step(number))
        seconds.append(time.perf_counter() - began)
    loss = mean(loss)
    if os.environ["RANK"] == "0":
        print(json.dumps({"ms": median(seconds[WARM:]) * 1e3, "loss": loss}), flush=True)


def mean(loss: float) -> float:
    """Of all ranks, who may have other rows."""
    import torch
    import torch.distributed as dist

    found = torch.tensor(loss, dtype=torch.float64)
    dist.all_reduce(found)
    return float(found) / dist.get_world_size()


def ran(mode: list[str], *before: str) -> str:
    environment = {
        **os.environ,
        "PYTHONPATH": str(TOOLKIT),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONHASHSEED": "0",
    }
    command = [sys.executable, *before, __file__, *mode]
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=900).stdout


def compare(way: str, steps: int, folder: Path) -> None:
    settings, options = WAYS[way]
    file = str(folder / f"{way}.py")
    ran(["--mode", "plan"], "-m", "trainshed.parallel.plan", *options, "-o", str(folder / "plan.json"), "--emit", file)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    modes = (["--mode", "engine", json.dumps(settings)], ["--mode", "emitted", file])
    lines = [ran([*mode, "--steps", str(steps)], *torchrun).splitlines() for mode in modes]
    ours, theirs = (json.loads(next(line for line in found if line.startswith("{"))) for found in lines)
    claim(f"emit: a step, {way}, the engine", ours["ms"], "ms", peer=theirs["ms"], peer_name="its plan as plain torch")
    if abs(ours["loss"] - theirs["loss"]) > 1e-5 * ours["loss"]:
        print(f"the losses are apart: {ours['loss']} and {theirs['loss']}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--mode", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.mode is None:
        with tempfile.TemporaryDirectory() as folder:
            for way in options.ways:
                compare(way, options.steps, Path(folder))
        return
    mode, *given = options.mode
    if mode == "plan":
        engine({})(0)
    else:
        step = emitted(given[0]) if mode == "emitted" else engine(json.loads(given[0]))
        rank_process(step, options.steps)


if __name__ == "__main__":
    main()
