"""GRPO: learns from what the user's functions say of its answers. TRL's trainer, our reading and checkpoints.

Of several answers to one prompt, each is made likelier by how far its reward is above their mean (Shao et al.,
"DeepSeekMath" (2024), equation 3; TRL's loss is `dapo`, which counts each token alike).
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy
import torch
from _common import Problem, World
from _instructions import Prompt
from _rewards import load
from _trainer import settings
from _tuner import Tuner
from _turns import Encoder, Row, Rows
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


class Prompts(Rows):
    """Prompts as rows, none of whose tokens is learnt. data: as TRL takes them."""

    def __init__(self, examples: Sequence[Prompt], encoder: Encoder, hp: Namespace, length: int) -> None:
        encoder.saw_chat |= any(not isinstance(one.given, str) for one in examples)
        given = [_turns(one) if encoder.saw_chat else one for one in examples]  # TRL takes all to be as the first is
        super().__init__([_row(one, encoder, length - hp.max_new_tokens) for one in given])
        self.data = _as_data(given) if given else None

    def said(self) -> str:
        return f"{self.tokens()} tokens of prompts"


def _turns(example: Prompt) -> Prompt:
    """With a prompt that is a string as the user's turn."""
    given = example.given
    return replace(example, given=[{"role": "user", "content": given}]) if isinstance(given, str) else example


def _as_data(examples: Sequence[Prompt]) -> Dataset:
    """Examples with their fields as they are: Arrow would drop, change or refuse some, so it holds places alone."""
    names = dict.fromkeys(name for one in examples for name in one.columns)
    rows = [{**dict.fromkeys(names), **one.columns, "prompt": one.given} for one in examples]

    def chosen(batch: dict[str, list[int]]) -> dict[str, list[Any]]:
        return {name: [rows[place][name] for place in batch["place"]] for name in (*names, "prompt")}

    return Dataset.from_dict({"place": list(range(len(rows)))}).with_transform(chosen)


def _row(example: Prompt, encoder: Encoder, most: int) -> Row:
    given = example.given
    chat = not isinstance(given, str)
    text = given if isinstance(given, str) else encoder.render(given, True, example.where)
    tokens = encoder.tokenizer(text, add_special_tokens=not chat)["input_ids"]
    if not 0 < len(tokens) <= most:
        raise Problem(
            f"{example.where} has {len(tokens)} tokens, and with max_new_tokens the model takes {max(most, 0)} of a prompt"
        )
    return Row(numpy.asarray(tokens, numpy.int32), numpy.zeros(len(tokens), bool))


class Rewarded(Tuner, GRPOTrainer):
    """The Trainer of a job of grpo."""

    @classmethod
    def of(
        cls, hp: Namespace, world: World, facts: dict[str, Any], rows: dict[str, Prompts], share: int, **given: Any
    ) -> Rewarded:
        """The trainer of hyperparameters; given: as `trainer_of` has them."""
        args = settings(
            hp, world, share, **given.pop("settings"), kind=GRPOConfig, beta=hp.beta, num_generations=hp.generations,
            max_completion_length=hp.max_new_tokens, temperature=1.0 if hp.temperature is None else hp.temperature,
            gradient_checkpointing=False,
        )  # fmt: skip
        data = {part: each.data for part, each in rows.items()}
        return cls(
            world, facts, share, args=args, reward_funcs=load(hp.rewards), train_dataset=data["train"],
            eval_dataset=data["validation"], **given,
        )  # fmt: skip

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Answers each prompt and judges the answers, by the same random numbers each time. Collective."""
        data = getattr(eval_dataset, "data", eval_dataset)
        # Training shall go on as if nobody had asked.
        with torch.random.fork_rng([self.args.device] * (self.args.device.type == "cuda")):
            torch.manual_seed(self.args.seed + self.world.rank)
            found: dict[str, float] = GRPOTrainer.evaluate(self, data, ignore_keys, metric_key_prefix)
        return found

    def require_sound(self) -> None:
        """A loss that is not a number has ended the training already."""

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """None is written."""
