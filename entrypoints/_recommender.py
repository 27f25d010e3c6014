"""The training of recommend.py: a factorization machine, or two towers, in plain PyTorch, in the loop of `_epochs`.

Source of the machine: Rendle, "Factorization Machines" (2010): bias + sum of weights + sum over pairs of the products of
their factors, the latter as half of (square of the sum - sum of the squares).
"""

from __future__ import annotations

import json
import math
import zlib
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from _common import Problem, World, said_of, whole_file
from _epochs import Epochs, Task, about_model
from _tables import CONTENT_TYPES, How, files_of, read_files
from torch import Tensor, nn
from torch.nn import functional

PROGRAM = "recommend"
PARTS = ("train", "validation", "test")


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


@dataclass(frozen=True)
class Entries:
    """Rows as their features that are not 0. keys, values: [entries]; starts: [rows + 1]; targets: [rows] or None."""

    keys: Any
    values: Any
    starts: Any
    targets: Any

    def __len__(self) -> int:
        return len(self.starts) - 1

    def take(self, rows: Any) -> Entries:
        """These rows."""
        parts = [slice(self.starts[row], self.starts[row + 1]) for row in rows]
        sizes = [part.stop - part.start for part in parts]
        none = numpy.zeros(0, numpy.int64)
        return Entries(
            numpy.concatenate([none, *(self.keys[part] for part in parts)]),
            numpy.concatenate([none.astype(numpy.float32), *(self.values[part] for part in parts)]),
            numpy.cumsum([0, *sizes]),
            None if self.targets is None else self.targets[rows],
        )

    def tensors(self, rows: Sequence[int], none: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Keys and values of rows, filled up to the longest. Each [rows, entries]"""
        sizes = [self.starts[row + 1] - self.starts[row] for row in rows]
        keys = numpy.full((len(sizes), max([1, *sizes])), none, numpy.int64)
        values = numpy.zeros(keys.shape, numpy.float32)
        for at, (row, size) in enumerate(zip(rows, sizes, strict=True)):
            keys[at, :size] = self.keys[self.starts[row] : self.starts[row] + size]
            values[at, :size] = self.values[self.starts[row] : self.starts[row] + size]
        return torch.from_numpy(keys).to(device), torch.from_numpy(values).to(device)


@dataclass(frozen=True)
class Data:
    """parts: rows of each channel. columns: name -> its values, in order; {} where rows are sparse. width: features."""

    parts: dict[str, Entries]
    columns: dict[str, dict[str, int]]
    width: int
    unseen: dict[str, int]


# --- data -------------------------------------------------------------------------------------------------------------


def read(hp: Namespace) -> Data:
    """The channels. Of a table, each value of a column is a feature; of sparse rows, each key. Raises Problem."""
    tables = {part: table_of(hp, getattr(hp, part), part) for part in PARTS if getattr(hp, part)}
    train = tables["train"]
    if train.rows < 2:
        raise Problem("the channel train has less than two rows")
    if train.sparse is not None:
        width = max(table.sparse.shape[1] for table in tables.values() if table.sparse is not None)
        if hp.feature_dim and width > hp.feature_dim:
            raise Problem(f"feature_dim is {hp.feature_dim}, and the data has {width} features")
        columns, width = {}, hp.feature_dim or width
    else:
        columns = columns_of(train.columns)
        width = sum(map(len, columns.values()))
    unseen: dict[str, int] = {}
    parts = {part: entries_of(table, columns, hp, part, unseen) for part, table in tables.items()}
    if "validation" not in parts:
        order = numpy.random.default_rng(hp.seed).permutation(len(parts["train"]))
        held = round(len(order) * hp.validation_fraction)
        if held == len(order):
            raise Problem(f"validation_fraction {hp.validation_fraction:g} of {held} rows leaves none for training")
        if held:
            parts["validation"] = parts["train"].take(numpy.sort(order[:held]))
            parts["train"] = parts["train"].take(numpy.sort(order[held:]))
    return Data(parts, columns, width, unseen)


def table_of(hp: Namespace, path: str, part: str, labelled: bool = True, named: Sequence[str] | None = None) -> Any:
    """The table of a channel. Raises Problem."""
    facts = said_of(part, *(["training"] if part == "train" else []))
    content = CONTENT_TYPES.get(facts.get("ContentType", "").partition(";")[0].strip().lower(), "")
    how = How(
        target=hp.target or "",
        ignored=hp.ignore_columns or (),
        labelled=labelled,
        columns=tuple(named) if named else None,
        content=content,
        names=True,
    )
    what = f"the channel {part}" if labelled else "predict:"
    return read_files(files_of(path, what), how, what)


def columns_of(columns: dict[str, Any]) -> dict[str, dict[str, int]]:
    """The number of each value of each column, counted through all columns."""
    made: dict[str, dict[str, int]] = {}
    first = 0
    for name, values in columns.items():
        known = sorted({word for word in values if word})
        made[name] = {word: first + at for at, word in enumerate(known)}
        first += len(known)
    return made


def entries_of(table: Any, columns: dict[str, dict[str, int]], hp: Namespace, part: str, unseen: dict[str, int]) -> Entries:
    """The rows of a table. Raises Problem for targets that are none. unseen: where new values are counted."""
    targets = None if part == "predict" else targets_of(table, hp, part)
    if table.sparse is not None:
        if columns:
            raise Problem(f"the channel {part} has sparse rows, and train has columns")
        sparse = table.sparse.tocsr()
        return Entries(sparse.indices.astype(numpy.int64), sparse.data.astype(numpy.float32), sparse.indptr, targets)
    if not columns:
        raise Problem(f"the channel {part} has columns, and train has sparse rows")
    if list(table.columns) != list(columns):
        raise Problem(f"the channel {part} has the columns {', '.join(table.columns)}, and train {', '.join(columns)}")
    keys, sizes = [], []
    for row in zip(*table.columns.values(), strict=True):
        mine = [known[word] for known, word in zip(columns.values(), row, strict=True) if word in known]
        unseen[part] = unseen.get(part, 0) + sum(map(bool, row)) - len(mine)
        keys += mine
        sizes.append(len(mine))
    array = numpy.array(keys, numpy.int64)
    return Entries(array, numpy.ones(len(array), numpy.float32), numpy.cumsum([0, *sizes]), targets)


def targets_of(table: Any, hp: Namespace, part: str) -> Any:
    """Numbers; of a binary_classifier 0 and 1. Raises Problem."""
    try:
        targets = numpy.asarray(table.target, numpy.float64)
    except (TypeError, ValueError) as error:
        raise Problem(f"the channel {part}: the target {table.target_name} is not a column of numbers") from error
    wrong = ~numpy.isfinite(targets)
    if hp.predictor_type == "binary_classifier":
        wrong |= ~numpy.isin(targets, (0, 1))
    if wrong.any():
        row = int(numpy.argmax(wrong))
        wanted = "0 or 1" if hp.predictor_type == "binary_classifier" else "a finite number"
        raise Problem(f"the channel {part}: {table.place(row)}: the target is {targets[row]:g}, not {wanted}")
    return targets.astype(numpy.float32)


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
        from safetensors.torch import save_file

        state = {name: weight.detach().cpu().contiguous() for name, weight in self.network.state_dict().items()}
        with whole_file(target / "model.safetensors") as path:
            save_file(state, str(path), {"format": "pt"})
            path.chmod(0o644)
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
    """Prints one JSON line a row of the file or folder `predict`: its score, of a binary_classifier its probability."""
    from safetensors.torch import load_file

    facts = about_model(hp.model_dir, PROGRAM)
    root = Path(hp.model_dir)
    try:
        columns = json.loads((root / "columns.json").read_text(encoding="utf-8"))
        network = network_of(facts["hyperparameters"], columns, facts["features"])
        network.load_state_dict(load_file(root / "model.safetensors"))
    except Exception as error:  # of any library, about files that are not ours
        raise Problem(f"{root} holds no model of {PROGRAM}: {str(error).splitlines()[0]}") from error
    hp.target = facts["hyperparameters"]["target"]
    table = table_of(hp, hp.predict, "predict", labelled=False, named=list(columns))
    if table.sparse is not None and table.sparse.shape[1] > facts["features"]:
        raise Problem(f"predict: {hp.predict} has {table.sparse.shape[1]} features, the model {facts['features']}")
    rows = entries_of(table, columns, hp, "predict", {})
    for start in range(0, len(rows), hp.mini_batch_size):
        places = range(start, min(start + hp.mini_batch_size, len(rows)))
        with torch.no_grad():
            made = network(*rows.tensors(places, facts["features"], torch.device("cpu")))
        for row, score in zip(places, (made.sigmoid() if facts["binary"] else made).tolist(), strict=True):
            print(json.dumps({"row": row, "score": score}), flush=True)
