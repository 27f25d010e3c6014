"""transformers' Trainer as its own documentation shows it: a small GPT-2 learns to count.

Not a line of this script knows trainshed. The job file says `checkpoints: {auto: true}`, so the Trainer saves when the job
is interrupted, and resumes from the newest checkpoint that is whole.
"""

import argparse
import os

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Counting(torch.utils.data.Dataset):
    """Sequences of 16 successive numbers below 64: the model learns what comes next."""

    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        numbers = (torch.arange(16) + index) % 64
        return {"input_ids": numbers, "labels": numbers}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-steps", type=int, default=200)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    options = parser.parse_args()

    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    arguments = TrainingArguments(
        output_dir=os.environ["SM_CHECKPOINT_DIR"],
        max_steps=options.max_steps,
        learning_rate=options.learning_rate,
        per_device_train_batch_size=16,
        logging_steps=50,
        save_steps=100,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Counting())
    result = trainer.train()
    if trainer.is_world_process_zero():
        print(f"metric train_loss={result.training_loss:.4f} step={result.global_step}", flush=True)
        model.save_pretrained(os.environ["SM_MODEL_DIR"])


if __name__ == "__main__":
    main()
