"""Texts, models and hyperparameters that nobody has written by hand: the language programs train, or say what is wrong."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from jobs.entrypoints import picture_mutants as mutants
from jobs.entrypoints.test_loop_mutants import as_lines
from support.extras import needs

pytestmark = [pytest.mark.torch, pytest.mark.matrix]

WORDS = ["fine", "day", "film", "ten", "é", "🦊", "<|endoftext|>", "", " ", "a" * 300, '"', "\x00", "\n", "\u2028", "٣"]
VALUES: dict[str, list[str]] = {
    "max_steps": ["1", "3", "0"],
    "epochs": ["0.001", "2", "nan"],
    "batch_size": ["1", "3", "1000", "0"],
    "gradient_accumulation_steps": ["2", "5"],
    "learning_rate": ["0", "0.01", "1000", "-1", "nan"],
    "lr_schedule": ["linear", "constant", "x"],
    "warmup_ratio": ["0", "1"],
    "weight_decay": ["0", "1e30", "1"],
    "max_grad_norm": ["0", "1e-9"],
    "validation_fraction": ["0", "0.5", "0.9"],
    "seed": ["4294967295", "-1"],
}
TUNE = VALUES | {
    "objective": ["dpo", "sft", "x"],
    "method": ["full", "lora"],
    "lora_rank": ["1", "64", "0"],
    "lora_alpha": ["0", "1e30"],
    "lora_dropout": ["0", "0.99"],
    "lora_targets": ["q_proj", "lm_head", "nothing", "q_proj,v_proj"],
    "merge": ["true", "false"],
    "beta": ["0", "1e30", "10"],
    "max_length": ["2", "16", "256", "257"],
    "too_long": ["cut", "split", "skip", "refuse"],
    "packing": ["true"],
    "loss_on": ["all", "completion"],
    "prompt_format": ["chat"],
    "bf16": ["true"],
    "gradient_checkpointing": ["true"],
    "sharding": ["shard", "replicate", "x"],
}
FROM_SCRATCH = VALUES | {
    "optimizer": ["adafactor", "sgd", "adamw"],
    "block_size": ["2", "8", "4096"],
    "n_layer": ["1", "3"],
    "n_head": ["1", "3", "2"],
    "n_embd": ["1", "8", "12"],
    "dropout": ["0", "0.99"],
    "amp": ["true"],
}


def said(draw: random.Random) -> str:
    return " ".join(draw.choices(WORDS[: draw.choice([4, 4, 4, 6, len(WORDS)])], k=draw.choice([1, 3, 6]))) or "a"


def line(kind: str, draw: random.Random) -> dict[str, Any]:
    """One example of a kind."""
    roles = draw.choice(
        [["user", "assistant"]] * 90 + [["system", "user", "assistant"]] * 8 + [["user"], ["robot", "assistant"]]
    )
    turns = [{"role": role, "content": said(draw)} for role in roles * draw.choice([1, 1, 2])]
    return {
        "messages": {"messages": turns},
        "prompt": {"prompt": said(draw), "completion": said(draw)},
        "text": {"text": said(draw)},
        "pair": {"prompt": said(draw), "chosen": said(draw), "rejected": said(draw)},
        "turns": {"prompt": turns[:-1], "completion": turns[-1:]},
    }[kind]


def instructions(draw: random.Random) -> tuple[mutants.Files, list[str]]:
    """Lines, the model of this folder's parent, rarely with one of its files damaged, and arguments."""
    given = mutants.chosen(TUNE, draw)
    pairs = "dpo" in given
    kinds = ["pair"] if pairs else draw.choice([["messages"], ["prompt"], ["text"], ["turns"], ["messages", "text"]])
    made = [line(draw.choice(kinds), draw) for _ in range(draw.choice([1, 4, 12]))]
    if draw.random() < 0.05:
        made.append(line("prompt" if pairs else "pair", draw))
    files = {"train/a.jsonl": as_lines(made, draw)}
    if draw.random() < 0.15:
        files |= {f"model/{path.name}": path.read_bytes() for path in Path("../model").iterdir()}
        name = draw.choice(sorted(name for name in files if name.startswith("model/")))
        files[name] = mutants.damaged(files[name], draw)
    model = "model" if len(files) > 1 else "../model"
    settled = ["--epochs", "0.5", "--max_steps", "2", "--batch_size", "2", "--max_length", "64", "--model_dir", "made"]
    return files, ["--train", "train", "--model", model, "--device", "cpu", *settled, *given]


def texts(draw: random.Random) -> tuple[mutants.Files, list[str]]:
    """Files of text and arguments."""
    files = {f"train/{at}.txt": "\n".join(said(draw) for _ in range(draw.choice([1, 9, 60]))).encode() for at in range(2)}
    small = [
        "--n_layer",
        "1",
        "--n_embd",
        "8",
        "--n_head",
        "2",
        "--block_size",
        "8",
        "--max_steps",
        "3",
        "--model_dir",
        "made",
    ]
    return mutants.spoil(files, draw), ["--train", "train", "--device", "cpu", *small, *mutants.chosen(FROM_SCRATCH, draw)]


def finite() -> bool:
    """Whether the model in ./made gives numbers in the libraries' own hands."""
    import torch
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM

    adapter = Path("made/adapter_config.json").exists()
    model = (AutoPeftModelForCausalLM if adapter else AutoModelForCausalLM).from_pretrained("made").eval()
    with torch.no_grad():
        return bool(torch.isfinite(model(torch.zeros(1, 2, dtype=torch.long)).logits).all())


def work(group: int) -> None:
    """What the process of a group does, in a folder of its own: group 0 fine-tunes, group 1 trains from scratch."""
    import sys

    from support import programs

    if group:
        mutants.every("language_model", texts, finite, "made")
        return
    sys.path.insert(0, str(programs.ENTRYPOINTS))
    import demo_data  # type: ignore[import-not-found]

    demo_data.write_model(Path("model"), [" ".join(WORDS[:4])] * 9, width=16)
    mutants.every("fine_tune", instructions, finite, "made")


@pytest.mark.parametrize("group", [0, 1], ids=["fine_tune", "language_model"])
def test_a_mutant_trains_or_is_refused_in_one_line(group: int, tmp_path: Path) -> None:
    needs("torch", "numpy", "transformers", "accelerate", "peft", "jinja2")
    mutants.start("test_language_mutants", group, tmp_path)
