"""Direct preference optimization: learns to prefer one answer to another, without a model of rewards.

The loss is that of Rafailov et al., "Direct Preference Optimization" (2023), equation 7: -log sigmoid(beta * margin), with
the margin (log p(chosen) - log p0(chosen)) - (log p(rejected) - log p0(rejected)), where p0 is the model at the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from _tuner import Tuner
from _turns import IGNORED, Row, Rows, collate
from transformers import TrainerCallback


class Pairs(Rows):
    """Pairs of rows, chosen and rejected; references: log p0 of both, float32 of shape (N, 2), once they are known."""

    references: torch.Tensor

    def __getitem__(self, position: int) -> tuple[Row, Row, torch.Tensor]:
        return (*self.rows[position], self.references[position])


def collate_pairs(pairs: Sequence[tuple[Row, Row, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """A batch of B pairs: input_ids, labels and attention_mask (2 B, T), the chosen ones first; references (B, 2)."""
    sides: list[Any] = [pair[side] for side in (0, 1) for pair in pairs]
    batch = collate(sides)
    return {**batch, "references": torch.stack([pair[2] for pair in pairs])}


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

    def margins(self, model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """How much more the chosen answers have gained than the rejected ones, times beta: shape (B)."""
        gained = log_likelihoods(model, batch).reshape(2, -1) - batch["references"].T
        return self.beta * (gained[0] - gained[1])

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        """The mean loss of a batch."""
        loss = -torch.nn.functional.logsigmoid(self.margins(model, inputs)).mean()
        return (loss, {}) if return_outputs else loss

    def sums(self, batch: dict[str, torch.Tensor]) -> dict[str, float]:
        """Of the loss, the margins, and the pairs that are told apart."""
        margins = self.margins(self.model, batch).double()
        return {
            "loss": -torch.nn.functional.logsigmoid(margins).sum().item(),
            "margin": margins.sum().item(),
            "accuracy": float((margins > 0).sum()),
            "count": len(margins),
        }


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
