"""The channels of pictures with annotations beside them: `train` and `train_annotation`, and so on. Raises Problem."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import _images
import _told
from _common import Problem, in_job, looked, piped
from torch.utils.data import Subset


@dataclass(frozen=True)
class Data:
    """What a run trains on; `validation` and `test` may be None.

    checksum: of all annotations of train. classes: as the reader gives them. shape: (channels, height, width).
    """

    train: Any
    validation: Any
    test: Any
    checksum: str
    classes: Any
    shape: tuple[int, int, int]

    def summary(self) -> dict[str, object]:
        """A few facts that differ if the data do."""
        parts = [len(part) if part is not None else 0 for part in (self.train, self.validation, self.test)]
        return {"images": parts, "shape": self.shape, "classes": self.classes, "annotations": self.checksum}


def stop_early(hp: Namespace) -> None:
    """The platform's names of patience and min_epochs, where its early_stopping asks for them."""
    if hp.early_stopping and hp.patience is None:
        hp.patience, hp.min_epochs = hp.early_stopping_patience, hp.early_stopping_min_epochs


def load(hp: Namespace, read_channel: Callable[..., tuple[Any, Any, str]]) -> Data:
    """All the channels, the validation data held out of train if they have no channel.

    read_channel: gives the pictures of a channel, the classes and a checksum, of (pictures, annotations, what it is called,
    image_size, channels, num_classes, classes and shape of train to keep to, the share that may be damaged).
    """
    if not hp.train:
        raise Problem("the job has no channel train" if in_job() else "give --train FOLDER and --train_annotation FOLDER")
    for name in ("train", "validation", "test"):
        if (path := getattr(hp, name)) and piped(path, name):
            raise Problem(
                f"the channel {name} is in Pipe mode, and images are read in another order each epoch: use FastFile"
            )
    sizes = (hp.image_size, hp.channels, hp.num_classes)
    train, classes, checksum = read_channel(hp.train, hp.train_annotation, "the channel train", *sizes, skip=hp.skip_damaged)
    parts = []
    for name in ("validation", "test"):
        path, beside = getattr(hp, name), getattr(hp, f"{name}_annotation")
        like = (classes, train.shape)
        what, skip = f"the channel {name}", hp.skip_damaged
        parts.append(read_channel(path, beside, what, *sizes, like, skip)[0] if path else None)
    count = classes if isinstance(classes, int) else len(classes)
    marks = _told.Field("annotation", "label", len(train), -1, 0, "", f"{count} classes")
    _told.say(hp, "the channel train", len(train), [_told.pictures(len(train), _images.shown(train.shape)), marks])
    looked(hp)
    if parts[0] is None and hp.validation_fraction:
        kept, held_out = _images.split(train.labels, hp.validation_fraction, hp.seed)
        parts[0] = Subset(train, held_out) if held_out else None
        return Data(Subset(train, kept), parts[0], parts[1], checksum, classes, train.shape)
    return Data(train, parts[0], parts[1], checksum, classes, train.shape)
