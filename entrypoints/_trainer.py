"""What the programs on the Trainer of Transformers share: settings, metric lines, and a model folder that appears whole."""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from _common import Problem, World, whole_file, writing_to
from _sharding import part_here
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

METRIC_NAMES = {"loss": "train_loss", "grad_norm": "grad_norm", "reward": "train_reward"}
LAST = "config.json", "adapter_config.json", "modules.json"  # the files that make a folder a model


class Reporter(TrainerCallback):
    """Prints the Trainer's measurements as metric lines.

    batch: examples a step. size: tokens an example, in the mean.
    results: the last value of each measurement.
    """

    def __init__(self, world: World, batch: int, size: float) -> None:
        self.world, self.batch, self.size = world, batch, size
        self.results: dict[str, float] = {}
        self.began, self.first = time.perf_counter(), 0

    def report(self, name: str, value: float | None, state: Any) -> None:
        if value is None:  # TRL's mean of no rewards
            return
        self.results[name] = value
        self.world.metric(name, value, state.epoch or 0, state.global_step)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.began, self.first = time.perf_counter(), state.global_step

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        for name, value in (logs or {}).items():
            if name in METRIC_NAMES:
                self.report(METRIC_NAMES[name], value, state)
        require_number("train_loss", (logs or {}).get("loss", 0.0), args, state)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        loss = kwargs["metrics"]["eval_loss"]
        require_number("validation_loss", loss, args, state)
        self.report("validation_loss", loss, state)
        self.report("validation_perplexity", perplexity(loss), state)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        rate = self.batch * (state.global_step - self.first) / (time.perf_counter() - self.began)
        self.report("examples_per_second", rate, state)
        self.report("tokens_per_second", rate * self.size, state)


def perplexity(loss: float) -> float:
    """exp of a mean negative log-likelihood, bounded: JSON has no infinity."""
    return math.exp(min(loss, 700.0))


def require_number(name: str, value: float, args: Any, state: Any) -> None:
    """Raises Problem if a loss is not a finite number."""
    if not math.isfinite(value):
        rate = f"lower learning_rate ({args.learning_rate:g})"
        raise Problem(f"{name} is not a finite number at step {state.global_step}: {rate}")


def require_finite(model: Any, step: int, world: World) -> None:
    """Raises Problem, on every rank, if a weight that is trained is not a finite number, before it is saved. Collective."""
    own = [
        name
        for name, weight in model.named_parameters()
        if weight.requires_grad and not torch.isfinite(part_here(weight.detach())).all()
    ]
    if wrong := [name for names in world.gather(own[:1]) for name in names]:
        raise Problem(f"{wrong[0]} is not a finite number after step {step}: lower learning_rate")


class FiniteTrainer(Trainer):
    """A Trainer that raises Problem instead of writing a checkpoint with weights that are no finite numbers."""

    def __init__(self, world: World, **arguments: Any) -> None:
        self.world = world
        super().__init__(**arguments)
        self.remove_callback(PrinterCallback)  # it prints dictionaries; the reporter prints metric lines

    def _save_checkpoint(self, *arguments: Any, **named: Any) -> Any:
        require_finite(self.model, self.state.global_step, self.world)
        return super()._save_checkpoint(*arguments, **named)


def settings(
    hp: Namespace,
    world: World,
    share: int,
    steps: int,
    checkpoints: Path | None,
    kind: type[TrainingArguments] = TrainingArguments,
    **more: Any,
) -> TrainingArguments:
    """The Trainer's own settings for a job of `steps` steps, with `share` sequences a rank at a time, and `more` of them."""
    made = kind(
        output_dir=str(checkpoints or hp.model_dir),  # made by the Trainer, and without checkpoints not written to
        num_train_epochs=hp.epochs,
        max_steps=hp.max_steps or -1,
        per_device_train_batch_size=share,
        per_device_eval_batch_size=share,
        gradient_accumulation_steps=hp.gradient_accumulation_steps,
        learning_rate=hp.learning_rate,
        lr_scheduler_type="constant_with_warmup" if hp.lr_schedule == "constant" else hp.lr_schedule,
        warmup_steps=round(hp.warmup_ratio * steps),
        weight_decay=hp.weight_decay,
        max_grad_norm=hp.max_grad_norm,
        seed=hp.seed,
        ddp_find_unused_parameters=False,
        use_cpu=world.device.type == "cpu",
        dataloader_pin_memory=world.device.type == "cuda",
        logging_steps=hp.log_interval,
        logging_nan_inf_filter=False,
        save_strategy="no" if checkpoints is None else "steps" if hp.save_steps else "epoch",
        save_steps=hp.save_steps or 500,
        save_total_limit=2,
        **{"eval_strategy": "epoch", **more},
    )
    if made.n_gpu > 1:  # else the Trainer would spread each batch over all GPUs of a lone process
        world.say(f"{made.n_gpu} GPUs are visible to one process: using one; start a process per GPU to use all")
        made._n_gpu = 1
    return made


def save(target: Path, *parts: Any) -> None:
    """Writes what has `save_pretrained`: a model, its tokenizer. Raises Problem.

    Each file appears whole, and the one that makes the folder a model last.
    """
    with writing_to(target):
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".saving-", dir=target) as temporary:
            for part in parts:
                part.save_pretrained(temporary)
            (Path(temporary) / "README.md").unlink(missing_ok=True)  # PEFT's, a form to fill in
            files = (path for path in Path(temporary).rglob("*") if path.is_file())
            for source in sorted(files, key=lambda path: path.name in LAST):
                with whole_file(target / source.relative_to(temporary)) as path:
                    shutil.copyfile(source, path)  # not moved: safetensors makes files that their owner alone may read
