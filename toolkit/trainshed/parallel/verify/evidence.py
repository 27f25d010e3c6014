"""What is written down about a few steps of a script: by each of its ranks, and by the one process that it is compared with.

It is JSON in a folder: `rank-0.json` and so on, and `alone.json`. Tensors are there as sketches alone.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..engine.verify.tensor_digest import Sketch

Sketches = dict[str, Sketch]
ACCELERATE, COMPRESSED, STAGES = "Accelerate's scheduler", "DDP's hook of gradients", "stages"


@dataclass
class Pass:
    """A forward of the model, and its backward.

    rows: a digest of each row of the inputs. random: of the generator's state. draws: whether the forward
    moved it, without dropout.
    dropout: whether there was some; it is left out. padding: whether the loss has counted padding.
    tokens: of each cross entropy, how many targets it has counted, how many there are, and its reduction.
    loss: what the backward began with, without the scaler's factor.
    past: the forward was one of a module inside of DDP. synced: it was in no `no_sync()`.
    outputs: module -> what it gave, for each rank in the one process, with the shape of a row.
    """

    rows: list[str] = field(default_factory=list)
    random: str = ""
    draws: bool = False
    training: str = ""
    dropout: bool = False
    padding: bool = False
    tokens: list[tuple[int, int, str]] = field(default_factory=list)
    loss: float | None = None
    past: bool = False
    synced: bool = True
    outputs: dict[str, tuple[list[int], list[Sketch]]] = field(default_factory=dict)


@dataclass
class Update:
    """A step of an optimizer.

    made: gradients after the last backward. taken: when the step began. moved: what it added to parameters.
    rates: learning rate of each group. norms: (limit, norm) of each clipping. scaled: a clipping came before the unscaling.
    strange: parameters of the optimizer that the model does not have.
    """

    passes: list[Pass] = field(default_factory=list)
    made: Sketches = field(default_factory=dict)
    taken: Sketches = field(default_factory=dict)
    moved: Sketches = field(default_factory=dict)
    buffers: Sketches = field(default_factory=dict)
    rates: list[float] = field(default_factory=list)
    norms: list[tuple[float, float]] = field(default_factory=list)
    scaled: bool = False
    strange: int = 0


@dataclass
class Loader:
    """length: batches it has, -1 if unknown. ended: for each time it was walked through, whether to its end.
    counts: how many batches it gave then."""

    length: int = -1
    ended: list[bool] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)


@dataclass
class Evidence:
    """All of one process.

    twins: ranks of its tensor group. ways: DDP, FSDP, TP, `ACCELERATE`, `COMPRESSED`, `STAGES`.
    start: parameters before the first forward.
    before: those that were divided, before that. loose: names of parameters whose tie is broken.
    norms_by_rank: modules that count over this rank's rows alone. buffers_sent: DDP's broadcast_buffers.
    repeated: whether a sampler gave the same order again. given: whether the one process was given inputs of forwards and
    losses in place of its own. by_hand: whether its model has other shapes than on the ranks. error: what ended the script.
    """

    rank: int = 0
    world: int = 1
    twins: list[int] = field(default_factory=list)
    ways: list[str] = field(default_factory=list)
    start: Sketches = field(default_factory=dict)
    before: list[tuple[str, Sketch]] = field(default_factory=list)
    loose: list[str] = field(default_factory=list)
    norms_by_rank: list[str] = field(default_factory=list)
    buffers_sent: bool = True
    repeated: bool = False
    updates: list[Update] = field(default_factory=list)
    loaders: list[Loader] = field(default_factory=list)
    given: bool = False
    by_hand: bool = False
    error: str = ""

    def save(self, path: Path) -> None:
        """It appears as a whole."""
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(self)))
        new.rename(path)


def load(path: Path) -> Evidence:
    """What `Evidence.save` has written."""
    given = json.loads(path.read_text())
    given["start"] = _sketches(given["start"])
    given["before"] = [(name, _sketch(one)) for name, one in given["before"]]
    given["updates"] = [_update(one) for one in given["updates"]]
    given["loaders"] = [Loader(**one) for one in given["loaders"]]
    return Evidence(**given)


def _update(given: dict[str, Any]) -> Update:
    for name in ("made", "taken", "moved", "buffers"):
        given[name] = _sketches(given[name])
    given["passes"] = [_pass(one) for one in given["passes"]]
    given["norms"] = [tuple(one) for one in given["norms"]]
    return Update(**given)


def _pass(given: dict[str, Any]) -> Pass:
    given["outputs"] = {
        name: (shape, [_sketch(one) for one in sketches]) for name, (shape, sketches) in given["outputs"].items()
    }
    given["tokens"] = [tuple(one) for one in given["tokens"]]
    return Pass(**given)


def _sketches(given: dict[str, Any]) -> Sketches:
    return {name: _sketch(one) for name, one in given.items()}


def _sketch(given: dict[str, Any]) -> Sketch:
    return Sketch(tuple(given["products"]), given["length"], given["unit"], given["broken"])
