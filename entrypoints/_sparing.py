"""Rows to predict that a model does not take, found one by one, so that the others are predicted, with their ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy
from _cells import objects
from _common import Problem
from _predicting import Answers

MOST = 1000  # rows refused before any is taken: the whole is another kind of data


@dataclass
class Spare:
    """Reads tables in parts, and halves a part that is refused.

    check: raises Problem for a table whose rows the model does not take. features: names of its columns; what a table has
    beside them is kept. several: whether there are several files, for `read_files` to say. refused: (number of the row,
    what is kept of it, why), the number 0 for a whole file.
    """

    check: Callable[[Any], None]
    features: Sequence[str] = ()
    several: bool = False
    refused: list[tuple[int, dict[str, Any], str]] = field(default_factory=list)

    def refuse(self, path: str, row: int, why: object) -> None:
        """A row, or with the number 0 a whole file, of which nothing can be read."""
        self.refused.append((row, self.beside(path), str(why)))

    def read(self, path: str, cells: Any, numbers: Sequence[int], make: Callable[[Any], Any], named: bool) -> list[Any]:
        """The tables of the rows that are taken, in order. Raises Problem where it is not about single rows.

        cells: an arrow table. numbers: of its rows in their file. make: the `Table` of a part of the cells.
        """
        make(cells.slice(0, 0))  # raises what is wrong with any row, as a column that is missing
        made: list[Any] = []
        todo = [(0, cells.num_rows)]
        while todo:
            first, count = todo.pop()
            part = cells.slice(first, count)
            try:
                table = make(part)
                self.check(table)
            except Problem as problem:
                if count > 1:
                    todo += [(first + count // 2, count - count // 2), (first, count // 2)]
                    continue
                self._refuse_row(path, numbers[first], self._kept(path, part, named)[0], problem, bool(made))
                continue
            table.extra = {
                "row": numpy.array(numbers[first : first + count]),
                "kept": objects(self._kept(path, part, named)),
            }
            made.append(table)
        return made

    def _refuse_row(self, path: str, number: int, kept: dict[str, Any], problem: Problem, others: bool) -> None:
        why = str(problem).replace(f"{path}, row 1:", f"{path}, row {number}:")
        self.refused.append((number, kept, why))
        if not others and len(self.refused) >= MOST:
            raise Problem(f"{why} (and so {MOST} rows, and none that is taken)") from problem

    def _kept(self, path: str, cells: Any, named: bool) -> list[dict[str, Any]]:
        """Of each row what is not a feature, as it is in the file."""
        beside = [name for name in cells.column_names if named and name not in self.features]
        rows = cells.select(beside).to_pylist() if beside else [{} for _ in range(cells.num_rows)]
        return [{**self.beside(path), **row} for row in rows]

    def beside(self, path: str) -> dict[str, Any]:
        """What is said of every row of a file."""
        return {"file": path} if self.several else {}

    def answer(self, table: Any, answers: Iterable[dict[str, Any]]) -> None:
        """Prints the answers of a table's rows, then those that have none. Raises Problem where none has."""
        printed = Answers()
        kept = table.extra.get("kept", [{}] * table.rows)
        numbers = table.extra.get("row", range(1, table.rows + 1))
        for number, beside, answer in zip(numbers, kept, answers, strict=True):
            printed.say(beside, {"row": int(number), **answer})
        for number, beside, why in self.refused:
            printed.refuse(beside, why, {"row": number} if number else {})
        printed.end()
