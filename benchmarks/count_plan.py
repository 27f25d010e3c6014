"""What it takes to plan a model that is larger than this machine: seconds and memory of `trainshed plan --count`.

    python benchmarks/count_plan.py [--layers 44] [--stages 8]
    python benchmarks/count_plan.py --layers 8 --ranks 8 --limit 60000 --gbits 100 [--whole]

The model is a Llama of transformers, by its configuration alone: 6144 wide, 48 heads, 50,304 words, one microbatch of 512
tokens. The limit beside it: the memory that its parameters would take in float32. With `--ranks` the ways to use them are
chosen from; `--whole` builds the model with its values, which tensor parallelism needs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCRIPT = """
import sys
import torch
import trainshed.parallel as pipe
from transformers import LlamaConfig, LlamaForCausalLM

pipe.init({"partitions": 2})
config = LlamaConfig(
    hidden_size=6144, intermediate_size=16384, num_hidden_layers=int(sys.argv[1]), num_attention_heads=48,
    num_key_value_heads=48, vocab_size=50304, max_position_embeddings=2048, use_cache=False,
)
with pipe.delayed_initialization(sys.argv[2] == "delayed"):
    model = LlamaForCausalLM(config)
print(f"PARAMETERS {sum(parameter.numel() for parameter in model.parameters())}")
model = pipe.PipelineModel(model)

@pipe.step
def step(model, tokens):
    loss = model(input_ids=tokens, labels=tokens).loss
    model.backward(loss)
    return loss

step(model, torch.randint(0, 50304, (8, 512)))
"""


def main() -> int:
    """0 if the plan was made."""
    parser = argparse.ArgumentParser(description="Plans a large language model without a value.")
    parser.add_argument("--layers", type=int, default=44, help="44: 20.6 billion parameters")
    parser.add_argument("--stages", type=int, default=8, help="pipeline ranks (default: 8)")
    parser.add_argument("--ranks", type=int, help="choose among the ways to use them")
    parser.add_argument("--ranks-per-host", default="0")
    parser.add_argument("--gbits", default="100")
    parser.add_argument("--gbits-host", default="0")
    parser.add_argument("--limit", default="60000", help="MiB of a rank, with --ranks (default: 60000)")
    parser.add_argument("--whole", action="store_true", help="build the model with its values")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        script, plan = Path(folder, "script.py"), Path(folder, "plan.json")
        script.write_text(SCRIPT)
        command = [sys.executable, "-m", "trainshed.parallel.plan", "--count", "--microbatches", "8", "-o", str(plan)]
        if options.ranks:
            command += ["--ranks", str(options.ranks), "--ranks-per-host", options.ranks_per_host, "--gbits", options.gbits]
            command += ["--gbits-host", options.gbits_host, "--memory-limit", options.limit]
        else:
            command += ["--stages", str(options.stages)]
        command += [str(script), str(options.layers), "whole" if options.whole else "delayed"]
        started = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            output = process.stdout.read()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - started
        print(output, end="")
        if process.returncode:
            return 1
        stages = json.loads(plan.read_text())["predicted"]["stages"]
    parameters = next(int(line.split()[1]) for line in output.splitlines() if line.startswith("PARAMETERS "))
    print()
    print("| parameters | their bytes in float32 | seconds to plan | peak memory of the plan | largest stage |")
    print("|---|---|---|---|---|")
    print(
        f"| {parameters / 1e9:.1f} billion | {parameters * 4 / 2**30:.1f} GiB | {seconds:.0f} | "
        f"{usage.ru_maxrss / 2**20:.2f} GiB | {max(stage['memory_mib'] for stage in stages) / 1024:.1f} GiB |"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
