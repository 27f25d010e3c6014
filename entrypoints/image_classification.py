"""Trains an image classifier from hyperparameters alone: a small residual network, or one that others have trained.

    python image_classification.py --epochs 5                       # no job, no data: scikit-learn's digits, ./model
    python image_classification.py --train DIR --epochs 20          # DIR/<class>/*.png, or DIR/*.npz
    python image_classification.py --train DIR --previous_model resnet   # further, a folder of Transformers or timm
    torchrun --nproc-per-node 2 image_classification.py --demo_data digits
    python image_classification.py --predict photo.png --model_dir model

In a training job the hyperparameters come as `--key value` and the folders from SM_CHANNEL_TRAIN, SM_CHANNEL_TEST,
SM_CHANNEL_VALIDATION, SM_MODEL_DIR and SM_OUTPUT_DATA_DIR.
docs/programs/image_classification.md has the table of hyperparameters.

Every rank takes its share of each global batch. Nothing random depends on the number of ranks, there are no batch
statistics, and a checkpoint holds the position in the data: interrupted or not, a job trains the same model; with more
ranks nearly the same (sums have another order, and an epoch that does not divide among the ranks is filled up). Of borrowed
networks what dropout draws depends on the ranks, and so do statistics of batches, where they are learnt.
"""

from __future__ import annotations

from _common import (
    Parser,
    Problem,
    World,
    checkpoint_folder,
    folder,
    in_job,
    looked,
    piped,
    previous_model,
    run,
    write_json,
)

from trainshed.checkpoint import Checkpointer, CheckpointError, listen

if __name__ == "__main__":
    listen()  # before torch is imported: that takes seconds, and a stop in that time shall end with status 0 too

import itertools
import json
import math
import sys
import time
import zlib
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import _images
import _listed
import _networks
import _pictures
import _told
import _weights
import numpy
import torch
from _epochs import require_finite
from _predicting import Answers
from _shards import Shards, are_shards, read_shards
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset

import trainshed
from trainshed.data import DataError

PLATFORMS = {"batch_size": 32, "epochs": 30, "learning_rate": 0.1, "optimizer": "sgd", "weight_decay": 0.0001}
RATES = {"scratch": 0.005, "pretrained": 0.0005}  # learning rates, where none is given


def hyperparameters(argv: Sequence[str]) -> Namespace:
    """Reads the command line; raises Problem."""
    parser = Parser.declared(__file__)
    hp = parser.read(argv)
    asked = {name for name, value in vars(hp).items() if value != parser.get_default(name)}
    if hp.num_training_samples:  # a request of the platform's: its defaults
        for name, value in PLATFORMS.items():
            if name not in asked:
                setattr(hp, name, value)
        hp.num_layers = hp.num_layers or 152
        if "lr_schedule" not in asked:
            hp.lr_schedule, hp.warmup_epochs = "steps", 0.0
    hp.batch_size = hp.mini_batch_size or hp.batch_size
    hp.checkpoint_epochs = hp.checkpoint_epochs or hp.checkpoint_frequency
    if hp.lr_scheduler_step:
        hp.lr_schedule = "steps"
    try:
        hp.lr_scheduler_step = tuple(sorted(int(text) for text in hp.lr_scheduler_step or ()))
    except ValueError as error:
        raise Problem(f"lr_scheduler_step must be epochs, separated by commas: {error}") from error
    if hp.augmentation_type:
        hp.augment = "flip"
    if hp.image_shape:
        hp.channels, hp.image_size = square(hp.image_shape)
    return hp


def square(shape: Sequence[str]) -> tuple[int, int]:
    """Channels and side of an `image_shape` of three numbers. Raises Problem."""
    shown = ",".join(shape)
    if len(shape) != 3 or not all(part.isdecimal() and len(part) < 6 for part in shape):
        raise Problem(f"image_shape {shown} is not three whole numbers: channels, height, width, as 3,224,224")
    channels, height, width = map(int, shape)
    if height != width or channels not in (1, 3) or height < _images.SMALLEST:
        raise Problem(
            f"image_shape {shown} is not served: 1 or 3 channels, height and width the same and {_images.SMALLEST} or more"
        )
    return channels, height


# --- data -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Data:
    """What a run trains on; `validation` and `test` may be None. labels: all those of the channel train, or its digest."""

    train: Dataset | Shards
    validation: Dataset | Shards | None
    test: Dataset | Shards | None
    labels: object
    classes: list[str]
    shape: tuple[int, int, int]

    def summary(self) -> dict[str, object]:
        """A few facts that differ if the data do."""
        parts = (self.train, self.validation, self.test)
        counts = "+".join(str(len(part)) if part is not None else "0" for part in parts)  # type: ignore[arg-type]
        return {"images": counts, "shape": self.shape, "classes": len(self.classes), "labels": self.labels}


