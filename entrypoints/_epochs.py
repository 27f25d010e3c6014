"""The loop that programs in plain PyTorch share: epochs over data that every rank has whole, with an exact way to go on.

A program gives a `Task`: its network, a loss, what it measures and how its model is written. From here come the ranks
(DistributedDataParallel), the schedule, checkpoints and notices, early stopping, metric lines, and the check that what is
written is finite numbers.
"""

from __future__ import annotations

import json
import math
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import _pictures
import numpy
import torch
from _common import Problem, World, checkpoint_folder, write_json
from torch import Tensor, nn

import trainshed
from trainshed.checkpoint import Checkpointer, CheckpointError

FOLDERS = ("train", "validation", "test", "predict", "model_dir", "output_data_dir", "checkpoint_dir", "previous_model")


class Task:
    """What a program trains; a base class.

    network: on the rank's device. count: training examples. facts: what must be the same to go on from a checkpoint.
    watched: the measure of validation, or train_loss, that early stopping and the best epoch go by, "" for none. higher:
    whether more of it is better. parts: names and sizes of what is measured: `validation` each epoch, `test` at the end.
    """

    program: str
    network: Any
    count: int
    facts: dict[str, Any]
    watched: str = ""
    higher: bool = False
    parts: dict[str, int]

    def positions(self, seed: int, epoch: int) -> Sequence[int]:
        """The examples of an epoch in their order, the same on all ranks."""
        return numpy.random.default_rng([seed, epoch]).permutation(self.count).tolist()

    def loss(self, model: nn.Module, whole: Sequence[int], mine: slice, place: tuple[int, int]) -> tuple[Tensor, float]:
        """The sum of the loss over a rank's part of a batch, and what the sum over the whole batch is divided by.

        whole: positions of all the batch. mine: which of them are this rank's. place: the epoch and the step.
        """
        raise NotImplementedError

    def outputs(self, part: str, positions: Sequence[int]) -> list[Any]:
        """What the network makes of examples of a part, one (picklable) thing each; it is in the state of evaluation."""
        raise NotImplementedError

    def scores(self, part: str, outputs: list[Any]) -> dict[str, float]:
        """What is measured of a whole part, by name: `loss`, `accuracy`; `outputs` are in the order of its examples."""
        raise NotImplementedError

    def save(self, target: Path) -> dict[str, Any]:
        """Writes the model, and gives what else model.json shall say. Rank 0 alone."""
        raise NotImplementedError

    def draw(self, part: str, outputs: list[Any]) -> None:
        """Pictures of what the network makes of a part's first examples, for the report; none if not said. Rank 0 alone."""

    def groups(self, weight_decay: float) -> list[dict[str, Any]]:
        """Parameters for the optimizer; biases and norms (all of one dimension) do not decay."""
        trained = [weight for weight in self.network.parameters() if weight.requires_grad]
        return [
            {"params": [weight for weight in trained if weight.ndim > 1], "weight_decay": weight_decay},
            {"params": [weight for weight in trained if weight.ndim <= 1], "weight_decay": 0.0},
        ]


