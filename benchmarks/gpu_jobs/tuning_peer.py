"""Fine-tunes a model with TRL's SFTTrainer, on the data and settings that `fine_tune.py` is given; `--make` writes both."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from _device import CUDA, tell

EXAMPLES = 700


def answers(size: int) -> Iterator[str]:
    """Pieces of the standard library's own source, of so many characters."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text = path.read_text(errors="replace")
        yield from (text[at : at + size] for at in range(0, len(text) - size, size))


def make(folder: Path, width: int, layers: int, characters: int) -> None:
    """The data, and a Llama with random weights."""
    import demo_data
    from transformers import AutoConfig, LlamaForCausalLM

    texts = [text for text, _ in zip(answers(characters), range(EXAMPLES), strict=False)]
    for channel in ("train", "validation"):
        (folder / channel).mkdir(parents=True)
        own = texts[:-64] if channel == "train" else texts[-64:]
        lines = [{"prompt": "Go on: " + text[:40], "completion": text[40:]} for text in own]
        (folder / channel / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    demo_data.write_model(folder / "model", texts[:500])
    sizes = {"hidden_size": width, "intermediate_size": 3 * width, "num_hidden_layers": layers}
    heads = max(1, width // 64)
    more = {
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": min(64, width),
        "initializer_range": 0.02,
    }
    config = AutoConfig.from_pretrained(folder / "model", **sizes, **more, max_position_embeddings=1024)
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder / "model")


def tune(folder: Path, given: argparse.Namespace) -> None:
    """One training; tells its losses, and what a second gave."""
    from datasets import Dataset, disable_progress_bars
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    disable_progress_bars()
    lora = given.method == "lora"
    tokenizer: Any = AutoTokenizer.from_pretrained(folder / "model")
    tokenizer.pad_token = tokenizer.eos_token
    settings = SFTConfig(
        output_dir=str(folder / "peer"), max_steps=given.max_steps, per_device_train_batch_size=given.batch_size,
        learning_rate=given.learning_rate, lr_scheduler_type="cosine", warmup_steps=0, weight_decay=0.0, logging_steps=1,
        save_strategy="no", seed=1, max_length=given.max_length, bf16=CUDA, use_cpu=not CUDA, gradient_checkpointing=False,
        report_to=[], disable_tqdm=True, optim="adamw_torch", completion_only_loss=True,
    )  # fmt: skip
    adapter = LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear")
    dtype = torch.bfloat16 if lora and CUDA else torch.float32
    lines = (folder / "train/lines.jsonl").read_text().splitlines()
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder / "model", dtype=dtype),
        args=settings,
        train_dataset=Dataset.from_list([json.loads(line) for line in lines]),
        processing_class=tokenizer,
        peft_config=adapter if lora else None,
    )
    began = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.train()
    seconds = time.perf_counter() - began
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    peak = torch.cuda.max_memory_allocated() / 2**20 if CUDA else 0
    tell(losses=losses, rate=given.batch_size * len(losses) / seconds, peak_mib=peak)


def main() -> None:
    """One job."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--make", action="store_true")
    for name, value in (("width", 1024), ("layers", 12), ("characters", 1600), ("max_steps", 40), ("batch_size", 16)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--max_length", type=int, default=512)
    parser.add_argument("--learning_rate", type=float, default=1e-4)
    parser.add_argument("--method", choices=("full", "lora"), default="full")
    given = parser.parse_args()
    if given.make:
        make(given.folder, given.width, given.layers, given.characters)
    else:
        tune(given.folder, given)


if __name__ == "__main__":
    main()
