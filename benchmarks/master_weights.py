"""How training with parameters in bfloat16 and float32 masters compares with training in float32, on a small GPT-2.

    python benchmarks/master_weights.py [--steps 400] [--seeds 3]

The text is the source of Python's standard library, byte by byte; each way sees the same batches. Shown are the mean loss of
the last 50 steps and that on held-out text, the ratio of the latter to float32's by seed, and the bytes that a parameter
takes with its gradient and AdamW's states.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "toolkit"))

import trainshed.parallel as pipe

LENGTH, ROWS = 64, 16
WAYS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bf16 (autocast)": {"bf16": True},
    "bf16, master_weights": {"bf16": True, "master_weights": True},
}


def text() -> torch.Tensor:
    """Bytes, shape (n,)."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    return torch.tensor(list(b"".join(file.read_bytes() for file in files)[:3_000_000]), dtype=torch.uint8)


def trained(settings: dict[str, Any], data: torch.Tensor, steps: int, seed: int) -> dict[str, float]:
    """Mean losses, and bytes for each parameter."""
    from transformers import GPT2Config, GPT2LMHeadModel

    pipe.init({"microbatches": 2, "verify": "off", **settings})
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=256, n_positions=LENGTH, n_embd=96, n_layer=4, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    model = pipe.PipelineModel(GPT2LMHeadModel(config))
    optimizer = pipe.PipelineOptimizer(torch.optim.AdamW(model.parameters(), lr=1e-3))

    def loss_of(model: Any, x: torch.Tensor) -> torch.Tensor:
        logits = model(input_ids=x, use_cache=False).logits[:, :-1]
        return cross_entropy(logits.flatten(0, 1).float(), x[:, 1:].flatten())

    @pipe.step
    def train_step(model: Any, x: torch.Tensor) -> torch.Tensor:
        loss = loss_of(model, x)
        model.backward(loss)
        return loss

    @pipe.step
    def look(model: Any, x: torch.Tensor) -> torch.Tensor:
        return loss_of(model, x)

    draw = torch.Generator().manual_seed(seed)
    cut = len(data) * 9 // 10

    def batch(first: int, last: int) -> torch.Tensor:
        starts = torch.randint(first, last - LENGTH, (ROWS,), generator=draw)
        return torch.stack([data[start : start + LENGTH].long() for start in starts])

    losses = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1.0, (step + 1) / 20, 1.1 - step / steps)
        optimizer.zero_grad()
        losses.append(float(train_step(model, batch(0, cut)).reduce_mean()))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()
    with torch.no_grad():
        held_out = sum(float(look(model, batch(cut, len(data))).reduce_mean()) for _ in range(20)) / 20
    parameters = list(model.parameters())
    states = [one for entry in optimizer.state.values() for one in entry.values() if torch.is_tensor(one) and one.dim()]
    held = [*parameters, *[one.grad for one in parameters if one.grad is not None], *states]
    size = sum(one.numel() * one.element_size() for one in held) / sum(one.numel() for one in parameters)
    pipe.shutdown()
    return {"loss": sum(losses[-50:]) / 50, "held out": held_out, "bytes": size}


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    data = text()
    found = {way: [trained(how, data, asked.steps, seed) for seed in range(asked.seeds)] for way, how in WAYS.items()}
    print(f"{'':24}{'loss':>8}{'held out':>10}{'ratio, by seed':>28}{'bytes':>7}")
    for way, seeds in found.items():
        ratios = " ".join(
            f"{one['held out'] / base['held out']:.4f}" for one, base in zip(seeds, found["float32"], strict=True)
        )
        loss, held_out = (sum(one[key] for one in seeds) / len(seeds) for key in ("loss", "held out"))
        print(f"{way:24}{loss:8.4f}{held_out:10.4f}{ratios:>28}{seeds[0]['bytes']:7.1f}")


if __name__ == "__main__":
    main()
