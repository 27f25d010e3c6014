"""What a table's columns mean to a model of tabular.py: numbers or categories, and a target that is a number or a class."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import _dates
import numpy
from _cells import note_narrow, note_standing, note_texts, shown
from _common import Problem, note
from _dates import Dates
from _tables import Table, has_values, widened

OF_XGBOOST = ("quantile_alpha", "aft_loss_distribution", "aft_loss_distribution_scale", "monotone_constraints",
              "interaction_constraints", "updater", "process_type", "refresh_leaf", "sampling_method", "group",
              "target_upper")  # fmt: skip
OF_CATBOOST = ("random_strength", "bootstrap_type", "bagging_temperature", "boosting_type", "sampling_frequency")
MOST_CATEGORIES = 10_000  # of a column; one with more is an identifier or free text
SHOWN = 5
LIMITS = {  # what the labels of an objective have to be, as XGBoost's own checks have it, and how that is said
    "reg:logistic": (0.0, 1.0, "from 0 to 1"),
    "reg:squaredlogerror": (math.nextafter(-1.0, 0.0), math.inf, "above -1"),
    "reg:gamma": (math.nextafter(0.0, 1.0), math.inf, "above 0"),
    "reg:tweedie": (0.0, math.inf, "0 or more"),
    "count:poisson": (0.0, math.inf, "0 or more"),
    "survival:aft": (math.nextafter(0.0, 1.0), math.inf, "above 0"),
    "rank:pairwise": (0.0, math.inf, "0 or more"),
    "rank:ndcg": (0.0, 31.0, "from 0 to 31"),
    "rank:map": (0.0, 1.0, "0 or 1"),
}


@dataclass(frozen=True)
class Features:
    """The columns that a model takes, in order.

    columns: their names; () where the features are a sparse matrix, which is `width` wide.
    categories: name -> all its texts, for columns of text. named: whether the names are the files' own.
    empty: columns without any value, which may be of either kind elsewhere. dates: of texts too, by name.
    """

    columns: tuple[str, ...]
    categories: dict[str, list[str]] = field(default_factory=dict)
    width: int = 0
    named: bool = False
    empty: tuple[str, ...] = ()
    dates: dict[str, Dates] = field(default_factory=dict)

    @staticmethod
    def of(table: Table, named: Iterable[str] = ()) -> Features:
        """As the table has them. named: columns that are categories in any case. Raises Problem."""
        if table.sparse is not None:
            return Features((), width=table.sparse.shape[1])
        categories, dates = {}, {}
        for name, values in table.columns.items():
            if values.dtype == object:
                if name not in named and (when := _dates.found(name, values.tolist(), table.place)) is not None:
                    dates[name] = when
                    continue
                categories[name] = sorted({value for value in values if value is not None})
                if len(categories[name]) > MOST_CATEGORIES:
                    raise Problem(
                        f"{name} has {len(categories[name])} different texts, more than {MOST_CATEGORIES}: leave it out "
                        "with ignore_columns"
                    )
                note_texts(name, len(categories[name]), table.rows)
            else:
                note_narrow(name, values)
                note_standing(name, values)
                _dates.note_numbers(name, values)
        empty = tuple(name for name, values in table.columns.items() if not has_values(values))
        return Features(tuple(table.columns), categories, named=table.named, empty=empty, dates=dates)

    @staticmethod
    def common(every: Sequence[Features]) -> Features:
        """Of several hosts' tables: with all their categories, as wide as the widest. Raises Problem."""
        first = every[0]
        texts = [name for name in first.columns if any(name in other.categories for other in every)]
        dates = {name: when for other in every for name, when in other.dates.items()}
        for host, other in enumerate(every):
            if other.columns != first.columns or any(name not in (*other.categories, *other.empty) for name in texts):
                raise Problem(f"the columns of rank {host} are not those of rank 0: all files need the same columns")
            if odd := [name for name in dates if other.dates.get(name, dates[name]).format != dates[name].format]:
                raise Problem(f"{odd[0]} has dates of another form on rank {host}: write all as in 2024-12-31")
            if odd := [name for name in dates if name not in (*other.dates, *other.empty)]:
                raise Problem(f"{odd[0]} has no dates on rank {host}, unlike others: {_dates.CURE}")
        union = {name: sorted(set().union(*(other.categories.get(name, ()) for other in every))) for name in texts}
        longest = {name: max((other.dates.get(name, when) for other in every), key=lambda one: len(one.parts))
                   for name, when in dates.items()}  # fmt: skip
        width = max(other.width for other in every)
        return replace(first, categories=union, width=width, empty=(), dates=longest)

    @property
    def texts(self) -> set[str]:
        """Columns that are texts in files."""
        return {*self.categories, *self.dates}

    @property
    def inputs(self) -> list[tuple[str, str]]:
        """(name, its column) of each number that a model takes, in order; a date is several. [] where they are sparse."""
        return [
            (f"{name}.{part}" if part else name, name)
            for name in self.columns
            for part in (self.dates[name].parts if name in self.dates else ("",))
        ]

    def check(self, table: Table, where: str, say: bool = True) -> None:
        """Raises Problem where a table's features are of another kind; notes texts that the training data has not."""
        if (table.sparse is None) != bool(self.columns):
            raise Problem(f"{where} is {'sparse' if table.sparse is not None else 'not sparse'}, unlike the training data")
        if table.sparse is not None and table.sparse.shape[1] > self.width:
            raise Problem(f"{where} has {table.sparse.shape[1]} features, the training data has {self.width}")
        if list(table.columns) != list(self.columns):
            theirs, mine = ", ".join([*table.columns][:SHOWN]), ", ".join(self.columns[:SHOWN])
            raise Problem(f"{where} has {len(table.columns)} features ({theirs} ...), not {len(self.columns)} ({mine} ...)")
        for name, values in table.columns.items():
            if (values.dtype == object) != (name in self.texts) and has_values(values):
                here, there = ("text", "numbers") if values.dtype == object else ("numbers", "text")
                raise Problem(f"{where}: {name} is {here}, and {there} in the training data")
            if say and name in self.categories and values.dtype == object:
                _note_unknown(where, name, set(values.tolist()) - {*self.categories[name], None})

    def matrix(self, table: Table, rows: Any) -> Any:
        """float32 [rows, columns], with the number of the category for a text and nan for one that is not known; or csr."""
        if table.sparse is not None:
            return widened(table.sparse, self.width)[rows]
        made = [self._numbers(table, name, rows) for name in self.columns]
        return numpy.column_stack(made).astype(numpy.float32)

    def _numbers(self, table: Table, name: str, rows: Any) -> Any:
        """A column as the numbers that a model takes."""
        values = table.columns[name][rows]
        if name in self.dates:
            texts = values.tolist() if values.dtype == object else [None] * len(values)
            return self.dates[name].numbers(texts, lambda row: table.place(int(rows[row])), name)
        if name in self.categories and values.dtype == object:
            known = {text: number for number, text in enumerate(self.categories[name])}
            return numpy.array([known.get(value, math.nan) if value is not None else math.nan for value in values])
        return values.astype(numpy.float64)

    @property
    def names(self) -> list[str] | None:
        """What XGBoost is told; it refuses some characters."""
        if not self.named:
            return None
        plain = [re.sub(r"[\[\]<]", "_", name) for name, _ in self.inputs]
        return [name if plain.count(name) == 1 else f"{name}_{index}" for index, name in enumerate(plain)]

    @property
    def of_text(self) -> list[int]:
        """Which of the inputs are numbers of categories."""
        return [at for at, (_, column) in enumerate(self.inputs) if column in self.categories]

    @property
    def types(self) -> list[str] | None:
        """`c` for categories and `q` for numbers, as XGBoost is told; None where all are numbers."""
        return ["c" if column in self.categories else "q" for _, column in self.inputs] if self.categories else None

    def plain(self) -> dict[str, Any]:
        """For model.json."""
        unsaid = {"empty"} if self.dates else {"empty", "dates"}
        return {name: value for name, value in asdict(self).items() if name not in unsaid}

    @staticmethod
    def of_plain(content: dict[str, Any]) -> Features:
        """From model.json. Raises KeyError and TypeError."""
        dates = {name: Dates(one["format"], tuple(one["parts"])) for name, one in content.get("dates", {}).items()}
        return Features(**{**content, "columns": tuple(content["columns"]), "dates": dates})


