"""Trains a network that says the class of each pixel, from hyperparameters alone.

    python demo_data.py shapes DIR
    python semantic_segmentation.py --train DIR/train --train_annotation DIR/train_annotation
    python semantic_segmentation.py --train ... --previous_model segformer      # a folder of Transformers, further
    python semantic_segmentation.py --predict photo.png --model_dir model        # writes output/photo.png, its mask

In a training job the hyperparameters come as `--key value`, the folders from SM_CHANNEL_TRAIN, SM_CHANNEL_TRAIN_ANNOTATION
and so on, as the platform's semantic segmentation has them.
docs/programs/semantic_segmentation.md has the table of hyperparameters.
"""

from __future__ import annotations

from _common import Parser, Problem, World, previous_model, run, whole_file
from _predicting import Answers

from trainshed.checkpoint import listen

if __name__ == "__main__":
    listen()  # before torch is imported: that takes seconds, and a stop in that time shall end with status 0 too

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import _annotated
import _bodies
import _epochs
import _images
import _masks
import _pictures
import _weights
import numpy
import torch
from image_classification import Block, norm
from torch import Tensor, nn
from torch.nn import functional


def hyperparameters(argv: Sequence[str]) -> Namespace:
    """Reads the command line; raises Problem."""
    hp = Parser.declared(__file__).read(argv)
    hp.batch_size = hp.mini_batch_size or hp.batch_size
    _annotated.stop_early(hp)
    hp.image_size = hp.image_size or hp.crop_size
    return hp


# --- the network ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Architecture:
    """All that is needed to build the network and to feed it; model.json holds it.

    shape: (channels, height, width) of the images.   mean, std: of the raw pixel values, one a channel.
    library: "" for our own network, of `algorithm` and `width`, else "transformers".
    """

    classes: int
    shape: list[int]
    mean: list[float]
    std: list[float]
    algorithm: str = "fcn"
    width: int = 16
    library: str = ""


