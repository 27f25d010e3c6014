"""Trains a network that finds things in pictures, from hyperparameters alone.

    python demo_data.py boxes DIR
    python object_detection.py --train DIR/train --train_annotation DIR/train_annotation
    python object_detection.py --train ... --previous_model detr    # a folder of Transformers (DETR, RT-DETR, YOLOS)
    python object_detection.py --predict photo.png --model_dir model   # prints what is where

In a training job the hyperparameters come as `--key value`, the folders from SM_CHANNEL_TRAIN, SM_CHANNEL_TRAIN_ANNOTATION
and so on, as the platform's object detection has them. docs/programs/object_detection.md has the table of hyperparameters.
"""

from __future__ import annotations

from _common import Parser, Problem, World, previous_model, run
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
import _boxes
import _epochs
import _images
import _pictures
import _told
import _weights
import numpy
import torch
from _boxes import Marks
from image_classification import Block
from semantic_segmentation import layer
from torch import Tensor, nn
from torch.nn import functional

MOST = 100  # boxes of a picture that are measured, as COCO has it
STRIDE = 4  # of our own network: pixels a cell


def hyperparameters(argv: Sequence[str]) -> Namespace:
    """Reads the command line; raises Problem."""
    hp = Parser.declared(__file__).read(argv)
    hp.batch_size = hp.mini_batch_size or hp.batch_size
    _annotated.stop_early(hp)
    hp.image_size = hp.image_size or hp.image_shape
    return hp


# --- the network ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Architecture:
    """All that is needed to build the network and to feed it; model.json holds it.

    shape: (channels, height, width) of the images.   mean, std: of the raw pixel values, one a channel.
    library: "" for our own network, of `width`, else "transformers".
    """

    classes: list[str]
    shape: list[int]
    mean: list[float]
    std: list[float]
    width: int = 16
    library: str = ""


class Small(nn.Module):
    """Normalised pixels to a cell each STRIDE pixels: how likely the middle of a thing of each class is there, and its box.

    As "Objects as Points" (Zhou et al., 2019), with boxes learnt as DETR does. Logits (N, classes + 4, H / 4, W / 4).
    """

    def __init__(self, made: Architecture) -> None:
        super().__init__()
        width = made.width
        self.fine = nn.Sequential(layer(made.shape[0], width, 3), Block(width, 2 * width, 2), Block(2 * width, 4 * width, 2))
        self.coarse = nn.Sequential(Block(4 * width, 8 * width, 2), Block(8 * width, 8 * width, 1))
        self.together = layer(12 * width, 4 * width, 3)
        self.head = nn.Conv2d(4 * width, len(made.classes) + 4, 1)
        with torch.no_grad():
            self.head.weight.mul_(0.1)
            bias: Any = self.head.bias
            bias.zero_()
            bias[:-4] = -4.6  # one in a hundred, so that the many cells with nothing do not drown the others
            bias[-2:] = -1.0

    def forward(self, images: Tensor) -> Tensor:
        fine = self.fine(images)
        coarse = functional.interpolate(self.coarse(fine), fine.shape[-2:], mode="bilinear", align_corners=False)
        return self.head(self.together(torch.cat([fine, coarse], dim=1)))


def boxes_of(raw: Tensor) -> Tensor:
    """Of each cell its box, as middle and size: (N, 4, H, W) of what the head says."""
    rows, columns = raw.shape[-2:]
    y, x = torch.meshgrid(*(torch.arange(size, device=raw.device) for size in (rows, columns)), indexing="ij")
    moved = 2 * raw[:, :2].sigmoid() - 0.5
    middles = (torch.stack([x, y]) + moved) / torch.tensor([columns, rows], device=raw.device).view(1, 2, 1, 1)
    return torch.cat([middles, raw[:, 2:].sigmoid()], dim=1)


def edges(boxes: Tensor) -> Tensor:
    """Middle and size as left, top, right, bottom; in the last dimension."""
    return torch.cat([boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], dim=-1)