def fields_of(data: Data) -> list[_told.Field]:
    """What the pictures to learn from are; labels that come in a stream are not counted."""
    pictures = _told.pictures(len(data.train), _images.shown(data.shape))  # type: ignore[arg-type]
    labels = getattr(getattr(data.train, "dataset", data.train), "labels", None)
    if labels is None:
        return [pictures]
    kept = labels[getattr(data.train, "indices", slice(None))]
    return [pictures, _told.labels("label", [data.classes[at] for at in kept.tolist()], f"{len(data.classes)} classes")]


def load_data(hp: Namespace, world: World) -> Data:
    """All the channels, the validation data held out of train if they have no channel; raises Problem."""
    train: _images.Images | Shards
    validation: Dataset | Shards | None
    test: Dataset | Shards | None
    if hp.demo_data or not (hp.train or in_job()):
        if hp.train:
            raise Problem(f"demo_data is {hp.demo_data}, but there is a training folder too ({hp.train}): leave out one")
        import demo_data

        if not hp.demo_data:
            print("no job and no --train: using the demo data, scikit-learn's digits", flush=True)
        digits = demo_data.digits()
        classes = [str(digit) for digit in range(10)]
        train, test = (
            _images.ArrayImages(images[..., None], torch.from_numpy(labels))
            for images, labels in (digits["train"], digits["test"])
        )
        validation = None
    elif not hp.train:
        raise Problem("the job has no channel train; add it, or set the hyperparameter demo_data to digits")
    else:
        train, classes = read_channel(hp, world, hp.train, hp.train_lst, "train", "training")
        like = (classes, train.shape)
        validation, test = (
            read_channel(hp, world, path, listed, name, like=like)[0] if path else None
            for name, path, listed in (("validation", hp.validation, hp.validation_lst), ("test", hp.test, None))
        )
    if isinstance(train, Shards):
        part = train
        if validation is None:
            part, validation = train.without_end(hp.validation_fraction)
            if validation is None and hp.validation_fraction:
                world.say("nothing is held out of a single shard: give a channel validation to validate")
        return Data(part, validation, test, train.summary(), classes, train.shape)
    labels = f"{zlib.crc32(train.labels.numpy().tobytes()):08x}"
    if validation is not None:
        return Data(train, validation, test, labels, classes, train.shape)
    kept, held_out = _images.split(train.labels, hp.validation_fraction, hp.seed)
    validation = Subset(train, held_out) if held_out else None
    return Data(Subset(train, kept), validation, test, labels, classes, train.shape)


def read_channel(
    hp: Namespace,
    world: World,
    path: str,
    listed: str | None,
    *names: str,
    like: tuple[list[str], tuple[int, int, int]] | None = None,
) -> tuple[_images.Images | Shards, list[str]]:
    """The images of a channel and their classes; `like`: those of the training data. Raises Problem.

    listed: a folder with lists of images and their classes, if there is one.
    """
    what = f"the channel {names[0]}"
    if piped(path, *names):
        raise Problem(f"{what} is in Pipe mode, and images are read in another order each epoch: use FastFile or File")
    root = folder(path, what)
    wanted = (hp.image_size, hp.channels, hp.num_classes)
    if listed:
        return _listed.read_list(listed, root, what, *wanted, like)
    if records := _listed.record_files(root):
        return _listed.read_records(records, what, *wanted, like)
    if are_shards(root):
        shards = read_shards(root, what, world, hp.image_size, hp.channels, hp.num_classes, like)
        return shards, shards.classes
    return _images.read_channel(root, what, hp.image_size, hp.channels, like, hp.skip_damaged)


def batches_of(data: Dataset, batches: list[list[int]], hp: Namespace, device: torch.device) -> DataLoader:
    """A loader of exactly these batches, in this order."""
    return DataLoader(
        data,
        sampler=batches,
        batch_size=None,
        num_workers=hp.num_workers,
        pin_memory=device.type == "cuda",
    )


class Positions:
    """Batches of images that are read by their positions: the same global batches on any number of ranks."""

    def __init__(self, data: Dataset, share: int, hp: Namespace, world: World) -> None:
        self.data, self.share, self.hp, self.world = data, share, hp, world

    def epoch(self, epoch: int, first: int) -> DataLoader:
        """This rank's batches of an epoch, from number `first` on."""
        count = len(self.data)  # type: ignore[arg-type]
        batches = train_batches(count, self.share, self.world, self.hp.seed, epoch)
        return batches_of(self.data, batches[first:], self.hp, self.world.device)

    def state_dict(self) -> dict[str, Any]:
        """Nothing: an epoch and the number of a batch say all."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The same nothing."""


