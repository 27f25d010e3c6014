"""Learns to prefer one answer to another (DPO, ORPO, reward models), or from opinions of single answers (KTO).

Each is a loss over rows that two sides of a batch hold. With p0, the model at the start, and p/p0 the gain of an answer:

- DPO (Rafailov et al., 2023, equation 7): -log sigmoid(beta * (log gain of the chosen - log gain of the rejected)).
- ORPO (Hong et al., 2024, equations 6 and 7): the loss of the chosen answer, less beta * log sigmoid of the log of its odds
  over those of the rejected, each by the mean over an answer's tokens. There is no p0.
- Reward models (Ouyang et al., 2022, equation 1): -log sigmoid(score of the chosen - score of the rejected).
- KTO (Ethayarajh et al., 2024, equation 7): 1 - sigmoid(beta * (log gain - z)) of a good answer, and 1 - sigmoid(beta * (z -
  log gain)) of a bad one. z, from 0, is the mean log gain of answers that belong to other prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
import torch
from _tuner import Tuner
from _turns import IGNORED, Row, Rows, collate
from transformers import TrainerCallback


class Pairs(Rows):
    """Pairs of rows, chosen and rejected; references: log p0 of both, float32 of shape (N, 2), once they are known."""

    def __init__(self, rows: Sequence[Any]) -> None:
        super().__init__(rows)
        self.references = torch.zeros(len(rows), 2)

    def sides(self, position: int) -> tuple[Row, Row]:
        chosen, rejected = self.rows[position]
        return chosen, rejected

    def __getitem__(self, position: int) -> tuple[Row, Row, torch.Tensor]:
        return (*self.sides(position), self.references[position])


class Opinions(Pairs):
    """Rows with an opinion of each; the second side is its prompt with the answer of the row before."""

    def sides(self, position: int) -> tuple[Row, Row]:
        row, other = self.rows[position], self.rows[position - 1]
        start, begin = int(row.learnt.argmax()), int(other.learnt.argmax())
        most = slice(max(len(row), len(other)))  # the model takes both
        parts = ((row.tokens[:start], other.tokens[begin:]), (row.learnt[:start], other.learnt[begin:]))
        tokens, learnt = (numpy.concatenate(both)[most] for both in parts)
        return row, Row(tokens, learnt)


def collate_pairs(pairs: Sequence[tuple[Row, Row, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """A batch of B pairs: input_ids, labels, attention_mask (2 B, T), first sides before; references (B, 2); good (B)."""
    sides: list[Any] = [pair[side] for side in (0, 1) for pair in pairs]
    good = torch.tensor([pair[0].good for pair in pairs])
    return {**collate(sides), "references": torch.stack([pair[2] for pair in pairs]), "good": good}


class Preferrer(Tuner):
    """The Trainer of a job that learns from pairs. beta: of the loss. pairs: all that it will need the start's p0 of."""

    def __init__(self, *arguments: Any, beta: float, pairs: Sequence[Pairs], **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.beta, self.without_reference = beta, list(pairs)
        self.model_accepts_loss_kwargs = False  # the loss is a mean over pairs, not over tokens
        self.add_callback(_BeforeTraining(self))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        self.place()
        self.refer_all()
        super()._load_from_checkpoint(resume_from_checkpoint, model)

    def refer_all(self) -> None:
        """Lets the model as it is now be p0 of all pairs, once. Collective."""
        for pairs in self.without_reference:
            self.refer(pairs)
        self.without_reference = []

    def refer(self, pairs: Pairs) -> None:
        """Lets the model as it is now, without what dropout does, be p0 of these pairs. Collective."""
        training = self.model.training
        self.model.eval()
        pairs.references = torch.zeros(len(pairs), 2)
        own: dict[int, list[float]] = {}
        mine = range(self.world.rank, len(pairs), self.world.size)
        for chosen in self.batches(mine, len(pairs)):
            batch = self.on_device(self.data_collator([pairs[index] for index in chosen or [0]]))
            with torch.no_grad(), self.accelerator.autocast():
                found = log_likelihoods(self.model, batch).reshape(2, -1).T.tolist()
            own |= dict(zip(chosen, found, strict=False))
        for part in self.world.gather(own):
            for index, both in part.items():
                pairs.references[index] = torch.tensor(both)
        self.model.train(training)

    def judged(self, model: Any, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Of each pair the loss, the margin, and whether it is told apart: shape (B)."""
        raise NotImplementedError

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        """The mean loss of a batch."""
        loss = self.judged(model, inputs)["loss"].mean()
        return (loss, {}) if return_outputs else loss

    def sums(self, batch: dict[str, torch.Tensor]) -> dict[str, float]:
        """Of the loss, the margins, and the pairs that are told apart."""
        judged = self.judged(self.model, batch)
        return {name: value.double().sum().item() for name, value in judged.items()} | {"count": len(judged["loss"])}


class DirectPreferrer(Preferrer):
    """DPO."""

    def judged(self, model: Any, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        gained = log_likelihoods(model, batch).reshape(2, -1) - batch["references"].T
        return _told_apart(self.beta * (gained[0] - gained[1]))


class OddsPreferrer(Preferrer):
    """ORPO."""

    def refer_all(self) -> None:
        """There is no reference."""

    def judged(self, model: Any, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        lengths = (batch["labels"][:, 1:] != IGNORED).sum(1)
        logs = (log_likelihoods(model, batch) / lengths).reshape(2, -1)
        odds = logs - torch.log(-torch.expm1(logs.clamp(max=-1e-6)))  # log p - log(1 - p)
        judged = _told_apart(odds[0] - odds[1])
        return {**judged, "loss": self.beta * judged["loss"] - logs[0]}


class Scorer(Preferrer):
    """A reward model: one number for a whole text."""

    def refer_all(self) -> None:
        """There is no reference."""

    def judged(self, model: Any, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        scores = scores_of(model, batch).reshape(2, -1)
        return _told_apart(scores[0] - scores[1])


class Critic(Preferrer):
    """KTO."""

    def judged(self, model: Any, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        own, others = (
            {name: batch[name].chunk(2)[side] for name in ("input_ids", "labels", "attention_mask")} for side in (0, 1)
        )
        with torch.no_grad():
            moved = (log_likelihoods(model, others) - batch["references"][:, 1]).mean()
        if model.training:  # ranks measure different numbers of batches, and train on equally many
            moved = self.accelerator.gather(moved).mean()
        gained = log_likelihoods(model, own) - batch["references"][:, 0]
        margin = self.beta * (gained - moved.clamp(min=0)) * torch.where(batch["good"], 1, -1)
        return {"loss": 1 - torch.sigmoid(margin), "margin": margin, "accuracy": (gained > 0) == batch["good"]}


def _told_apart(margin: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"loss": -torch.nn.functional.logsigmoid(margin), "margin": margin, "accuracy": margin > 0}


class _BeforeTraining(TrainerCallback):
    """Finds the references once the model lies where it is trained."""

    def __init__(self, preferrer: Preferrer) -> None:
        self.preferrer = preferrer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.preferrer.refer_all()


def log_likelihoods(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """log p of what is learnt of each row, summed over its tokens: float32 of shape (rows)."""
    labels = batch["labels"][:, 1:]
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1].float()
    losses = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none"
    )
    return -losses.reshape(labels.shape).sum(1)


def scores_of(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """What a reward model says of each row: float32 of shape (rows)."""
    padded = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, model.config.get_text_config().pad_token_id)
    scores: torch.Tensor = model(input_ids=padded, attention_mask=batch["attention_mask"]).logits
    return scores.float().reshape(-1)
