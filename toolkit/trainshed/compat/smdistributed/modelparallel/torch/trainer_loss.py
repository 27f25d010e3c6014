"""The loss of transformers' Trainer in a pipeline: the mean over the tokens of the whole batch, as without one.

On its path for Amazon's library the Trainer forgets `num_items_in_batch`, the number of tokens that count in a batch of all
replicas and accumulated steps: each microbatch would take the mean over its own tokens. Models that take that number get
it here, so divided that the sum over microbatches, replicas and accumulated steps is the mean. The Trainer does not call
`compute_loss` on that path either: a script that has changed it would train with another loss than it says.
"""

from __future__ import annotations

from typing import Any

import torch

from trainshed.parallel.ground.errors import NotServed
from trainshed.parallel.groups import dp_size, num_microbatches

from .ranks import CommGroup, allgather


def install(trainer: Any) -> None:
    """Gives the class `Trainer` the right count."""
    count, train, predict, loss = (
        trainer._get_num_items_in_batch,
        trainer.training_step,
        trainer.prediction_step,
        trainer.compute_loss,
    )

    def here(self: Any, batches: list[Any], device: Any) -> Any:
        everywhere, self.args.average_tokens_across_devices = self.args.average_tokens_across_devices, False
        try:
            return count(self, batches, device)
        finally:
            self.args.average_tokens_across_devices = everywhere

    def _get_num_items_in_batch(self: Any, batch_samples: list[Any], device: Any) -> Any:
        """Tokens that count, of all replicas, divided by their number: gradients are averaged over replicas."""
        items = here(self, batch_samples, device)
        if items is None or not self.args.average_tokens_across_devices:
            return items
        everyone = sum(allgather(int(items), CommGroup.DP_GROUP))
        return torch.tensor(everyone / dp_size(), dtype=torch.float32, device=device)

    def training_step(self: Any, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Any:
        if type(self).compute_loss is not loss or self.compute_loss_func is not None or self.label_smoother is not None:
            raise NotServed(
                "transformers' Trainer calls neither compute_loss nor compute_loss_func nor label smoothing in a pipeline",
                hint="let the model's forward return that loss",
            )
        accumulated = self.args.gradient_accumulation_steps
        return train(self, model, _counted(self, inputs, num_items_in_batch, accumulated), num_items_in_batch)

    def prediction_step(self: Any, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        items = here(self, [inputs], self.args.device)  # of this replica: it may evaluate alone
        return predict(self, model, _counted(self, inputs, items, 1), *args, **kwargs)

    trainer._get_num_items_in_batch = _get_num_items_in_batch
    trainer.training_step = training_step
    trainer.prediction_step = prediction_step


def _counted(trainer: Any, inputs: dict[str, Any], items: Any, accumulated: int) -> dict[str, Any]:
    """The inputs with the count for one microbatch, where the model takes it."""
    if items is None or not trainer.model_accepts_loss_kwargs:
        return inputs
    return {**inputs, "num_items_in_batch": items / (accumulated * num_microbatches())}