class Streamed:
    """Batches of shards, read one archive after the other, and shuffled in windows."""

    def __init__(self, shards: Shards, share: int, hp: Namespace, world: World) -> None:
        self.loader = shards.loader(share, world, shuffle=True, seed=hp.seed, workers=hp.num_workers)

    def epoch(self, epoch: int, first: int) -> Any:
        """This rank's batches of an epoch; the loader knows itself where it is."""
        return self.loader

    def state_dict(self) -> dict[str, Any]:
        """Where it is."""
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on there, with any number of ranks; ValueError for other data."""
        try:
            self.loader.load_state_dict(state)
        except DataError as error:
            raise ValueError(str(error)) from error


def everything(data: Dataset | Shards, share: int, hp: Namespace, world: World) -> Any:
    """This rank's batches of all the data, each image once."""
    if isinstance(data, Shards):
        return data.loader(share, world, workers=hp.num_workers)
    mine = list(range(world.rank, len(data), world.size))  # type: ignore[arg-type]
    return batches_of(data, [mine[start : start + share] for start in range(0, len(mine), share)], hp, world.device)


def train_batches(count: int, share: int, world: World, seed: int, epoch: int) -> list[list[int]]:
    """This rank's batches of an epoch: `share` positions each, the same number of batches on every rank."""
    everything: Any = range(count)  # of which the sampler wants the length alone
    sampler: Any = DistributedSampler(everything, world.size, world.rank, shuffle=True, seed=seed)
    sampler.set_epoch(epoch)
    order = list(sampler)
    return [order[start : start + share] for start in range(0, len(order), share)]


# --- the network ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Architecture:
    """All that is needed to build the network and to feed it; config.json holds it.

    shape: (channels, height, width) of the images.   mean, std: of the raw pixel values, one a channel.
    """

    classes: list[str]
    shape: list[int]
    mean: list[float]
    std: list[float]
    width: int
    depth: int
    stages: int
    stem_stride: int

    @staticmethod
    def of(data: Data, hp: Namespace) -> Architecture:
        """The network for this data: halves the image, stage after stage, down to about 4 x 4."""
        train = data.train
        mean, std = _images.statistics(train.some(hp.seed) if isinstance(train, Shards) else _images.some(train, hp.seed))
        smallest = min(data.shape[1:])
        stem_stride = 2 if smallest >= 64 else 1
        stages = min(max(round(math.log2(smallest / stem_stride / _images.SMALLEST)) + 1, 1), 5)
        return Architecture(data.classes, list(data.shape), mean, std, hp.width, hp.depth, stages, stem_stride)


def norm(channels: int) -> nn.Module:
    """Group norm: unlike batch norm it needs no statistics over the batch, hence none over the ranks."""
    return nn.GroupNorm(math.gcd(channels, 8), channels)


