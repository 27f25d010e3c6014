"""A user's script: GPT-2 trained by transformers' Trainer. It names neither Amazon's library nor ours."""

import json
import os
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Numbers(torch.utils.data.Dataset):
    def __init__(self, count: int) -> None:
        self.ids = torch.randint(0, 64, (count, 12), generator=torch.Generator().manual_seed(3))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict:
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


class Losses(TrainerCallback):
    def __init__(self) -> None:
        self.losses = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            self.losses.append(logs["loss"])


def main(output: str) -> None:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=4, n_head=2, resid_pdrop=0, embd_pdrop=0,
                        attn_pdrop=0, bos_token_id=0, eos_token_id=0)  # fmt: skip
    losses = Losses()
    arguments = TrainingArguments(
        output_dir=output, per_device_train_batch_size=8, per_device_eval_batch_size=8, max_steps=6, logging_steps=1,
        learning_rate=1e-2, lr_scheduler_type="constant", save_steps=3, report_to=[], seed=1, max_grad_norm=0.5,
        eval_strategy="steps", eval_steps=6, remove_unused_columns=False, disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(
        model=GPT2LMHeadModel(config), args=arguments, train_dataset=Numbers(64), eval_dataset=Numbers(16),
        callbacks=[losses],
    )  # fmt: skip
    trainer.train()
    result = {"losses": losses.losses, "eval": trainer.evaluate()["eval_loss"]}
    with open(f"{output}/result{os.environ.get('RANK', '')}.json", "w") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main(sys.argv[1])
