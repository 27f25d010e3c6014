"""The training of recommend.py: a factorization machine, or two towers, in plain PyTorch, in the loop of `_epochs`.

Source of the machine: Rendle, "Factorization Machines" (2010): bias + sum of weights + sum over pairs of the products of
their factors, the latter as half of (square of the sum - sum of the squares).
"""

from __future__ import annotations

import json
import math
import zlib
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import _weights
import numpy
import torch
from _common import Problem, World, whole_file
from _epochs import Epochs, Task, about_model
from _ratings import Data, Entries, entries_of, table_of
from _sparing import Spare
from torch import Tensor, nn
from torch.nn import functional

PROGRAM = "recommend"


class Machine(nn.Module):
    """A factorization machine. keys: [rows, entries], of which the last number is for none. values: [rows, entries]"""

    def __init__(self, features: int, factors: int, spread: float) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))
        self.linear = nn.Embedding(features + 1, 1, padding_idx=features)
        self.factors = nn.Embedding(features + 1, factors, padding_idx=features)
        with torch.no_grad():
            self.linear.weight.zero_()
            self.factors.weight.normal_(0, spread)[features].zero_()

    def forward(self, keys: Tensor, values: Tensor) -> Tensor:
        """Scores. [rows]"""
        linear = (self.linear(keys)[..., 0] * values).sum(1)
        return self.bias + linear + self.pairs(keys, self.factors(keys) * values[..., None])

    def pairs(self, keys: Tensor, parts: Tensor) -> Tensor:
        """What features give together. parts: their factors. [rows, entries, factors] -> [rows]"""
        made: Tensor = 0.5 * (parts.sum(1).square() - parts.square().sum(1)).sum(1)
        return made


class Towers(Machine):
    """Users and items, each through a network of its own to as many numbers as there are factors: their product counts.

    sides: [features + 1], 1 for features of users, 0 for those of items.
    """

    sides: Tensor

    def __init__(self, features: int, factors: int, spread: float, hidden: int, sides: Tensor) -> None:
        super().__init__(features, factors, spread)
        self.register_buffer("sides", sides, persistent=False)
        self.users, self.items = (
            nn.Sequential(nn.Linear(factors, hidden), nn.ReLU(), nn.Linear(hidden, factors)) for _ in range(2)
        )

    def pairs(self, keys: Tensor, parts: Tensor) -> Tensor:
        of_users = self.sides[keys][..., None]
        users, items = (parts * of_users).sum(1), (parts * (1 - of_users)).sum(1)
        made: Tensor = (self.users(users) * self.items(items)).sum(1)
        return made


def network_of(hp: Mapping[str, Any], columns: dict[str, dict[str, int]], features: int) -> Machine:
    """The network that hyperparameters ask for. Raises Problem for columns that there are not."""
    spread = hp["factors_init_sigma"]
    if hp.get("model", "machine") == "machine":  # the first models did not say it
        return Machine(features, hp["num_factors"], spread)
    if len(columns) < 2:
        raise Problem("model towers needs a table with columns of users and of items: take model machine for sparse rows")
    users = hp["user_columns"] or list(columns)[:1]
    if unknown := [name for name in users if name not in columns]:
        raise Problem(f"user_columns: there is no column {unknown[0]}, but {', '.join(columns)}")
    if set(users) == set(columns):
        raise Problem("user_columns are all the columns: some must be of items")
    sides = torch.zeros(features + 1)
    sides[[at for name in users for at in columns[name].values()]] = 1.0
    return Towers(features, hp["num_factors"], spread, hp["hidden_size"], sides)


# --- training ---------------------------------------------------------------------------------------------------------