def _unlike(first: Tensor, second: Tensor) -> Tensor:
    """How unlike boxes (n, 4) are, in pairs: the sides, and the generalized overlap (Rezatofighi et al., 2019)."""
    one, two = edges(first), edges(second)
    shared = (torch.minimum(one[:, 2:], two[:, 2:]) - torch.maximum(one[:, :2], two[:, :2])).clamp(min=0).prod(1)
    around = (torch.maximum(one[:, 2:], two[:, 2:]) - torch.minimum(one[:, :2], two[:, :2])).prod(1)
    either = first[:, 2:].prod(1) + second[:, 2:].prod(1) - shared
    overlap = shared / (either + 1e-9) - (around - either) / (around + 1e-9)
    return 5 * (first - second).abs().sum(1) + 2 * (1 - overlap)


def losses(logits: Tensor, marks: Sequence[Marks]) -> Tensor:
    """Of each picture the loss of `Small`: of its cells and boxes, by their number."""
    count, (rows, columns) = logits.shape[1] - 4, logits.shape[-2:]
    boxes = boxes_of(logits[:, -4:].float())
    size = torch.tensor([columns, rows], device=logits.device)
    y, x = torch.meshgrid(*(torch.arange(side, device=logits.device) for side in (rows, columns)), indexing="ij")
    made = []
    for heat, found, one in zip(logits[:, :count].float(), boxes, marks, strict=True):
        classes, there = one.classes.to(logits.device), one.boxes.to(logits.device)
        cells = (there[:, :2] * size).long().minimum(size - 1)
        near = torch.zeros_like(heat)
        for kind, cell, box in zip(classes, cells, there, strict=True):  # less is wrong with cells near the middle
            wide = (box[2:] * size / 6).clamp(min=0.4)
            bell = torch.exp(-(((x - cell[0]) / wide[0]) ** 2) / 2 - ((y - cell[1]) / wide[1]) ** 2 / 2)
            near[kind] = torch.maximum(near[kind], bell)
        middle = torch.zeros_like(heat, dtype=torch.bool)
        middle[classes, cells[:, 1], cells[:, 0]] = True
        sure = heat.sigmoid()
        right = -functional.logsigmoid(heat) * (1 - sure) ** 2
        wrong = -functional.logsigmoid(-heat) * sure**2 * (1 - near) ** 4
        unlike = _unlike(found[:, cells[:, 1], cells[:, 0]].T, there).sum()
        made.append((torch.where(middle, right, wrong).sum() + unlike) / max(len(classes), 1))
    return torch.stack(made)


class Network(_bodies.Fed):
    """Raw pixel values (N, C, H, W), of any number type, to what the body says; with `marks` to the loss of each picture.

    Of a library's body the loss is one number, for all pictures together.
    """

    def __init__(self, made: Architecture, body: nn.Module) -> None:
        super().__init__(made.mean, made.std, body, bool(made.library))

    def forward(self, images: Tensor, marks: Sequence[Marks] | None = None) -> Any:
        pixels = self.normal(images)
        if not self.borrowed:
            logits = self.body(pixels)
            return logits if marks is None else (logits, losses(logits, marks))
        if marks is None:
            return self.body(pixel_values=pixels)
        told = [
            {"class_labels": one.classes.to(images.device), "boxes": one.boxes.to(images.device).clamp(1e-6, 1)}
            for one in marks
        ]
        answer = self.body(pixel_values=pixels, labels=told)
        return answer, answer.loss

    def said(self, answer: Any, count: int) -> tuple[Tensor, Tensor]:
        """Scores (N, Q, classes) and boxes (N, Q, 4), as middle and size, of what the body says."""
        if self.borrowed:
            logits, boxes = answer.logits.float(), answer.pred_boxes.float()  # (N, Q, classes or one more), (N, Q, 4)
            scores = logits.sigmoid() if logits.shape[-1] == count else logits.softmax(-1)[..., :count]
        else:
            heat = answer[:, :count].float().sigmoid()
            heat = torch.where(functional.max_pool2d(heat, 3, 1, 1) == heat, heat, 0)  # one box for one thing
            scores, boxes = heat.flatten(2).transpose(1, 2), boxes_of(answer[:, -4:].float()).flatten(2).transpose(1, 2)
        return scores, boxes

    def found(self, answer: Any, count: int) -> list[Tensor]:
        """The likeliest boxes of each picture, by what the body says: (n, 6) of class, score and edges, the best first."""
        scores, boxes = self.said(answer, count)
        made = []
        for score, box in zip(scores, boxes, strict=True):
            best = score.flatten().topk(min(MOST, score.numel()))
            where, kind = best.indices // count, best.indices % count
            made.append(torch.cat([kind[:, None].float(), best.values[:, None], edges(box[where]).clamp(0, 1)], dim=1))
        return made