class Progress:
    """What a checkpoint keeps beside network and optimizer: how far training has come, and the best epoch so far.

    network: of which no checkpoint is made once it has weights that are no finite numbers.
    """

    def __init__(self, facts: dict[str, Any], network: nn.Module) -> None:
        self.facts, self.network = facts, network
        self.step = self.measured = self.stale = 0  # steps done, epochs measured, of these since the best
        self.total, self.weight = 0.0, 0.0  # of the loss since it was last reported
        self.best = math.nan
        self.weights: dict[str, Tensor] = {}  # of the best epoch
        self.results: dict[str, float] = {}

    def state_dict(self) -> dict[str, Any]:
        """For the checkpoint; raises Problem."""
        require_finite(self.network, self.step)
        return {name: value for name, value in vars(self).items() if name != "network"}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises ValueError if it is of another job."""
        for name, value in self.facts.items():
            if state["facts"].get(name) != value:
                raise ValueError(f"it is of another training ({name} was {state['facts'].get(name)}, is {value})")
        vars(self).update({**state, "facts": self.facts})


class Epochs:
    """One job.

    hp: with epochs, batch_size, learning_rate, lr_schedule, warmup_ratio, weight_decay, max_grad_norm, patience (None: no
    early stopping), min_epochs, keep (best or last), seed, log_interval, checkpoint_steps and the folders.
    """

    def __init__(self, hp: Namespace, world: World, task: Task) -> None:
        self.hp, self.world, self.task = hp, world, task
        self.share = world.share_of_batch(hp.batch_size)
        self.batch = self.share * world.size
        self.per_epoch = math.ceil(len(task.positions(hp.seed, 0)) / self.batch)
        self.steps = hp.epochs * self.per_epoch
        same = (
            "seed",
            "epochs",
            "learning_rate",
            "lr_schedule",
            "warmup_ratio",
            "weight_decay",
            "max_grad_norm",
            "patience",
        )
        facts = {name: getattr(hp, name) for name in same} | {"batch_size": self.batch, **task.facts}
        world.require_same("the ranks see different data", facts)
        self.at = Progress(facts, task.network)
        self.optimizer = torch.optim.AdamW(task.groups(hp.weight_decay), hp.learning_rate)
        self.model: nn.Module = task.network
        if world.size > 1:
            devices = [world.device.index] if world.device.type == "cuda" else None
            self.model = nn.parallel.DistributedDataParallel(task.network, devices)
        self.checkpoints = Checkpointer(
            checkpoint_folder(hp.checkpoint_dir),
            model=self.model,
            optimizer=self.optimizer,
            data=self.at,
            every_steps=hp.checkpoint_steps,
        )
        try:
            self.checkpoints.restore()
        except CheckpointError as error:
            raise Problem(f"{error}: remove it to train from scratch, or use another folder") from error
        self.began, self.seen = time.perf_counter(), 0

    def run(self, what: str) -> None:
        """Trains to the end, to an early one or to a stop; then measures, and writes the model. what: for the first line."""
        world, task = self.world, self.task
        weights = sum(weight.numel() for weight in task.network.parameters())
        world.say(
            f"training on {what} for {self.steps} steps; {weights} parameters; {world.size} rank{'s' * (world.size > 1)} "
            f"on {world.device.type}, {self.batch} a step"
        )
        stopped = self.train()
        if not stopped and self.checkpoints.folder:
            self.keep_the_end()
        if self.at.weights and not stopped:
            task.network.load_state_dict(self.at.weights)
            epoch = self.at.measured - self.at.stale
            world.say(f"the model is that of epoch {epoch}, the best by {task.watched} ({self.at.best:.6g})")
        require_finite(task.network, self.at.step)
        self.require_sound()
        if not stopped and task.parts.get("test"):
            self.measure("test")
        if world.rank == 0:
            trained = {"steps": self.at.step, "finished": not stopped, "world_size": world.size}
            target = Path(self.hp.model_dir)
            (target / "model.json").unlink(missing_ok=True)  # of what was there before
            target.mkdir(parents=True, exist_ok=True)
            about = task.save(target)
            given = {name: value for name, value in vars(self.hp).items() if name not in FOLDERS}
            versions = {one.__name__: one.__version__ for one in (trainshed, torch, numpy)} | about.pop("versions", {})
            said = {"program": task.program, "versions": versions, "hyperparameters": given, "metrics": self.at.results}
            write_json(target / "model.json", {**said, "data": self.at.facts, **trained, **about})
            write_json(Path(self.hp.output_data_dir) / "metrics.json", {**trained, **self.at.results})
            if not stopped:
                _pictures.guarded(self.draw)
        self.checkpoints.close()
        world.say(f"model: {self.hp.model_dir}")

    def draw(self) -> None:
        """Pictures of what the model makes of the data held out: of validation, else of test."""
        part = next((part for part in ("validation", "test") if self.task.parts.get(part)), "")
        if part:
            positions = range(min(self.task.parts[part], _pictures.MOST))
            self.task.draw(part, self.outputs(part, positions))

    def outputs(self, part: str, positions: Sequence[int]) -> list[Any]:
        """What the network makes of examples, a rank's share at a time."""
        self.task.network.eval()
        made: list[Any] = []
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.hp.seed)
            for start in range(0, len(positions), self.share):
                made += self.task.outputs(part, positions[start : start + self.share])
        return made

    def train(self) -> bool:
        """The steps that are left, and the measures after each epoch; gives whether the job was asked to stop."""
        at = self.at
        while True:
            epoch, place = divmod(at.step, self.per_epoch)
            if epoch > at.measured:
                self.end_of_epoch(epoch)
            if at.step >= self.steps or self.is_stale():
                return False
            order = self.task.positions(self.hp.seed, epoch)
            self.began, self.seen = time.perf_counter(), 0
            self.model.train()
            for start in range(place * self.batch, len(order), self.batch):
                self.step(order[start : start + self.batch], epoch)
                if self.checkpoints.step(at.step):
                    return True

    def is_stale(self) -> bool:
        """Whether the last epochs were no better than the best."""
        hp, at = self.hp, self.at
        return bool(hp.patience) and at.stale >= hp.patience and at.measured >= hp.min_epochs

    def step(self, whole: Sequence[int], epoch: int) -> None:
        """One step of the optimizer; raises Problem if its loss is not a finite number.

        A rank without an example in a short batch takes one of another's, which counts nothing.
        """
        hp, world, at = self.hp, self.world, self.at
        rate = hp.learning_rate * schedule(hp.lr_schedule, at.step, hp.warmup_ratio * self.steps, self.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group.get("factor", 1.0)
        spare = world.rank >= len(whole)
        mine = slice(0, 1) if spare else slice(world.rank, None, world.size)
        summed, divisor = self.task.loss(self.model, whole, mine, (epoch, at.step))
        self.optimizer.zero_grad(set_to_none=True)
        (summed * ((0.0 if spare else 1.0) * world.size / divisor)).backward()  # ranks' gradients are averaged
        if hp.max_grad_norm:
            nn.utils.clip_grad_norm_(self.task.network.parameters(), hp.max_grad_norm)
        self.optimizer.step()
        at.step += 1
        loss = summed.detach().double() * (0.0 if spare else 1.0)
        if world.size > 1:
            torch.distributed.all_reduce(loss)
        at.total += loss.item()
        at.weight += divisor
        self.seen += len(whole)
        if not math.isfinite(at.total):
            rate = f"lower learning_rate ({hp.learning_rate:g})"
            raise Problem(f"train_loss is not a finite number at step {at.step}: {rate}")
        if at.step % (hp.log_interval or self.per_epoch) == 0:
            self.report_loss()

    def report_loss(self) -> None:
        """The mean training loss since the last report, if there was a step."""
        at = self.at
        if at.weight:
            self.report("train_loss", at.total / at.weight)
            at.total, at.weight = 0.0, 0.0

    def end_of_epoch(self, epoch: int) -> None:
        """The measures of an epoch, and whether it is the best."""
        at, task = self.at, self.task
        self.report_loss()
        if self.seen:
            self.report("examples_per_second", self.seen / (time.perf_counter() - self.began))
        measures = self.measure("validation") if task.parts.get("validation") else {}
        at.measured = epoch
        at.stale += 1
        value = {"train_loss": at.results["train_loss"], **measures}.get(task.watched, math.nan)
        if math.isnan(at.best) or (value > at.best if task.higher else value < at.best):
            at.best, at.stale = value, 0
            if self.hp.keep == "best" and not math.isnan(value):
                state = task.network.state_dict()
                at.weights = {name: weight.detach().to("cpu", copy=True) for name, weight in state.items()}

    def measure(self, part: str) -> dict[str, float]:
        """Measures a part, each example once whatever the number of ranks. Collective; raises Problem."""
        world, task = self.world, self.task
        size = task.parts[part]
        own = self.outputs(part, range(world.rank, size, world.size))
        every: list[Any] = [None] * size
        for rank, outputs in enumerate(world.gather(own)):
            every[rank :: world.size] = outputs
        measures = task.scores(part, every)
        for name, value in measures.items():
            self.report(f"{part}_{name}", value)
            if not math.isfinite(value):
                rate = f"lower learning_rate ({self.hp.learning_rate:g})"
                raise Problem(f"{part}_{name} is not a finite number at step {self.at.step}: {rate}")
        return measures

    def require_sound(self) -> None:
        """Raises Problem if the network, all of whose weights are finite, gives no finite numbers for training examples."""
        task = self.task
        task.network.eval()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            outputs = task.outputs("train", range(min(task.count, self.share)))
        if not all(numpy.isfinite(numpy.asarray(one, numpy.float64)).all() for one in outputs):
            raise Problem(f"the model gives no finite numbers after step {self.at.step}: lower learning_rate")

    def report(self, name: str, value: float) -> None:
        """Keeps a measurement and prints it, with the epoch (from 1) that it belongs to."""
        self.at.results[name] = value
        self.world.metric(name, value, math.ceil(self.at.step / self.per_epoch), self.at.step)

    def keep_the_end(self) -> None:
        """A checkpoint of the trained network, so that nobody trains it again; the job is done without it, too."""
        try:
            self.checkpoints.save(self.at.step)
        except CheckpointError as error:
            self.world.say(f"going on without it: {error}")


def require_finite(network: nn.Module, step: int) -> None:
    """Raises Problem if a weight is not a finite number: after that there is nothing worth keeping."""
    for name, weight in network.state_dict().items():
        if weight.is_floating_point() and not torch.isfinite(weight).all():
            raise Problem(f"{name} is not a finite number after step {step}: lower learning_rate")


def schedule(kind: str, step: int, warmup: float, total: int) -> float:
    """What the learning rate is multiplied by at a step (from 0): it rises over the warm-up, then falls to 0 or stays."""
    if step + 1 < warmup:
        return (step + 1) / warmup
    left = 1.0 - max(0.0, step + 1 - warmup) / max(1.0, total + 1 - warmup)
    return {"cosine": 0.5 - 0.5 * math.cos(math.pi * left), "linear": left}.get(kind, 1.0)


def freeze_unused(network: nn.Module, output: Callable[[], Tensor]) -> None:
    """Leaves weights alone that no output reaches, as of a pooler that is not looked at: ranks would wait for them."""
    network.eval()
    output().float().sum().backward()
    for weight in network.parameters():
        weight.requires_grad_(weight.grad is not None)
    network.zero_grad(set_to_none=True)


def about_model(folder: str, program: str) -> dict[str, Any]:
    """What model.json of a folder says; raises Problem if it is not of this program."""
    try:
        facts = json.loads((Path(folder) / "model.json").read_text(encoding="utf-8"))
        if facts["program"] != program:
            raise ValueError(f"it is of {facts['program']}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Problem(f"{folder} holds no model of {program} (model.json): {error}") from error
    return dict(facts)
