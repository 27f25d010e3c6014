"""The Trainer of Transformers for tuned models: a measure of its own, and checkpoints that say what they are of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from _common import Problem, World, write_json
from _sharding import is_sharded, prepare_for
from _trainer import FiniteTrainer, Reporter, perplexity
from _turns import IGNORED
from torch.utils.data import Subset

FACTS = "fine_tune.json"  # in a checkpoint: what must be the same for going on from it
MEASURES = ("loss", "accuracy", "margin", "reward")  # of an evaluation; TRL's has more


class Tuner(FiniteTrainer):
    """The Trainer of one job.

    world: the ranks. facts: what a checkpoint says of the job, with `sharding`. share: rows that a rank measures at a time.
    """

    model: Any
    optimizer: Any
    control: Any

    def __init__(self, world: World, facts: dict[str, Any], share: int, **arguments: Any) -> None:
        self.facts, self.share = facts, share
        super().__init__(world, **arguments)

    def create_accelerator_and_postprocess(self) -> None:
        """Makes the Accelerator, which shards the model if the job is to."""
        super().create_accelerator_and_postprocess()
        if self.facts["sharding"] == "shard":
            prepare_for(self.accelerator)
            self.is_fsdp_enabled = True

    def place(self) -> None:
        """Shards the model, where the Trainer has not: it does so only for a training that is not over. Collective."""
        if self.is_fsdp_enabled and not is_sharded(self.model):
            self.create_optimizer()
            self.model, self.optimizer = self.accelerator.prepare(self.model, self.optimizer)
            self.model_wrapped = self.model

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        self.place()
        super()._load_from_checkpoint(resume_from_checkpoint, model)

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Measures each row once, whatever the number of ranks and the size of batches. Collective; raises Problem."""
        metrics = {
            f"{metric_key_prefix}_{name}": value for name, value in self.measure(eval_dataset or self.eval_dataset).items()
        }
        if not all(map(math.isfinite, metrics.values())):
            raise Problem(
                f"{metric_key_prefix}_loss is not a finite number at step {self.state.global_step}: lower learning_rate"
            )
        self.log(dict(metrics))  # it adds the epoch
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def measure(self, rows: Any) -> dict[str, float]:
        """The mean over all rows of what `sums` gives, by name. Collective."""
        training = self.model.training
        self.model.eval()
        own: dict[str, float] = {}
        mine = range(self.world.rank, len(rows), self.world.size)
        for chosen in self.batches(mine, len(rows)):
            batch = self.data_collator([rows[index] for index in chosen or [0]])
            with torch.no_grad(), self.accelerator.autocast():
                sums = self.sums(self.on_device(batch))
            for name, value in sums.items() if chosen else ():
                own[name] = own.get(name, 0.0) + value
        self.model.train(training)
        totals: dict[str, float] = {}
        for sums in self.world.gather(own):
            for name, value in sums.items():
                totals[name] = totals.get(name, 0.0) + value
        if not all(map(math.isfinite, totals.values())):
            raise Problem(f"the loss is not a finite number after step {self.state.global_step}: lower learning_rate")
        count = totals.pop("count")
        return {name: value / count for name, value in totals.items()}

    def batches(self, mine: Sequence[int], count: int) -> Iterator[Sequence[int]]:
        """`mine` by `share`; some empty ones follow where the ranks compute together, so that all have equally many.

        mine: positions that this rank measures, of `count` that all ranks do.
        """
        most = math.ceil(count / self.world.size) if is_sharded(self.model) else len(mine)
        for start in range(0, most, self.share):
            yield mine[start : start + self.share]

    def require_sound(self) -> None:
        """Raises Problem if the model's loss is not a number even on what it was trained on."""
        self.measure(Subset(self.train_dataset, range(min(len(self.train_dataset), self.world.size * self.share))))

    def on_device(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The batch where the model is."""
        return {name: value.to(self.args.device) for name, value in batch.items()}

    def sums(self, batch: dict[str, torch.Tensor]) -> dict[str, float]:
        """Sums over a batch, and the `count` that they are divided by: here of the learnt tokens."""
        labels = batch.pop("labels")[:, 1:]
        logits = self.model(**batch).logits[:, :-1].float()
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        return {"loss": loss.item(), "count": int((labels != IGNORED).sum())}

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Saves the weights of a checkpoint, unless they are sharded (the Trainer saves those later), and what it is of."""
        super().save_model(output_dir, _internal_call)
        if self.args.should_save:
            write_json(Path(output_dir or self.args.output_dir) / FACTS, self.facts)


class TuningReporter(Reporter):
    """Prints what `Tuner.evaluate` measures: of the channel validation, or of test."""

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        found = kwargs["metrics"]
        for name, value in found.items():
            part, _, measure = name.partition("_")
            part = {"eval": "validation"}.get(part, part)
            if measure in MEASURES:
                self.report(f"{part}_{measure}", value, state)
            if measure == "loss" and len(found) == 1:  # of tokens alone
                self.report(f"{part}_perplexity", perplexity(value), state)