class Exported(nn.Module):
    """Raw pixel values to scores (N, Q, classes) and edges (N, Q, 4) of boxes, in parts of the picture; for ONNX."""

    def __init__(self, network: Network, count: int) -> None:
        super().__init__()
        self.network, self.count = network, count

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        scores, boxes = self.network.said(self.network(images), self.count)
        return scores, edges(boxes).clamp(0, 1)


def borrowed(root: Path, classes: list[str], shape: tuple[int, int, int]) -> tuple[Network, Architecture]:
    """A detector of Transformers, its head new if it had another number of classes. Raises Problem."""
    heads = ("class", "score_head", "denoising")
    names = dict(enumerate(classes))
    body, mean, std = _bodies.borrowed(
        root, "AutoModelForObjectDetection", "detection", heads,
        num_labels=len(classes), id2label=names, label2id={name: at for at, name in names.items()},
    )  # fmt: skip
    made = Architecture(classes, list(shape), mean, std, library="transformers")
    network = Network(made, body)
    try:
        with torch.no_grad():
            answer = network.eval()(torch.zeros(1, *shape))
        sound = torch.isfinite(answer.logits).all() and torch.isfinite(answer.pred_boxes).all()
    except Exception as error:  # of any network, about pictures that are not for it
        raise Problem(f"{root} holds no network for detection in such pictures: {_bodies.line(error)}") from error
    if not sound:
        raise Problem(f"{root} gives no finite numbers: its weights are damaged")
    network.train()
    return network, made


# --- training ---------------------------------------------------------------------------------------------------------


