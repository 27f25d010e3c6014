"""The rows of recommend.py: each value of a column is a feature, or each key of sparse rows.

Loads torch for tensors alone.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import _told
import numpy
from _common import Problem, note, said_of
from _sparing import Spare
from _tables import CONTENT_TYPES, How, files_of, read_files

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PARTS = ("train", "validation", "test")


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
        import torch

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


def read(hp: Namespace) -> Data:
    """The channels. Of a table, each value of a column is a feature; of sparse rows, each key. Raises Problem."""
    tables = {part: table_of(hp, getattr(hp, part), part) for part in PARTS if getattr(hp, part)}
    train = tables["train"]
    if train.rows < 2:
        raise Problem("the channel train has less than two rows")
    _told.say(hp, "the channel train", train.rows, fields_of(train))
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


def fields_of(table: Any) -> list[_told.Field]:
    """What becomes of a table's columns: each value is a feature."""
    target = _told.field(f"{table.target_name or 'the first column'} (target)", table.target, "number", "number to learn")
    if table.sparse is not None:
        return [target, _told.sparse(table, table.sparse.shape[1])]
    columns = [(name, values, len({*values.tolist()} - {None})) for name, values in table.columns.items()]
    return [target, *(_told.field(name, values, "id", f"{count:,} features") for name, values, count in columns)]


def table_of(
    hp: Namespace,
    path: str,
    part: str,
    labelled: bool = True,
    named: Sequence[str] | None = None,
    spare: Spare | None = None,
) -> Any:
    """The table of a channel. spare: as of `How`. Raises Problem."""
    facts = said_of(part, *(["training"] if part == "train" else []))
    content = CONTENT_TYPES.get(facts.get("ContentType", "").partition(";")[0].strip().lower(), "")
    how = How(
        target=hp.target or "",
        ignored=hp.ignore_columns or (),
        labelled=labelled,
        columns=tuple(named) if named else None,
        content=content,
        names=True,
        spare=spare,
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
    for name, values in table.columns.items():
        if len(empty := [at for at, value in enumerate(values) if not value]):
            where = f"row {table.extra['row'][empty[0]]}" if "row" in table.extra else table.place(empty[0])
            note(f"the channel {part}: {len(empty)} of {table.rows} rows have no {name}, the first is {where}")
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