def layer(inputs: int, outputs: int, size: int, dilation: int = 1) -> nn.Module:
    """A convolution that keeps height and width, with norm and ReLU."""
    around = dilation * (size // 2)
    way = nn.Conv2d(inputs, outputs, size, padding=around, dilation=dilation, bias=False)
    return nn.Sequential(way, norm(outputs), nn.ReLU(inplace=True))


class Pyramid(nn.Module):
    """Features beside their means over the picture and over parts of it (PSPNet), or wider looks at them (DeepLab v3)."""

    def __init__(self, channels: int, algorithm: str) -> None:
        super().__init__()
        quarter = max(channels // 4, 1)
        self.grids = (1, 2, 3, 6) if algorithm == "psp" else (1,)
        # Without norm: of one pixel there is nothing to norm by.
        self.means = nn.ModuleList(nn.Sequential(nn.Conv2d(channels, quarter, 1), nn.ReLU()) for _ in self.grids)
        wide = (1, 2, 4) if algorithm == "deeplab" else ()
        self.looks = nn.ModuleList(layer(channels, quarter, 3, dilation) for dilation in wide)
        self.together = layer(channels + quarter * (len(self.grids) + len(wide)), channels, 1)

    def forward(self, features: Tensor) -> Tensor:
        size = features.shape[-2:]
        parts = [features, *(look(features) for look in self.looks)]
        for grid, mean in zip(self.grids, self.means, strict=True):
            pooled = mean(functional.adaptive_avg_pool2d(features, grid))
            parts.append(functional.interpolate(pooled, size, mode="bilinear", align_corners=False))
        return self.together(torch.cat(parts, dim=1))


class Small(nn.Module):
    """Normalised pixels to logits of each pixel: a residual network, what `algorithm` puts on it, and a way back up."""

    def __init__(self, made: Architecture) -> None:
        super().__init__()
        width = made.width
        self.fine = nn.Sequential(layer(made.shape[0], width, 3), Block(width, width, 1))
        self.coarse = nn.Sequential(
            Block(width, 2 * width, 2), Block(2 * width, 4 * width, 2), Block(4 * width, 4 * width, 1)
        )
        self.middle = nn.Identity() if made.algorithm == "fcn" else Pyramid(4 * width, made.algorithm)
        self.up = layer(5 * width, 2 * width, 3)
        self.head = nn.Conv2d(2 * width, made.classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        fine = self.fine(images)
        coarse = self.middle(self.coarse(fine))
        raised = functional.interpolate(coarse, fine.shape[-2:], mode="bilinear", align_corners=False)
        return self.head(self.up(torch.cat([fine, raised], dim=1)))


class Network(_bodies.Fed):
    """Raw pixel values (N, C, H, W), of any number type, to logits of each pixel (N, classes, H, W)."""

    def __init__(self, made: Architecture, body: nn.Module) -> None:
        super().__init__(made.mean, made.std, body, bool(made.library))

    def forward(self, images: Tensor) -> Tensor:
        answer = self.body(self.normal(images))
        logits = getattr(answer, "logits", answer)
        if logits.shape[-2:] != images.shape[-2:]:
            logits = functional.interpolate(logits, images.shape[-2:], mode="bilinear", align_corners=False)
        return logits


def borrowed(root: Path, count: int, shape: tuple[int, int, int]) -> tuple[Network, Architecture]:
    """A network of Transformers, its head new if it had another number of classes. Raises Problem."""
    what = "segmentation"
    heads = ("classifier", "head")
    body, mean, std = _bodies.borrowed(root, "AutoModelForSemanticSegmentation", what, heads, num_labels=count)
    made = Architecture(count, list(shape), mean, std, library="transformers")
    network = Network(made, body)
    try:
        with torch.no_grad():
            answer = network.eval()(torch.zeros(1, *shape))
    except Exception as error:  # of any network, about pictures that are not for it
        raise Problem(f"{root} holds no network for {what} of such pictures: {_bodies.line(error)}") from error
    if not torch.isfinite(answer).all():
        raise Problem(f"{root} gives no finite numbers: its weights are damaged")
    network.train()
    return network, made


# --- training ---------------------------------------------------------------------------------------------------------


class Segmentation(_epochs.Task):
    """What is trained: a network and the pictures of each part."""

    program = "semantic_segmentation"

    def __init__(self, hp: Namespace, world: World) -> None:
        self.hp, self.world = hp, world
        self.data = _annotated.load(hp, _masks.read_channel)
        world.require_same("the ranks see different data", self.data.summary())
        torch.manual_seed(hp.seed)
        self.network, self.made = self._begin()
        if world.rank == 0:
            _weights.require_export(hp, self.network, self.made.shape)
        self.network.to(world.device)
        hp.learning_rate = hp.learning_rate if hp.learning_rate is not None else 0.0005 if self.made.library else 0.005
        self.amp = world.bfloat16(hp.amp)
        self.count = len(self.data.train)
        held = {"validation": self.data.validation, "test": self.data.test}
        self.parts = {part: len(data) for part, data in held.items() if data is not None}
        self.of_part = {"train": self.data.train, **held}
        self.watched, self.higher = ("miou", True) if "validation" in self.parts else ("", False)
        self.facts = {"architecture": json.dumps(asdict(self.made), sort_keys=True), "masks": self.data.checksum}

    def _begin(self) -> tuple[Network, Architecture]:
        """The network: of a library, of an earlier job, or a new small one. Raises Problem."""
        hp, data = self.hp, self.data
        previous = previous_model(hp.previous_model)
        if previous is None:
            if hp.use_pretrained_model:
                raise Problem("use_pretrained_model is 1, but there is no channel model: no weights come with this program")
            mean, std = _images.statistics(_images.some(data.train, hp.seed))
            made = self.world.from_first(Architecture(data.classes, list(data.shape), mean, std, hp.algorithm, hp.width))
            return Network(made, Small(made)), made
        if not _bodies.is_of(previous, self.program):
            network, made = borrowed(previous, data.classes, data.shape)
            self.world.say(f"the network: {type(network.body).__name__} of transformers, with the weights in {previous}")
            return network, made
        network, made = load(previous)
        if (made.classes, made.shape[0]) != (data.classes, data.shape[0]):
            theirs = f"{made.classes} classes and {made.shape[0]} channels"
            raise Problem(f"the previous model has {theirs}, the data {data.classes} and {data.shape[0]}")
        self.world.say(f"going on from the model in {previous}")
        return network, made

    def loss(self, model: nn.Module, whole: Sequence[int], mine: slice, place: tuple[int, int]) -> tuple[Tensor, float]:
        """Cross-entropy: the mean over the pixels of a picture that have a class, added up over pictures."""
        images, labels = self.data.train[list(whole[mine])]
        step = place[1]
        if self.hp.augment == "flip":
            draw = numpy.random.default_rng((self.hp.seed, step)).random(len(whole)) < 0.5
            mirror = torch.from_numpy(draw[mine]).view(-1, 1, 1)
            images = torch.where(mirror[..., None], images.flip(3), images)
            labels = torch.where(mirror, labels.flip(2), labels)
        if self.made.library:  # dropout: as drawn in a job that was never interrupted
            torch.manual_seed((self.hp.seed * 1_000_003 + step) * self.world.size + self.world.rank)
        with torch.autocast(self.world.device.type, torch.bfloat16, enabled=self.amp):
            logits = model(images.to(self.world.device))
        return _losses(logits, labels.to(self.world.device)).sum(), float(len(whole))

    def outputs(self, part: str, positions: Sequence[int]) -> list[Any]:
        """Of each picture its loss, and how many pixels of each class were taken for each: [1 + classes ** 2]."""
        images, labels = self.of_part[part][list(positions)]
        labels = labels.to(self.world.device)
        with torch.autocast(self.world.device.type, torch.bfloat16, enabled=self.amp):
            logits = self.network(images.to(self.world.device))
        answers, count, made = logits.argmax(1), self.data.classes, []
        for loss, truth, answer in zip(_losses(logits, labels), labels, answers, strict=True):
            known = truth != _masks.IGNORED
            pairs = torch.bincount(truth[known] * count + answer[known], minlength=count * count)
            made.append(numpy.concatenate([[float(loss)], pairs.cpu().numpy()]))
        return made

    def scores(self, part: str, outputs: list[Any]) -> dict[str, float]:
        """Loss, pixel accuracy and mIoU: the mean over classes, that are there or are seen, of overlap to union."""
        count, total = self.data.classes, numpy.sum(outputs, axis=0)
        pairs = total[1:].reshape(count, count)
        either = pairs.sum(0) + pairs.sum(1) - pairs.diagonal()
        seen = either > 0
        return {
            "loss": float(total[0]) / len(outputs),
            "pixel_accuracy": float(pairs.diagonal().sum() / max(pairs.sum(), 1)),
            "miou": float((pairs.diagonal()[seen] / either[seen]).mean()) if seen.any() else 0.0,
        }

    def draw(self, part: str, outputs: list[Any]) -> None:
        count, hp = self.data.classes, self.hp
        pairs = numpy.sum(outputs, axis=0)[1:].reshape(count, count).astype(numpy.int64)
        _pictures.of_pairs(hp, part, [str(at) for at in range(count)], pairs, "pixels")
        shown = []
        with torch.no_grad():
            for at in range(min(_pictures.SHOWN // 2, len(outputs))):
                images, labels = self.of_part[part][[at]]
                answer = self.network(images.to(self.world.device)).argmax(1)[0].cpu()
                image = _pictures.image_of(images[0])
                there = labels[0] * (labels[0] != _masks.IGNORED)
                shown += [(_pictures.with_mask(image, there), "as it is"), (_pictures.with_mask(image, answer), "as said")]
        _pictures.sheet(
            hp, "samples", f"Masks on {part}", shown, "in pairs: the mask that is there, and the one that was said"
        )

    def save(self, target: Path) -> dict[str, Any]:
        """Writes the network, as Transformers reads it or as a state_dict, and as ONNX if asked."""
        if self.made.library:
            _bodies.save(self.network.body, target)
        else:
            _weights.save(self.network.body, target)
        _weights.export(self.hp, self.network, self.made.shape, target)
        return {"architecture": asdict(self.made)}


def _losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Of each picture the mean over its pixels that have a class; 0 where none has."""
    every = functional.cross_entropy(logits.float(), labels, ignore_index=_masks.IGNORED, reduction="none")
    return every.sum((1, 2)) / (labels != _masks.IGNORED).sum((1, 2)).clamp(min=1)


# --- the model's folder -----------------------------------------------------------------------------------------------


def load(model_dir: str | Path) -> tuple[Network, Architecture]:
    """The trained network, on the CPU and ready to predict, with its architecture; raises Problem."""
    root = Path(model_dir)
    try:
        made = Architecture(**json.loads((root / "model.json").read_text(encoding="utf-8"))["architecture"])
        if made.library:
            network, _ = borrowed(root, made.classes, tuple(made.shape))  # type: ignore[arg-type]
            return Network(made, network.body).eval(), made
        network = Network(made, Small(made))
        _weights.load(network.body, root)
    except Problem:
        raise
    except Exception as error:  # of JSON, zip files, pickle and torch
        raise Problem(f"{root} holds no model of semantic_segmentation: {_bodies.line(error)}") from error
    return network.eval(), made


@torch.no_grad()
def predict(hp: Namespace) -> None:
    """Writes a mask for each image to output_data_dir; prints a JSON line: {"input", "mask", "classes": their parts}."""
    network, made = load(hp.model_dir)
    source = Path(hp.predict)
    answers = Answers()
    for path, size, pixels in _images.to_predict(hp.predict, tuple(made.shape), answers):  # type: ignore[arg-type]
        classes = network(pixels).argmax(1)[0].to(torch.uint8).numpy()
        mask = _picture(classes, size)
        name = (path.relative_to(source) if source.is_dir() else Path(path.name)).with_suffix(".png")
        target = Path(hp.output_data_dir) / name
        with whole_file(target) as written:
            mask.save(written, "PNG")
        parts = numpy.bincount(classes.ravel(), minlength=made.classes) / classes.size
        shares = {str(at): round(float(part), 4) for at, part in enumerate(parts) if part}
        answers.say({}, {"input": str(path), "mask": str(target), "classes": shares})
    answers.end()


def _picture(classes: Any, size: tuple[int, int]) -> Any:
    from PIL import Image

    return Image.fromarray(classes).resize(size, resample=0)


def main() -> None:
    """The command line."""
    hp = hyperparameters(sys.argv[1:])
    if hp.predict:
        predict(hp)
        return
    world = World.join(hp.device)
    task = Segmentation(hp, world)
    what = f"{task.count} images of {_images.shown(task.data.shape)} with masks, {task.data.classes} classes"
    _epochs.Epochs(hp, world, task).run(what)
    world.leave()


if __name__ == "__main__":
    run(main)
