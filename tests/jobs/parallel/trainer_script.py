"""A user's script: GPT-2 trained by transformers' Trainer. It names neither Amazon's library nor ours."""

import json
import os

import torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainerCallback, TrainingArguments


class Numbers(torch.utils.data.Dataset):
    def __init__(self, count: int) -> None:
        self.ids = torch.randint(0, 64, (count, 12), generator=torch.Generator().manual_seed(3))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict:
        labels = self.ids[index].clone()
        labels[0] = -100  # predicted by nothing: it must not count
        labels[12 - index % 7 :] = -100  # as padding is: microbatches have other numbers of tokens that count
        return {"input_ids": self.ids[index], "labels": labels}


class Losses(TrainerCallback):
    def __init__(self) -> None:
        self.losses = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            self.losses.append(logs["loss"])


def main() -> None:
    (arguments,) = HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses()
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=4, n_head=2, resid_pdrop=0, embd_pdrop=0,
                        attn_pdrop=0, bos_token_id=0, eos_token_id=0)  # fmt: skip
    losses = Losses()
    trainer = Trainer(
        model=GPT2LMHeadModel(config), args=arguments, train_dataset=Numbers(64), eval_dataset=Numbers(16),
        callbacks=[losses],
    )  # fmt: skip
    trainer.train()
    generated = trainer.model.generate(torch.arange(8).view(2, 4), max_new_tokens=6, do_sample=False)
    result = {"losses": losses.losses, "eval": trainer.evaluate()["eval_loss"], "trainer": str(arguments.parallel_mode),
              "generated": generated.tolist()}  # fmt: skip
    with open(f"{arguments.output_dir}/result{os.environ.get('RANK', '')}.json", "w") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main()