class Detection(_epochs.Task):
    """What is trained: a network and the pictures of each part."""

    program = "object_detection"

    def __init__(self, hp: Namespace, world: World) -> None:
        self.hp, self.world = hp, world
        self.data = _annotated.load(hp, _boxes.read_channel)
        world.require_same("the ranks see different data", self.data.summary())
        torch.manual_seed(hp.seed)
        self.network, self.made = self._begin()
        if world.rank == 0:
            _weights.require_export(hp, Exported(self.network, len(self.made.classes)), self.made.shape)
        self.network.to(world.device)
        hp.learning_rate = hp.learning_rate if hp.learning_rate is not None else 0.0001 if self.made.library else 0.01
        self.amp = world.bfloat16(hp.amp)
        self.count = len(self.data.train)
        held = {"validation": self.data.validation, "test": self.data.test}
        self.parts = {part: len(data) for part, data in held.items() if data is not None}
        self.of_part = {"train": self.data.train, **held}
        self.watched, self.higher = ("map", True) if "validation" in self.parts else ("", False)
        self.facts = {"architecture": json.dumps(asdict(self.made), sort_keys=True), "boxes": self.data.checksum}

    def _begin(self) -> tuple[Network, Architecture]:
        """The network: of a library, of an earlier job, or a new small one. Raises Problem."""
        hp, data = self.hp, self.data
        previous = previous_model(hp.previous_model)
        if previous is None:
            if hp.use_pretrained_model:
                raise Problem("use_pretrained_model is 1, but there is no channel model: no weights come with this program")
            mean, std = _images.statistics(_images.some(data.train, hp.seed))
            made = self.world.from_first(Architecture(data.classes, list(data.shape), mean, std, hp.width))
            return Network(made, Small(made)), made
        if not _bodies.is_of(previous, self.program):
            network, made = borrowed(previous, data.classes, data.shape)
            self.world.say(f"the network: {type(network.body).__name__} of transformers, with the weights in {previous}")
            return network, made
        network, made = load(previous)
        if (made.classes, made.shape[0]) != (data.classes, data.shape[0]):
            theirs = f"the classes {', '.join(made.classes[:5])} and {made.shape[0]} channels"
            raise Problem(f"the previous model has {theirs}, the data {', '.join(data.classes[:5])} and {data.shape[0]}")
        self.world.say(f"going on from the model in {previous}")
        return network, made

    def loss(self, model: nn.Module, whole: Sequence[int], mine: slice, place: tuple[int, int]) -> tuple[Tensor, float]:
        """What pictures lose, added up; of a library's network as many times what they lose on average."""
        images, marks = self.data.train[list(whole[mine])]
        step = place[1]
        if self.hp.augment == "flip":
            draw = numpy.random.default_rng((self.hp.seed, step)).random(len(whole)) < 0.5
            mirror = torch.from_numpy(draw[mine])
            images = torch.where(mirror.view(-1, 1, 1, 1), images.flip(3), images)
            marks = [_mirrored(one) if turned else one for one, turned in zip(marks, mirror.tolist(), strict=True)]
        if self.made.library:  # dropout and noise: as drawn in a job that was never interrupted
            torch.manual_seed((self.hp.seed * 1_000_003 + step) * self.world.size + self.world.rank)
        with torch.autocast(self.world.device.type, torch.bfloat16, enabled=self.amp):
            _, lost = model(images.to(self.world.device), marks)
        if self.made.library:
            # Weights that a batch without a box does not reach: ranks would wait for their gradients.
            lost = lost * len(images) + 0.0 * sum(one.sum() for one in self.network.parameters() if one.requires_grad)
        return lost.sum(), float(len(whole))

    def outputs(self, part: str, positions: Sequence[int]) -> list[Any]:
        """Of each picture rows [n, 7]: its loss first, then what was found and what is there.

        A row: 0 for what is there, 1 for what was found; class, score and edges.
        """
        images, marks = self.of_part[part][list(positions)]
        with torch.autocast(self.world.device.type, torch.bfloat16, enabled=self.amp):
            answer, lost = self.network(images.to(self.world.device), marks)
        lost = lost.float().expand(len(images)).cpu().numpy()
        made = []
        for loss, found, one in zip(lost, self.network.found(answer, len(self.data.classes)), marks, strict=True):
            first = numpy.zeros((1, 7))
            first[0, 0] = loss
            there = torch.cat([one.classes[:, None].float(), torch.ones(len(one.classes), 1), edges(one.boxes)], dim=1)
            rows = [numpy.column_stack([numpy.full(len(part), mark), part]) for mark, part in
                    ((1, found.cpu().numpy()), (0, there.numpy()))]  # fmt: skip
            made.append(numpy.concatenate([first, *rows]))
        return made

    def scores(self, part: str, outputs: list[Any]) -> dict[str, float]:
        """Loss, and mean average precision as COCO has it: over overlaps from 0.5 to 0.95, and at 0.5."""
        every = []
        for kind in range(len(self.data.classes)):
            rows = [one[1:][one[1:, 1] == kind] for one in outputs]
            found, there = ([one[one[:, 0] == mark] for one in rows] for mark in (1, 0))
            every.append(_boxes.average_precision([one[:, 2:] for one in found], [one[:, 3:] for one in there]))
        precision = numpy.array(every)
        seen = precision[~numpy.isnan(precision[:, 0])]
        return {
            "loss": float(sum(one[0, 0] for one in outputs) / len(outputs)),
            "map": float(seen.mean()) if len(seen) else 0.0,
            "map_50": float(seen[:, 0].mean()) if len(seen) else 0.0,
        }

    def draw(self, part: str, outputs: list[Any]) -> None:
        hp, classes, threshold = self.hp, self.made.classes, self.hp.score_threshold
        shown = []
        for at, rows in enumerate(outputs[: _pictures.SHOWN]):
            images, _ = self.of_part[part][[at]]
            there = [(int(row[1]), -1.0, row[3:]) for row in rows[1:] if not row[0]]
            found = [(int(row[1]), row[2], row[3:]) for row in rows[1:] if row[0] and row[2] >= threshold]
            line = ", ".join(f"{classes[kind]} {score:.2f}" for kind, score, _ in found) or "nothing found"
            shown.append((_pictures.with_boxes(_pictures.image_of(images[0]), [*there, *found]), line))
        said = f"white: boxes that are there; colours: those found, surer than {threshold:g}"
        _pictures.sheet(hp, "samples", f"Boxes on {part}", shown, said)
        made = [(name, *self._precision(kind, outputs)) for kind, name in enumerate(classes)]
        _told.keep(hp, "classes", f"Classes on {part}", ("class", "mAP", "AP at 0.5", "there", "found"), made)

    def _precision(self, kind: int, outputs: list[Any]) -> tuple[str, str, str, str]:
        """Of a class: mean average precision, that at an overlap of 0.5, and how many boxes are there and were found."""
        rows = [one[1:][one[1:, 1] == kind] for one in outputs]
        found, there = ([one[one[:, 0] == mark] for one in rows] for mark in (1, 0))
        values = numpy.asarray(_boxes.average_precision([one[:, 2:] for one in found], [one[:, 3:] for one in there]))
        sure = sum(int((one[:, 2] >= self.hp.score_threshold).sum()) for one in found)
        return f"{values.mean():.3f}", f"{values[0]:.3f}", str(sum(map(len, there))), str(sure)

    def save(self, target: Path) -> dict[str, Any]:
        """Writes the network, as Transformers reads it or as a state_dict, and as ONNX if asked."""
        if self.made.library:
            _bodies.save(self.network.body, target)
        else:
            _weights.save(self.network.body, target)
        _weights.export(self.hp, Exported(self.network, len(self.made.classes)), self.made.shape, target)
        return {"architecture": asdict(self.made)}