class Block(nn.Module):
    """Two convolutions with a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            norm(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            norm(outputs),
        )
        same = stride == 1 and inputs == outputs
        self.stride = stride
        self.around = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        # A convolution of size 1 with a stride would do the same. On CPUs without AVX-512, that of fewer than 8 channels
        # that lie last writes beyond its memory in the backward (oneDNN 3.12 in torch 2.13).
        kept = images[..., :: self.stride, :: self.stride]
        return functional.relu(self.body(images) + self.around(kept))


class Network(nn.Module):
    """A residual network from raw pixel values (N, C, H, W), of any number type, to logits (N, classes)."""

    mean: Tensor
    std: Tensor

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(architecture.mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(architecture.std).view(1, -1, 1, 1), persistent=False)
        channels = architecture.width
        layers = [
            nn.Conv2d(architecture.shape[0], channels, 3, architecture.stem_stride, 1, bias=False),
            norm(channels),
            nn.ReLU(inplace=True),
        ]
        for stage in range(architecture.stages):
            outputs = architecture.width * 2**stage
            for block in range(architecture.depth):
                layers.append(Block(channels, outputs, 2 if stage and not block else 1))
                channels = outputs
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(channels, len(architecture.classes))

    def forward(self, images: Tensor) -> Tensor:
        features = self.layers((images.float() - self.mean) / self.std)
        return self.head(features.mean(dim=(2, 3)))


def augmented(images: Tensor, hp: Namespace, step: int, world: World) -> Tensor:
    """The images, each shifted by up to 1/8 of its size (and mirrored or not), as `augment` says.

    The choices are drawn for the whole global batch from seed and step; a rank takes those of its own examples.
    """
    if hp.augment == "none":
        return images
    count, channels, height, width = images.shape
    images, reach = images.float(), max(1, min(height, width) // 8)
    draw = numpy.random.default_rng((hp.seed, step))
    mine = slice(world.rank, None, world.size)
    down, right = (torch.from_numpy(draw.integers(0, 2 * reach + 1, count * world.size)[mine]) for _ in range(2))
    rows = (down.view(-1, 1) + torch.arange(height)).view(count, 1, height, 1).to(images.device)
    columns = (right.view(-1, 1) + torch.arange(width)).view(count, 1, 1, width).to(images.device)
    padded = functional.pad(images, (reach,) * 4, mode="reflect")
    which = torch.arange(count, device=images.device).view(-1, 1, 1, 1)
    images = padded[which, torch.arange(channels, device=images.device).view(1, -1, 1, 1), rows, columns]
    if hp.augment == "flip":
        mirror = torch.from_numpy(draw.random(count * world.size)[mine] < 0.5).to(images.device)
        images = torch.where(mirror.view(-1, 1, 1, 1), images.flip(3), images)
    return images


# --- training ---------------------------------------------------------------------------------------------------------


def learning_rate(hp: Namespace, step: int, warmup: float, total: int) -> float:
    """The learning rate of a step (from 0): up a straight line during `warmup` steps, then as the schedule says."""
    if step < warmup:
        return hp.learning_rate * (step + 1) / (warmup + 1)
    done = (step - warmup) / max(total - warmup, 1)
    if hp.lr_schedule == "steps":
        epoch = step * hp.epochs // total
        return hp.learning_rate * hp.lr_scheduler_factor ** sum(epoch >= first for first in hp.lr_scheduler_step)
    factor = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}[hp.lr_schedule]
    return hp.learning_rate * factor


def optimizer_for(network: nn.Module, hp: Namespace) -> torch.optim.Optimizer:
    """The optimizer asked for; biases and norms (all that has one dimension) do not decay."""
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in parameters if parameter.ndim > 1], "weight_decay": hp.weight_decay},
        {"params": [parameter for parameter in parameters if parameter.ndim <= 1], "weight_decay": 0.0},
    ]
    if hp.optimizer in ("sgd", "nag"):
        return torch.optim.SGD(groups, hp.learning_rate, momentum=hp.momentum, nesterov=hp.momentum > 0)
    if hp.optimizer == "rmsprop":
        return torch.optim.RMSprop(groups, hp.learning_rate, alpha=hp.gamma, eps=hp.eps)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[hp.optimizer]
    return kind(groups, hp.learning_rate, betas=(hp.beta_1, hp.beta_2), eps=hp.eps)


@dataclass(frozen=True)
class Position:
    """How far training has come: whole epochs, global batches of the next one, steps altogether."""

    epoch: int = 0
    batch: int = 0
    step: int = 0


class Mean:
    """Means over the examples of all ranks, added up on the device without waiting for it."""

    def __init__(self, world: World, values: int) -> None:
        self.world = world
        self.count = 0
        self.sums = torch.zeros(values, dtype=torch.float64, device=world.device)

    def add(self, count: int, *sums: Tensor) -> None:
        """Adds sums over `count` examples of this rank."""
        self.count += count
        self.sums += torch.stack(sums)

    def take(self) -> list[float]:
        """The means over all ranks, from here on of new examples. Every rank must call this at the same time."""
        total = torch.cat([self.sums, self.sums.new_tensor([self.count])])
        if self.world.size > 1:
            torch.distributed.all_reduce(total)
        self.count, self.sums = 0, torch.zeros_like(self.sums)
        return (total[:-1] / total[-1]).tolist()


class Progress:
    """What a checkpoint keeps beside network and optimizer: how far training has come, and which training it is.

    facts: all of them but the batch size must be the same when training goes on. network: of which no checkpoint is made
    once it has weights that are no finite numbers.
    """

    def __init__(self, facts: dict[str, Any], feed: Positions | Streamed, network: nn.Module) -> None:
        self.facts, self.feed, self.network, self.at = facts, feed, network, Position()

    def state_dict(self) -> dict[str, Any]:
        """For the checkpoint; raises Problem."""
        require_finite(self.network, self.at.step)
        return {"at": asdict(self.at), "facts": self.facts, "feed": self.feed.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on there, at the same place in the data if the batch size has changed; ValueError if it is another's."""
        for name, value in self.facts.items():
            if name != "batch size" and state["facts"].get(name) != value:
                raise ValueError(f"it is of another training (its {name} differs)")
        self.feed.load_state_dict(state.get("feed", {}))
        at = Position(**state["at"])
        self.at = replace(at, batch=at.batch * state["facts"]["batch size"] // self.facts["batch size"])


class Training:
    """One job: what it works with, how far it has come (`progress.at`), what it has measured (`results`)."""

    def __init__(self, hp: Namespace, world: World) -> None:
        self.hp, self.world = hp, world
        previous, source = start_of(hp)
        self.data = load_data(hp, world)
        _told.say(hp, "the channel train", len(self.data.train), fields_of(self.data))  # type: ignore[arg-type]
        looked(hp)
        if hp.target_accuracy is not None and self.data.validation is None:
            raise Problem("target_accuracy needs validation data: a channel validation, or validation_fraction above 0")
        world.require_same("the ranks see different data", self.data.summary())
        self.count = len(self.data.train)  # type: ignore[arg-type]
        self.share = world.share_of_batch(hp.batch_size)
        train = self.data.train
        feed = Streamed if isinstance(train, Shards) else Positions
        self.feed: Streamed | Positions = feed(train, self.share, hp, world)  # type: ignore[arg-type]
        torch.manual_seed(hp.seed)
        self.network: Network | _networks.Network
        self.architecture: Architecture | _networks.Borrowed
        if source is not None:
            self.network, self.architecture = source.network(self.data.classes, self.data.shape, hp.image_size)
            if hp.train_only_top_layer:
                _networks.only_the_head(self.network, len(self.data.classes))
            world.say(f"the network: {source.name} of {source.library}, {self.described_start(source)}")
        elif previous is None:
            architecture = world.from_first(Architecture.of(self.data, hp))
            self.architecture, self.network = architecture, Network(architecture)
        else:
            self.network, self.architecture = load_for(self.data, previous)
            size = f"width {self.architecture.width}, depth {self.architecture.depth}"
            world.say(f"going on from the model in {previous}: {size}")
        if world.rank == 0:
            _weights.require_export(hp, self.network, self.data.shape)
        self.network.to(world.device)
        further = source is not None and source.folder is not None
        if hp.learning_rate is None:
            hp.learning_rate = RATES["pretrained" if further else "scratch"]
        if hp.max_grad_norm is None:
            hp.max_grad_norm = 1.0 if further else 0.0
        self.optimizer = optimizer_for(self.network, hp)
        self.model: nn.Module = self.network
        if world.size > 1:
            device_ids = [world.device.index] if world.device.type == "cuda" else None
            self.model = nn.parallel.DistributedDataParallel(self.network, device_ids, gradient_as_bucket_view=True)
        facts = {
            "architecture": json.dumps(asdict(self.architecture), sort_keys=True),
            **({"layers": "the last alone"} if hp.train_only_top_layer else {}),
            "optimizer": hp.optimizer,
            "number of images": self.count,
            "batch size": self.share * world.size,
        }
        self.progress = Progress(facts, self.feed, self.network)
        self.per_epoch = self.batches = len(self.feed.epoch(0, 0))
        self.checkpoints = Checkpointer(
            checkpoint_folder(hp.checkpoint_dir),
            model=self.model,
            optimizer=self.optimizer,
            data=self.progress,
            every_steps=hp.checkpoint_epochs * self.per_epoch if hp.checkpoint_epochs else None,
        )
        try:
            self.checkpoints.restore()
        except CheckpointError as error:
            raise Problem(f"{error}: remove it to train from scratch, or use another folder") from error
        self.amp = world.bfloat16(hp.amp)
        self.losses = Mean(world, 1)
        self.results: dict[str, float] = {}

    @staticmethod
    def described_start(source: _networks.Source) -> str:
        """Where a borrowed network begins."""
        return f"with the weights in {source.folder}" if source.folder else "from scratch"

    def run(self) -> None:
        """Trains to the end, to the target or to the stop; then evaluates and writes the model."""
        hp, world = self.hp, self.world
        parameters = sum(parameter.numel() for parameter in self.network.parameters())
        world.say(
            f"training on {self.count} images of {_images.shown(self.data.shape)}, {len(self.data.classes)} classes; "
            f"{parameters} parameters; {world.size} rank{'s' * (world.size > 1)} on {world.device.type}, "
            f"{self.share} examples a rank and step"
        )
        stopped = False
        while self.at.epoch < hp.epochs:
            if stopped := self.epoch():
                break
            if self.at.epoch == hp.epochs:
                self.keep_the_end()  # before the evaluation, which a SIGKILL may cut short
            if self.evaluate("validation", self.data.validation) >= (hp.target_accuracy or math.inf):
                world.say(f"target_accuracy {hp.target_accuracy:g} reached in epoch {self.at.epoch}")
                break
        if not stopped:
            if "validation_accuracy" not in self.results:  # resumed after the last epoch
                self.evaluate("validation", self.data.validation)
            self.evaluate("test", self.data.test)
        if world.rank == 0:
            self.require_numbers()
            trained = {
                "epochs": self.at.epoch,
                "steps": self.at.step,
                "finished": not stopped,
                "world_size": world.size,
            }
            facts = {"hyperparameters": used(hp), "metrics": self.results, "fingerprint": self.data.labels}
            save(self.network, self.architecture, Path(hp.model_dir), trained, facts)
            _weights.export(hp, self.network, self.data.shape, Path(hp.model_dir))
            write_json(Path(hp.output_data_dir) / "metrics.json", {**trained, **self.results})
            if not stopped:
                _pictures.guarded(self.draw)
        self.checkpoints.close()
        world.say(f"model: {hp.model_dir}")

    @torch.no_grad()
    def draw(self) -> None:
        """Pictures of what the model makes of the data held out; none of a stream."""
        held = {"validation": self.data.validation, "test": self.data.test}
        part, data = next(((part, data) for part, data in held.items() if data is not None), ("", None))
        if data is None or isinstance(data, Shards):
            return
        self.network.eval()
        count = min(len(data), _pictures.MOST)  # type: ignore[arg-type]
        truth, logits = [], []
        for start in range(0, count, self.share):
            images, labels = data[list(range(start, min(start + self.share, count)))]
            truth.append(labels)
            logits.append(self.network(images.to(self.world.device)).float().cpu())
        classes, known, likely = self.data.classes, torch.cat(truth).numpy(), torch.cat(logits).softmax(1).numpy()
        _pictures.of_classes(self.hp, part, classes, known, likely)
        shown = []
        for at in _pictures.mistakes(known, likely):
            is_one, said, sure = _pictures.said_of(classes, known, likely, at)
            shown.append((_pictures.image_of(data[[at]][0][0]), f"{is_one} > {said} {sure}"))
        _pictures.sheet(self.hp, "mistakes", f"Surest mistakes on {part}", shown, "what it is > what was said, how sure")

    @torch.no_grad()
    def require_numbers(self) -> None:
        """Raises Problem where the network gives no finite numbers: the last step is in no loss that was reported."""
        self.network.eval()
        images, _ = next(iter(everything(self.data.train, self.share, self.hp, self.world)))
        for batch in (images, torch.zeros_like(images)):
            if not torch.isfinite(self.network(batch.to(self.world.device))).all():
                rate = f"learning_rate ({self.hp.learning_rate:g})"
                raise Problem(f"after step {self.at.step} the network gives no finite numbers: lower {rate}")

    @property
    def at(self) -> Position:
        """How far it has come."""
        return self.progress.at

    def keep_the_end(self) -> None:
        """A checkpoint of the trained network, so that nobody trains it again; the job is done without it, too."""
        if self.checkpoints.folder:
            try:
                self.checkpoints.save(self.at.step)
            except CheckpointError as error:
                self.world.say(f"going on without it: {error}")
            else:
                self.world.say(f"checkpoint: {self.checkpoints.folder} holds step {self.at.step}")

    def epoch(self) -> bool:
        """Trains to the end of the epoch, or until the job is asked to stop (then gives True)."""
        world, first = self.world, self.at.batch
        batches = self.feed.epoch(self.at.epoch, first)
        self.batches = first + len(batches)
        began, seen, stopped = time.perf_counter(), 0, False
        self.model.train()
        for images, labels in batches:
            self.step(images.to(world.device, non_blocking=True), labels.to(world.device, non_blocking=True))
            seen += len(labels) * world.size
            if self.hp.log_interval and self.at.step % self.hp.log_interval == 0:
                self.report_loss()
            if stopped := self.checkpoints.step(self.at.step):
                break
        self.report_loss()
        self.report("examples_per_second", seen / (time.perf_counter() - began))
        return stopped

    def step(self, images: Tensor, labels: Tensor) -> None:
        """One step of the optimizer."""
        hp, at, per_epoch = self.hp, self.at, self.per_epoch
        rate = learning_rate(hp, at.step, hp.warmup_epochs * per_epoch, hp.epochs * per_epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        if isinstance(self.network, _networks.Network):  # dropout: as drawn in a job that was never interrupted
            torch.manual_seed((hp.seed * 1_000_003 + at.step) * self.world.size + self.world.rank)
        with torch.autocast(self.world.device.type, torch.bfloat16, enabled=self.amp):
            loss = functional.cross_entropy(self.model(augmented(images, hp, at.step, self.world)), labels)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if hp.max_grad_norm:
            nn.utils.clip_grad_norm_(self.network.parameters(), hp.max_grad_norm)
        self.optimizer.step()
        self.losses.add(len(labels), loss.detach() * len(labels))
        done = at.batch + 1 == self.batches
        self.progress.at = Position(at.epoch + done, 0 if done else at.batch + 1, at.step + 1)

    def report(self, name: str, value: float) -> None:
        """Keeps a measurement and prints it, with the epoch (from 1) that it belongs to."""
        self.results[name] = value
        self.world.metric(name, value, self.at.epoch + (self.at.batch > 0), self.at.step)

    def report_loss(self) -> None:
        """The mean training loss since the last report; raises Problem if it is not a finite number."""
        if not self.losses.count:
            return
        self.report("train_loss", self.losses.take()[0])
        if not math.isfinite(self.results["train_loss"]):
            rate = f"learning_rate ({self.hp.learning_rate:g})"
            raise Problem(f"train_loss is not a finite number at step {self.at.step}: lower {rate}")

    def evaluate(self, name: str, data: Dataset | Shards | None) -> float:
        """Reports loss and accuracy on `data`; gives the accuracy, 0 without data."""
        if data is None:
            return 0.0
        loss, accuracy, among = measured(self.network, data, self.share, self.hp, self.world, self.amp)
        self.report(f"{name}_loss", loss)
        self.report(f"{name}_accuracy", accuracy)
        if self.hp.top_k:
            self.report(f"{name}_top_k_accuracy", among)
        if not math.isfinite(loss):
            raise Problem(f"{name}_loss is not a finite number: lower learning_rate ({self.hp.learning_rate:g})")
        return accuracy


@torch.no_grad()
def measured(
    network: nn.Module, data: Dataset | Shards, share: int, hp: Namespace, world: World, amp: bool
) -> tuple[float, float, float]:
    """Mean loss, accuracy and top_k accuracy of all of `data`; each example counts once, however many ranks share them."""
    network.eval()
    means = Mean(world, 3)
    for images, labels in everything(data, share, hp, world):
        labels = labels.to(world.device)
        with torch.autocast(world.device.type, torch.bfloat16, enabled=amp):
            logits = network(images.to(world.device))
            loss = functional.cross_entropy(logits, labels, reduction="sum")
        best = logits.topk(min(hp.top_k or 1, logits.shape[1])).indices == labels[:, None]
        means.add(len(labels), loss, (logits.argmax(1) == labels).sum(), best.any(1).sum())
    loss_mean, accuracy, among = means.take()
    return loss_mean, accuracy, among


def start_of(hp: Namespace) -> tuple[Path | None, _networks.Source | None]:
    """The model of this program to go on from, and a network of a library; (None, None): a small one. Raises Problem.

    Gives `image_size` what a borrowed network was trained on, where it is not asked for.
    """
    previous = previous_model(hp.previous_model)
    source = None
    if previous is not None and not _is_small(previous):
        source = _networks.find(previous, _name_in(previous) or hp.architecture or "")
    elif previous is None and hp.num_layers:
        if hp.num_layers not in _networks.STAGES:
            served = ", ".join(map(str, _networks.STAGES))
            raise Problem(f"num_layers {hp.num_layers} is not served (those of images below 32 x 32 are not): {served}")
        source = _networks.scratch(hp.num_layers)
    if hp.use_pretrained_model and previous is None:
        raise Problem(
            "use_pretrained_model is 1, but there is no channel model (or previous_model): no weights come with this program"
        )
    if source is None and hp.train_only_top_layer:
        raise Problem("train_only_top_layer needs a trained network of a library in the channel model")
    if source is not None:
        hp.image_size = hp.image_size or source.size
    return previous, source


def _is_small(folder: Path) -> bool:
    """Whether a folder holds our small network."""
    try:
        return isinstance(json.loads((folder / "config.json").read_text(encoding="utf-8"))["architecture"], dict)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _name_in(folder: Path) -> str:
    """The architecture in a folder that this program has written, "" in others."""
    try:
        return str(json.loads((folder / "model.json").read_text(encoding="utf-8"))["network"]["name"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def used(hp: Namespace) -> dict[str, Any]:
    """The hyperparameters, without folders and what was not given."""
    folders = ("train", "validation", "test", "predict", "previous_model")
    given = {name: value for name, value in vars(hp).items() if value is not None and value != ()}
    return {name: given[name] for name in sorted(given) if name not in folders and not name.endswith(("_dir", "_lst"))}


# --- the model's folder -----------------------------------------------------------------------------------------------


def save(
    network: Network | _networks.Network,
    architecture: Architecture | _networks.Borrowed,
    target: Path,
    trained: dict[str, Any],
    facts: dict[str, Any],
) -> None:
    """Writes the model and model.json, which says what it is and how far it was trained.

    A small network: model.safetensors and config.json (the architecture); of a library: as it reads them itself.
    """
    about = {"program": "image_classification", "trainshed": trainshed.__version__, "trained": trained, **facts}
    if isinstance(network, _networks.Network):
        assert isinstance(architecture, _networks.Borrowed)
        _networks.save(network, architecture, target)
        write_json(target / "model.json", about | {"network": asdict(architecture), "classes": architecture.classes})
        return
    _weights.save(network, target)
    write_json(target / "config.json", {"architecture": asdict(architecture), "trained": trained})
    write_json(target / "model.json", about | {"classes": architecture.classes})


def load(model_dir: str | Path) -> tuple[Network | _networks.Network, Architecture | _networks.Borrowed]:
    """The trained network, on the CPU and ready to predict, with its architecture (classes, shape); raises Problem."""
    root = Path(model_dir)
    try:
        if not _is_small(root):
            content = json.loads((root / "model.json").read_text(encoding="utf-8"))["network"]
            borrowed, made = _networks.load(root, content)
            return borrowed.eval(), made
        return small(root)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise Problem(f"{root} holds no model of image_classification: {str(error).splitlines()[0]}") from error


def small(root: Path) -> tuple[Network, Architecture]:
    """The small network in a folder, ready to predict. Raises OSError, ValueError, KeyError, TypeError, RuntimeError."""
    config = json.loads((root / "config.json").read_text(encoding="utf-8"))
    architecture = Architecture(**config["architecture"])
    network = Network(architecture)
    _weights.load(network, root)
    return network.eval(), architecture


def load_for(data: Data, model_dir: Path) -> tuple[Network, Architecture]:
    """A trained network to train on, with its architecture; raises Problem where it is not one for this data."""
    network, architecture = load(model_dir)
    assert isinstance(network, Network) and isinstance(architecture, Architecture)
    if architecture.shape != list(data.shape):
        theirs = _images.shown(tuple(architecture.shape))  # type: ignore[arg-type]
        raise Problem(f"the previous model takes images of {theirs}, the data has {_images.shown(data.shape)}")
    if architecture.classes != data.classes:
        differing = sorted(set(architecture.classes) ^ set(data.classes)) or ["their order"]
        raise Problem(f"the previous model has other classes than the data: {', '.join(differing[:5])} differ")
    return network.train(), architecture


@torch.no_grad()
def predict(hp: Namespace) -> None:
    """Prints one JSON line an image: {"input", "class", "probability"}."""
    network, architecture = load(hp.model_dir)
    answers = Answers()
    images = iter(_to_predict(hp.predict, tuple(architecture.shape), answers, isinstance(network, Network)))  # type: ignore[arg-type]
    while batch := list(itertools.islice(images, hp.batch_size)):
        best = network(torch.cat([pixels for _, pixels in batch])).softmax(1).max(1)
        for (name, _), probability, index in zip(batch, best.values.tolist(), best.indices.tolist(), strict=True):
            answers.say({}, {"input": name, "class": architecture.classes[index], "probability": round(probability, 6)})
    answers.end()


def _to_predict(source: str, shape: tuple[int, int, int], answers: Answers, exactly: bool) -> Iterator[tuple[str, Tensor]]:
    """(name, pixels (1, C, H, W)) of an npz file, of an image file, or of a folder of those. Raises Problem."""
    if not source.endswith(".npz"):
        for path, _, pixels in _images.to_predict(source, shape, answers):
            yield str(path), pixels
        return
    arrays = _images.read_arrays([Path(source)], source, labelled=False)[0]
    data = _images.ArrayImages(arrays, torch.zeros(len(arrays), dtype=torch.int64))
    if data.shape != shape and exactly:
        raise Problem(f"{source} has images of {_images.shown(data.shape)}, the model takes {_images.shown(shape)}")
    yield from ((str(at), data.pixels([at])) for at in range(len(arrays)))


def main() -> None:
    """The command line."""
    hp = hyperparameters(sys.argv[1:])
    if hp.predict:
        predict(hp)
        return
    world = World.join(hp.device)
    try:
        Training(hp, world).run()
    except DataError as error:
        raise Problem(str(error)) from error
    world.leave()


if __name__ == "__main__":
    run(main)
