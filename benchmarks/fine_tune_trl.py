"""Fine-tunes the demo model with entrypoints/fine_tune.py and with TRL, on the same data and settings, and compares losses.

    pip install trl datasets peft        # TRL is not among what the project installs
    python benchmarks/fine_tune_trl.py [full|lora|dpo] [--seeds 3]

Prints a line a seed: the losses of the first and the last steps, and for both models that of the validation data, as
fine_tune.py measures it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "toolkit"), str(ROOT / "entrypoints")]
os.environ["HF_HUB_OFFLINE"] = "1"

import _tuning  # noqa: E402 (after the path is set)
import demo_data  # noqa: E402
import fine_tune  # noqa: E402
import torch  # noqa: E402
from _pretrained import load_adapter, load_model, load_tokenizer  # noqa: E402
from _turns import OUR_TEMPLATE, Encoder, Rows, collate  # noqa: E402

BATCH, EPOCHS, LENGTH, LAST = 8, 5, 128, 10
RATES = {"full": 0.005, "lora": 0.02, "dpo": 0.001}
# What TRL needs to see what an assistant says: the same text as ours, with marks.
MARKED = OUR_TEMPLATE.replace("FIRST", "false").replace(
    "{{ '<|' + message['role'] + '|>\n' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n' }}",
    "{{ '<|' + message['role'] + '|>\n' }}{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + eos_token + '\n' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '\n' }}{% endif %}",
)


def ours(data: Path, target: Path, method: str, seed: int) -> list[float]:
    """The losses of the steps of fine_tune.py."""
    given = {
        "train": data / "train", "validation": data / "validation", "model": data / "model", "model_dir": target,
        "output_data_dir": target, "method": "lora" if method == "lora" else "full", "prompt_format": "chat",
        "objective": "dpo" if method == "dpo" else "sft", "lora_dropout": 0, "batch_size": BATCH, "epochs": EPOCHS,
        "seed": seed, "learning_rate": RATES[method], "warmup_ratio": 0, "log_interval": 1, "max_length": LENGTH,
        "device": "cpu",
    }  # fmt: skip
    hp = fine_tune.hyperparameters([part for name, value in given.items() for part in (f"--{name}", str(value))])
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        world = fine_tune.World(0, 1, 0, torch.device("cpu"))
        _tuning.train(hp, str(data / "model"), fine_tune.load_data(hp), world)
    return [float(loss) for loss in re.findall(r"train_loss=(\S+)", output.getvalue())]


def theirs(data: Path, target: Path, method: str, seed: int) -> list[float]:
    """The losses of the steps of TRL's SFTTrainer."""
    from datasets import Dataset, disable_progress_bars
    from peft import LoraConfig
    from trl import SFTConfig, SFTTrainer

    disable_progress_bars()
    lines = (data / "train/questions.jsonl").read_text().splitlines()
    tokenizer = load_tokenizer(str(data / "model"))
    tokenizer.chat_template, tokenizer.pad_token = MARKED, tokenizer.eos_token
    settings = SFTConfig(
        output_dir=str(target), num_train_epochs=EPOCHS, per_device_train_batch_size=BATCH, learning_rate=RATES[method],
        lr_scheduler_type="cosine", warmup_steps=0, weight_decay=0.0, logging_steps=1, save_strategy="no", seed=seed,
        max_length=LENGTH, assistant_only_loss=True, use_cpu=True, bf16=False, gradient_checkpointing=False, report_to=[],
        disable_tqdm=True, optim="adamw_torch",
    )  # fmt: skip
    adapter = LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear")
    trainer = SFTTrainer(
        model=load_model(str(data / "model"), torch.float32),
        args=settings,
        train_dataset=Dataset.from_list([json.loads(line) for line in lines]),
        processing_class=tokenizer,
        peft_config=adapter if method == "lora" else None,
    )
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.train()
    trainer.model.save_pretrained(target)
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def theirs_dpo(data: Path, target: Path, method: str, seed: int) -> list[float]:
    """The losses of the steps of TRL's DPOTrainer, all weights."""
    from datasets import Dataset, disable_progress_bars
    from trl import DPOConfig, DPOTrainer

    disable_progress_bars()
    tokenizer = load_tokenizer(str(data / "model"))
    tokenizer.chat_template, tokenizer.pad_token = OUR_TEMPLATE.replace("FIRST", "false"), tokenizer.eos_token
    pairs = [json.loads(line) for line in (data / "train/questions.jsonl").read_text().splitlines()]
    settings = DPOConfig(
        output_dir=str(target), num_train_epochs=EPOCHS, per_device_train_batch_size=BATCH, learning_rate=RATES[method],
        lr_scheduler_type="cosine", warmup_steps=0, weight_decay=0.0, logging_steps=1, save_strategy="no", seed=seed,
        max_length=LENGTH, use_cpu=True, bf16=False, gradient_checkpointing=False, report_to=[], disable_tqdm=True,
        optim="adamw_torch", beta=0.1,
    )  # fmt: skip
    roles = {"prompt": "user", "chosen": "assistant", "rejected": "assistant"}
    trainer = DPOTrainer(
        model=load_model(str(data / "model"), torch.float32),
        args=settings,
        train_dataset=Dataset.from_list(
            [{name: [{"role": role, "content": pair[name]}] for name, role in roles.items()} for pair in pairs]
        ),
        processing_class=tokenizer,
    )
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.train()
    trainer.model.save_pretrained(target)
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def validation(data: Path, target: Path, method: str) -> float:
    """The loss of a tuned model, by tokens; for dpo, of the chosen answers."""
    model: Any = load_model(str(data / "model" if method == "lora" else target), torch.float32)
    model = (load_adapter(str(target), model) if method == "lora" else model).eval()
    objective = "dpo" if method == "dpo" else "sft"
    examples = fine_tune._instructions.load(str(data / "validation"), "validation", objective, "chat")
    examples = [getattr(one, "chosen", one) for one in examples]
    rows = Rows(list(Encoder(load_tokenizer(str(data / "model")), "completion").rows(examples)))
    with torch.no_grad():
        batch = collate(rows.rows)
        return model(**batch, num_items_in_batch=torch.tensor(rows.learnt())).loss.item()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method", nargs="?", choices=tuple(RATES), default="full")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["HF_DATASETS_CACHE"] = f"{temporary}/cache"
        data = Path(temporary) / "data"
        demo_data.write_instructions(data, preferences=given.method == "dpo")
        for seed in range(given.seeds):
            row = f"{given.method} seed {seed}:"
            for name, tune in (("fine_tune", ours), ("TRL", theirs_dpo if given.method == "dpo" else theirs)):
                target = Path(temporary) / f"{name}-{seed}"
                os.environ["SM_CHECKPOINT_DIR"] = f"{target}-checkpoints"  # absent
                began = time.perf_counter()
                losses = tune(data, target, given.method, seed)
                seconds = time.perf_counter() - began
                row += (
                    f"  {name}: first {losses[0]:.4f}, last {LAST} {sum(losses[-LAST:]) / LAST:.4f},"
                    f" validation {validation(data, target, given.method):.4f}, {len(losses)} steps, {seconds:.1f} s"
                )
            print(row, flush=True)


if __name__ == "__main__":
    main()