def _note_unknown(where: str, name: str, unknown: set[str]) -> None:
    if unknown:
        which = f"{len(unknown)} of its values, as {shown(min(unknown))}, are"
        note(f"{where}: {name}: {which} not in the training data, and count as missing")


@dataclass(frozen=True)
class Target:
    """What is learned. classes: texts or numbers in the order of their labels; None where the labels are the values."""

    name: str
    objective: str
    classes: tuple[Any, ...] | None = None
    count: int = 0

    @staticmethod
    def values(table: Table, objective: str) -> tuple[Any, ...]:
        """All different values of the target, sorted; () where the objective learns a number. Raises Problem."""
        if not objective.startswith(("binary:", "multi:")):
            return ()
        found = set(table.target.tolist())
        if len(found) > MOST_CATEGORIES:
            raise Problem(f"the target ({table.target_name}) has {len(found)} different values: too many classes")
        return tuple(sorted(found, key=lambda value: (isinstance(value, str), value)))

    @staticmethod
    def of(name: str, objective: str, values: Sequence[Any], num_class: int | None) -> Target:
        """The target of tables that hold these values altogether. Raises Problem."""
        texts = sum(isinstance(value, str) for value in values)
        if 0 < texts < len(values):
            raise Problem(f"the target ({name}) is text on one host and a number on another")
        shown = ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values[:SHOWN])
        shown += " ..." * (len(values) > SHOWN)
        if objective.startswith("binary:"):
            if not texts and set(values) <= {0.0, 1.0}:
                return Target(name, objective, None, 2)
            if len(values) != 2:
                raise Problem(
                    f"{objective} learns two classes; the target ({name}) has {len(values)} values: {shown}; "
                    "the hyperparameter target names another column"
                )
            return Target(name, objective, tuple(values), 2)
        if objective.startswith("multi:"):
            whole = not texts and all(value == int(value) >= 0 for value in values)
            count = num_class or (int(max(values)) + 1 if whole and max(values) == len(values) - 1 else 0)
            if whole and count and max(values) < count:
                return Target(name, objective, None, max(count, 2))
            if num_class is not None and num_class != len(values):
                raise Problem(f"num_class is {num_class}; the target ({name}) has {len(values)} classes: {shown}")
            if len(values) < 2:
                raise Problem(f"the target ({name}) has one class: {shown}")
            return Target(name, objective, tuple(values), len(values))
        return Target(name, objective)

    @staticmethod
    def require_several(name: str, values: Sequence[Any]) -> None:
        """Raises Problem where there is one class alone, by the `values` that all tables hold."""
        if len(values) == 1:
            shown = f"{values[0]:g}" if isinstance(values[0], float) else values[0]
            raise Problem(f"the target ({name}) has one class, {shown}: a classifier needs two or more")

    def labels(self, table: Table, rows: Any) -> Any:
        """float32 [rows]. Raises Problem."""
        values = table.target[rows]
        if self.classes is not None:
            numbers = {value: number for number, value in enumerate(self.classes)}
            made = numpy.array([numbers.get(value, -1) for value in values.tolist()], numpy.float32)
            self._refuse(table, rows, made < 0, "is not one of the classes that the training data has")
            return made
        if values.dtype == object:
            raise Problem(
                f"{table.place(int(rows[0]))}: the target ({self.name}) is {str(values[0])[:40]!r}: {self.objective} learns "
                "numbers; objective binary:logistic and multi:softprob learn classes"
            )
        if self.count:
            self._refuse(table, rows, (values < 0) | (values >= self.count) | (values != values.round()), "is not a class")
        low, high, said = LIMITS.get(self.objective, (-math.inf, math.inf, ""))
        self._refuse(table, rows, (values < low) | (values > high), f"must be {said} for {self.objective}")
        return values.astype(numpy.float32)

    def _refuse(self, table: Table, rows: Any, wrong: Any, why: str) -> None:
        found = numpy.flatnonzero(wrong)
        if len(found):
            row = int(rows[found[0]])
            value = table.target[row]
            shown = f"{value:g}" if isinstance(value, float) else repr(value[:40])
            raise Problem(f"{table.place(row)}: the target ({self.name}) is {shown}, which {why}")

    def class_of(self, label: float) -> Any:
        """The class with a label."""
        value = self.classes[int(label)] if self.classes is not None else label
        return int(value) if isinstance(value, float) and value.is_integer() else value

    def plain(self) -> dict[str, Any]:
        """For model.json."""
        return asdict(self)

    @staticmethod
    def of_plain(content: dict[str, Any]) -> Target:
        """From model.json. Raises KeyError and TypeError."""
        classes = content["classes"]
        return Target(**{**content, "classes": None if classes is None else tuple(classes)})