def _mirrored(one: Marks) -> Marks:
    boxes = one.boxes.clone()
    boxes[:, 0] = 1 - boxes[:, 0]
    return Marks(one.classes, boxes)


# --- the model's folder -----------------------------------------------------------------------------------------------


def load(model_dir: str | Path) -> tuple[Network, Architecture]:
    """The trained network, on the CPU and ready to predict, with its architecture; raises Problem."""
    root = Path(model_dir)
    try:
        made = Architecture(**json.loads((root / "model.json").read_text(encoding="utf-8"))["architecture"])
        if made.library:
            network, _ = borrowed(root, made.classes, tuple(made.shape))  # type: ignore[arg-type]
            network = Network(made, network.body)
        else:
            network = Network(made, Small(made))
            _weights.load(network.body, root)
    except Problem:
        raise
    except Exception as error:  # of JSON, zip files, pickle and torch
        raise Problem(f"{root} holds no model of object_detection: {_bodies.line(error)}") from error
    network.eval()
    return network, made


@torch.no_grad()
def predict(hp: Namespace) -> None:
    """Prints a JSON line an image: {"input", "boxes": [{"class", "score", "box": left, top, width, height in pixels}]}."""
    network, made = load(hp.model_dir)
    answers = Answers()
    for path, (width, height), pixels in _images.to_predict(hp.predict, tuple(made.shape), answers):  # type: ignore[arg-type]
        boxes = []
        for kind, score, x0, y0, x1, y1 in network.found(network(pixels), len(made.classes))[0].tolist():
            if score >= hp.score_threshold:
                box = [round(side, 2) for side in (x0 * width, y0 * height, (x1 - x0) * width, (y1 - y0) * height)]
                boxes.append({"class": made.classes[int(kind)], "score": round(score, 4), "box": box})
        answers.say({}, {"input": str(path), "boxes": boxes})
    answers.end()


def main() -> None:
    """The command line."""
    hp = hyperparameters(sys.argv[1:])
    if hp.predict:
        predict(hp)
        return
    world = World.join(hp.device)
    task = Detection(hp, world)
    what = f"{task.count} images of {_images.shown(task.data.shape)} with boxes, {len(task.data.classes)} classes"
    _epochs.Epochs(hp, world, task).run(what)
    world.leave()


if __name__ == "__main__":
    run(main)
