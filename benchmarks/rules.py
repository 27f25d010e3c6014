"""What rules on tensors cost a training of GPT-2 small's shape on this machine's CPUs.

    python benchmarks/rules.py [--steps 10] [--every 10]

Prints the CPU time that the hooks take as a part of all CPU time of the steps, the look at one step in `--every` included.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from _claims import claim

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "toolkit"))


def main() -> None:
    """Trains, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--every", type=int, default=10, help="optimizer steps between two looks")
    options = parser.parse_args()

    import torch
    from torch.optim import optimizer as torch_optimizer
    from transformers import GPT2Config, GPT2LMHeadModel

    from trainshed.studio.rules.collecting import _Collector

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(0, 50257, (4, 128))
    spent = 0.0

    def timed(hook):  # type: ignore[no-untyped-def]
        def call(*args, **named):  # type: ignore[no-untyped-def]
            nonlocal spent
            begun = time.process_time()
            hook(*args, **named)
            spent += time.process_time() - begun

        return call

    def step() -> None:
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()

    with tempfile.TemporaryDirectory() as folder:
        collector = _Collector(options.every, folder)
        torch_optimizer.register_optimizer_step_pre_hook(timed(collector.guarded(collector.before)))
        torch_optimizer.register_optimizer_step_post_hook(timed(collector.guarded(collector.after)))
        step()  # memory is allocated, the model is found
        first, spent = spent, 0.0
        begun = time.process_time()
        for _ in range(options.steps):
            step()
        whole = time.process_time() - begun
        size = sum(os.path.getsize(f"{folder}/{name}") for name in os.listdir(folder))
    parameters = sum(p.numel() for p in model.parameters())
    print(f"GPT-2 small ({parameters / 1e6:.0f} million parameters), batch 4 x 128, one look in {options.every} steps")
    print(f"steps: {options.steps}, {whole / options.steps:.2f} CPU s each")
    claim("rules: a look at a GPT-2's gradients every 10 steps", 100 * spent / whole, "% of the steps")
    print(f"hooks: {100 * spent / whole:.2f} % of that; the first look, with the search for the model, {first:.2f} CPU s")
    print(f"file: {size / 2 / 1000:.0f} kB a look")


if __name__ == "__main__":
    main()