class Recommending(Task):
    """Learns ratings, or which pairs go together."""

    program = PROGRAM
    watched = "loss"

    def __init__(self, hp: Namespace, data: Data, world: World) -> None:
        torch.manual_seed(hp.seed)
        self.hp, self.data, self.world = hp, data, world
        self.binary = hp.predictor_type == "binary_classifier"
        self.network = network_of(vars(hp), data.columns, data.width).to(world.device)
        mean = float(data.parts["train"].targets.mean())
        if not self.binary:
            nn.init.constant_(self.network.bias, mean)
        self.count = len(data.parts["train"])
        self.parts = {part: len(rows) for part, rows in data.parts.items()}
        same = ("model", "user_columns", "hidden_size", "num_factors", "predictor_type", "factors_init_sigma", "bias_lr",
                "linear_lr", "factors_lr", "bias_wd", "linear_wd", "factors_wd")  # fmt: skip
        self.facts = {name: getattr(hp, name) for name in same} | {"features": data.width}
        self.facts["rows"] = {part: digest(rows) for part, rows in data.parts.items() if part != "test"}

    def groups(self, weight_decay: float) -> list[dict[str, Any]]:
        hp, network = self.hp, self.network
        weights = {"bias": [network.bias], "linear": [network.linear.weight]}
        known = {id(weight) for some in weights.values() for weight in some}
        weights["factors"] = [weight for weight in network.parameters() if id(weight) not in known]
        rates = {name: getattr(hp, f"{name}_lr") for name in weights}
        return [
            {
                "params": some,
                "weight_decay": getattr(hp, f"{name}_wd"),
                "factor": 1.0 if rates[name] is None else rates[name] / hp.learning_rate if hp.learning_rate else 0.0,
            }
            for name, some in weights.items()
        ]

    def scored(self, model: nn.Module, part: str, positions: Sequence[int]) -> Tensor:
        """What the model gives for rows. [rows]"""
        made: Tensor = model(*self.data.parts[part].tensors(positions, self.data.width, self.world.device))
        return made

    def each(self, scores: Tensor, targets: Tensor) -> Tensor:
        """The loss of each row."""
        if self.binary:
            return functional.binary_cross_entropy_with_logits(scores, targets, reduction="none")
        return (scores - targets).square()

    def loss(self, model: nn.Module, whole: Sequence[int], mine: slice, place: tuple[int, int]) -> tuple[Tensor, float]:
        own = list(whole)[mine]
        targets = torch.from_numpy(self.data.parts["train"].targets[own]).to(self.world.device)
        return self.each(self.scored(model, "train", own), targets).sum(), float(len(whole))

    def outputs(self, part: str, positions: Sequence[int]) -> list[Any]:
        return self.scored(self.network, part, positions).tolist()

    def scores(self, part: str, outputs: list[Any]) -> dict[str, float]:
        made = torch.tensor(outputs, dtype=torch.float64)
        wanted = torch.from_numpy(self.data.parts[part].targets).double()
        loss = self.each(made, wanted).mean().item()
        if not self.binary:
            return {"loss": loss, "rmse": math.sqrt(loss), "mae": (made - wanted).abs().mean().item()}
        right = (made > 0) == (wanted > 0)
        return {"loss": loss, "binary_classification_cross_entropy": loss,
                "binary_classification_accuracy": right.double().mean().item()}  # fmt: skip

    def save(self, target: Path) -> dict[str, Any]:
        _weights.save(self.network, target)
        with whole_file(target / "columns.json") as path:
            path.write_text(json.dumps(self.data.columns), encoding="utf-8")
        return {"features": self.data.width, "binary": self.binary}


def digest(rows: Entries) -> str:
    """Differs where rows do."""
    value = 0
    for part in (rows.keys, rows.values, rows.starts, rows.targets):
        value = zlib.crc32(numpy.ascontiguousarray(part).tobytes(), value)
    return f"{len(rows)} rows, {value:08x}"


def train(hp: Namespace, data: Data, world: World) -> None:
    """The whole job. Raises Problem."""
    for part, count in data.unseen.items():
        if count:
            world.say(f"{part}: {count} values are not in train, and count nothing")
    task = Recommending(hp, data, world)
    Epochs(hp, world, task).run(f"{task.count} rows of {data.width} features")


def predict(hp: Namespace) -> None:
    """Prints one JSON line a row of the file or folder `predict`: its columns, and its score."""
    facts = about_model(hp.model_dir, PROGRAM)
    root = Path(hp.model_dir)
    try:
        columns = json.loads((root / "columns.json").read_text(encoding="utf-8"))
        network = network_of(facts["hyperparameters"], columns, facts["features"])
        _weights.load(network, root)
    except Exception as error:  # of any library, about files that are not ours
        raise Problem(f"{root} holds no model of {PROGRAM}: {str(error).splitlines()[0]}") from error
    hp.target = facts["hyperparameters"]["target"]
    spare = Spare(lambda part: _require_features(part, facts["features"]))  # all columns are ids: all are kept
    table = table_of(hp, hp.predict, "predict", labelled=False, named=list(columns), spare=spare)
    _require_features(table, facts["features"])
    spare.answer(table, _scores(network, entries_of(table, columns, hp, "predict", {}), facts, hp.mini_batch_size))


def _require_features(table: Any, most: int) -> None:
    if table.sparse is not None and table.sparse.shape[1] > most:
        raise Problem(f"predict: {table.place(0)} has {table.sparse.shape[1]} features, the model {most}")


def _scores(network: Any, rows: Any, facts: dict[str, Any], size: int) -> Iterator[dict[str, float]]:
    """Of each row; of a binary_classifier its probability."""
    for start in range(0, len(rows), size):
        places = range(start, min(start + size, len(rows)))
        with torch.no_grad():
            made = network(*rows.tensors(places, facts["features"], torch.device("cpu")))
        yield from ({"score": score} for score in (made.sigmoid() if facts["binary"] else made).tolist())
