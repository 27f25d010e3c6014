"""`predict` of a script of one's own: rows of data in, one answer a row out.

    def model_fn(model_dir): ...       # once; without it the model is the folder's path
    def predict(model, rows): ...      # a list of rows, each a dict; gives a list of answers, one a row

`predict_fn(rows, model)` is the same by the name that SageMaker's inference scripts have.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import IO, Any

from trainshed.base.errors import TrainshedError, one_line

BATCH = 256  # rows at once
Row = dict[str, Any]


class BadRow(Exception):
    """What is wrong with one row."""


def predict(script: str, model_dir: str, data: str) -> int:
    """Prints a line a row: the row, with what was said of it, or `error`. Returns the exit status. Raises TrainshedError."""
    out, done, failed = sys.stdout, 0, 0
    with contextlib.redirect_stdout(sys.stderr):  # what the script prints is not a prediction
        say = function_of(script, model_dir)
        for row, answer in answers(say, rows_of(data)):
            good = not isinstance(answer, BadRow)
            done, failed = done + good, failed + (not good)
            if not good and failed == 1:
                print(f"the first row that could not be predicted: {answer}", file=sys.stderr)
            _print(out, row, answer)
    return 0 if done or not failed else 1


def function_of(script: str, model_dir: str) -> Callable[[list[Row]], Any]:
    """The script's function of rows, with its model. Raises TrainshedError where it has none."""
    module = _loaded(script)
    mine, theirs, load = (module.get(name) for name in ("predict", "predict_fn", "model_fn"))
    if not callable(mine) and not callable(theirs):
        raise TrainshedError(
            f"{os.path.basename(script)} has no function predict(model, rows)", hint="docs/predict.md shows one"
        )
    model = load(model_dir) if callable(load) else model_dir
    return lambda rows: mine(model, rows) if callable(mine) else theirs(rows, model)  # type: ignore[misc]


def _loaded(script: str) -> dict[str, Any]:
    """What a script defines, loaded as an import does: it does not train, as it is not `__main__`."""
    import importlib.util

    path = os.path.abspath(script)
    sys.path.insert(0, os.path.dirname(path))
    name = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TrainshedError(f"{script} is not a Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return vars(module)


def answers(say: Callable[[list[Row]], Any], rows: Iterable[tuple[Row, str]]) -> Iterator[tuple[Row, Any]]:
    """(row, its answer or what is wrong with it), in order. rows: (row, what is wrong with it)."""
    rows = iter(rows)
    while batch := list(islice(rows, BATCH)):
        good = iter(_answered(say, [row for row, wrong in batch if not wrong]))
        yield from ((row, BadRow(wrong) if wrong else next(good)) for row, wrong in batch)


def _answered(say: Callable[[list[Row]], Any], rows: list[Row]) -> list[Any]:
    """The answers; rows at which the script fails are found by halves. Raises TrainshedError for other than one a row."""
    if not rows:
        return []
    try:
        given = say([dict(row) for row in rows])
        made = list(given.tolist() if hasattr(given, "tolist") else given)
    except Exception as error:  # of somebody else's code
        if len(rows) == 1:
            return [BadRow(f"{type(error).__name__}: {error}")]
        half = len(rows) // 2
        return _answered(say, rows[:half]) + _answered(say, rows[half:])
    if len(made) != len(rows):
        raise TrainshedError(f"predict gave {len(made)} answers for {len(rows)} rows: it gives one a row")
    return made


def _print(out: IO[str], row: Row, answer: Any) -> None:
    if isinstance(answer, BadRow):
        answer = {"error": one_line(str(answer))}
    elif not isinstance(answer, dict):
        answer = {"prediction": answer}
    beside = {f"input_{name}" if name in answer else name: value for name, value in row.items()}
    print(json.dumps({**beside, **answer}, ensure_ascii=False, default=_plain), file=out, flush=True)


def _plain(value: Any) -> Any:
    """A number or an array of a library, a date, anything else, for JSON."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


# --- rows -------------------------------------------------------------------------------------------------------------


def rows_of(data: str) -> Iterator[tuple[Row, str]]:
    """(row, what is wrong with it) of a file or of a folder's files. Raises TrainshedError.

    CSV with a header gives texts, JSON lines and Parquet what they hold; of any other file the row is its `path`.
    """
    if not os.path.isdir(data):
        yield from _rows_of_file(data)
        return
    folders = ((folder, sorted(names)) for folder, below, names in os.walk(data) if not below.sort())
    paths = [os.path.join(folder, name) for folder, names in folders for name in names if not name.startswith(".")]
    if not paths:
        raise TrainshedError(f"{data} holds no files")
    for path in paths:
        try:
            yield from (({"file": path, **row}, wrong) for row, wrong in _rows_of_file(path))
        except TrainshedError as error:
            yield {"file": path}, error.message


def _rows_of_file(path: str) -> Iterator[tuple[Row, str]]:
    read = _READERS.get(os.path.splitext(path)[1].lower(), lambda path: iter([({"path": path}, "")]))
    try:
        yield from read(path)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TrainshedError(f"{path} cannot be read: {error}") from error


def _of_csv(path: str) -> Iterator[tuple[Row, str]]:
    with open(path, encoding="utf-8-sig", newline="") as file:
        names, *_ = [*islice(rows := csv.reader(file), 1), []]
        for number, row in enumerate(filter(None, rows), 1):
            wrong = "" if len(row) == len(names) else f"{path}, row {number}: {len(row)} cells, not {len(names)}"
            yield dict(zip(names, row, strict=False)), wrong


def _of_lines(path: str) -> Iterator[tuple[Row, str]]:
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                row = error
            good = isinstance(row, dict)
            yield (
                (row, "")
                if good
                else ({}, f"{path}:{number}: is not a JSON object" + f": {row}" * isinstance(row, Exception))
            )


def _of_parquet(path: str) -> Iterator[tuple[Row, str]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise TrainshedError(f"{path} needs pyarrow", hint="pip install 'trainshed[data]'") from error
    try:
        for batch in parquet.ParquetFile(path).iter_batches(BATCH):
            yield from ((row, "") for row in batch.to_pylist())
    except ArrowException as error:
        raise TrainshedError(f"{path} is not a whole Parquet file") from error


_READERS: dict[str, Callable[[str], Iterator[tuple[Row, str]]]] = {
    ".csv": _of_csv,
    ".json": _of_lines,
    ".jsonl": _of_lines,
    ".parquet": _of_parquet,
}
