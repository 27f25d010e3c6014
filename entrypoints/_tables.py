"""Tables, out of files: CSV, libsvm, Parquet, recordio-protobuf.

A table is features, a target, and weights of rows. Features are numbers, with nan for what is missing, or texts, with None;
those of libsvm and of sparse records are a matrix of scipy, in which what is not written is missing. What is wrong with a
file is a Problem that says the file and the row.
"""

from __future__ import annotations

import csv
import io
import math
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import _cells
import _dates
import _separated
import numpy
from _cells import MISSING, number, shown
from _common import LEAVE_OUT, Problem, folder, note
from _sparing import Spare

LARGEST = float(numpy.finfo(numpy.float32).max)
WIDEST = 10_000_000  # columns of a sparse file; more are a mistake in an index, not data
MOST_NUMBERS = 0.5  # a column of text with more numbers than this part of it is one of numbers with a mistake
ENDINGS = {
    ".csv": "csv", ".tsv": "csv",
    ".libsvm": "libsvm", ".svm": "libsvm", ".svmlight": "libsvm", ".parquet": "parquet", ".pq": "parquet",
    ".pbr": "recordio", ".rec": "recordio", ".recordio": "recordio",
}  # fmt: skip
CONTENT_TYPES = {
    "text/csv": "csv", "csv": "csv", "text/libsvm": "libsvm", "text/x-libsvm": "libsvm", "libsvm": "libsvm",
    "application/x-parquet": "parquet", "parquet": "parquet",
    "application/x-recordio-protobuf": "recordio", "recordio-protobuf": "recordio",
}  # fmt: skip


@dataclass(frozen=True)
class How:
    """How files are read.

    target: name of the column to learn; "": the first one. weight: of the one that weighs rows; "": none.
    second_weighs: whether a CSV file's second column weighs the rows. text: columns that are text even if all are numbers.
    ignored: columns that are left out. labelled: whether rows have a target; if not, it may be there all the same.
    columns: names of the features that there have to be; None: any. content: the format, "" by the file.
    bare: whether all columns are features. numeric: whether features can be nothing but numbers, so that it is no way out
    to leave a cell empty or to make a column text. names: whether all features are names. classes: whether the target's
    values are; text_target: whether they are text even if all are numbers. group, upper: names of columns that are no
    features: whose rows of one value are ranked together, and the upper end of what the target begins. spare: takes what is
    wrong with single rows and files, so that the others are read.
    """

    target: str = ""
    weight: str = ""
    second_weighs: bool = False
    text: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    labelled: bool = True
    columns: tuple[str, ...] | None = None
    content: str = ""
    bare: bool = False
    numeric: bool = False
    names: bool = False
    classes: bool = False
    text_target: bool = False
    group: str = ""
    upper: str = ""
    spare: Spare | None = None

    @property
    def asked(self) -> set[str]:
        """Names of columns that must be there."""
        return {self.target, self.weight, self.group, self.upper, *self.text, *self.ignored, *(self.columns or ())} - {""}


@dataclass
class Table:
    """Rows of one file or of several.

    columns: name -> array of float64 or of objects, one a row; {} where they are `sparse`, a csr matrix of scipy.
    target: float64 or objects; None without. weights: float64, or None. named: whether the columns have names of their own.
    origins: (file, rows) of which it is made, in order. extra: `group` and `upper` of `How`, where there are any.
    """

    rows: int
    columns: dict[str, Any]
    sparse: Any = None
    target: Any = None
    target_name: str = ""
    weights: Any = None
    named: bool = False
    origins: tuple[tuple[str, int], ...] = field(default=())
    extra: dict[str, Any] = field(default_factory=dict)

    def take(self, rows: Any) -> Table:
        """These rows, by an array of positions."""
        return Table(
            len(rows),
            {name: values[rows] for name, values in self.columns.items()},
            None if self.sparse is None else self.sparse[rows],
            None if self.target is None else self.target[rows],
            self.target_name,
            None if self.weights is None else self.weights[rows],
            self.named,
            extra={name: values[rows] for name, values in self.extra.items()},
        )

    def place(self, row: int) -> str:
        """The file and the row in it, for a message."""
        for path, count in self.origins:
            if row < count:
                return f"{path}, row {row + 1}"
            row -= count
        return "the training data"  # rows of it that are held out


def files_of(path: str, what: str) -> list[str]:
    """The data files of a channel, below its folder, sorted; or the one file that it is. Raises Problem."""
    if os.path.isfile(path):
        return [path]
    root = folder(path, what)
    found = sorted(
        str(file)
        for file in root.rglob("*")
        if file.is_file() and not any(part.startswith((".", "_")) for part in file.relative_to(root).parts)
    )
    if not found:
        raise Problem(f"{what} {path} holds no files")
    return [file for file in found if not file.endswith((".manifest", ".crc"))] or found


def read_files(paths: Sequence[str], how: How, what: str) -> Table:
    """All of these files as one table, in this order. Raises Problem."""
    if how.spare is not None:
        how.spare.several = len(paths) > 1
    tables = [table for path in paths if (table := _read(path, how)) is not None and table.rows]
    if not tables:
        if how.spare is not None and how.spare.refused:
            raise Problem(how.spare.refused[0][2])
        raise Problem(f"{what} has no rows: {', '.join(paths[:3])}{' ...' * (len(paths) > 3)}")
    return joined(tables)


def joined(tables: list[Table]) -> Table:
    """Tables one after another. Raises Problem where they do not go together."""
    first = tables[0]
    if len(tables) == 1:
        return first
    here = first.origins[0][0]
    for table in tables[1:]:
        there = table.origins[0][0]
        if (first.sparse is None) != (table.sparse is None):
            raise Problem(f"{here} and {there} are of different formats: one is sparse, the other is not")
        if list(table.columns) != list(first.columns):
            raise Problem(f"{there}: {_difference(list(table.columns), list(first.columns))} {here}")
        if (table.weights is None) != (first.weights is None):
            raise Problem(f"of {here} and {there} one has weights and the other has not")
        if set(table.extra) != set(first.extra):
            raise Problem(f"of {here} and {there} one has groups of rows and the other has not")
    sparse = None
    if first.sparse is not None:
        from scipy.sparse import vstack

        width = max(table.sparse.shape[1] for table in tables)
        sparse = vstack([widened(table.sparse, width) for table in tables], format="csr")
    return Table(
        sum(table.rows for table in tables),
        {name: _of_parts(name, tables, [table.columns[name] for table in tables]) for name in first.columns},
        sparse,
        None if first.target is None else _of_parts(first.target_name, tables, [table.target for table in tables]),
        first.target_name,
        None if first.weights is None else numpy.concatenate([table.weights for table in tables]),
        first.named,
        tuple(origin for table in tables for origin in table.origins),
        {name: numpy.concatenate([table.extra[name] for table in tables]) for name in first.extra},
    )


def _of_parts(name: str, tables: list[Table], parts: list[Any]) -> Any:
    """A column out of its parts; one without any value is of the kind that the others have. Raises Problem."""
    places = [table.origins[0][0] for table in tables]
    kinds = {part.dtype == object: place for place, part in zip(places, parts, strict=True) if has_values(part)}
    if len(kinds) == 2:
        raise Problem(
            f"{name} is text in {kinds[True]}, and numbers in {kinds[False]}: mend the cells, or name the column in "
            "categorical_columns"
        )
    if True in kinds:
        parts = [part if part.dtype == object else numpy.full(len(part), None, object) for part in parts]
    else:
        parts = [part if part.dtype != object else numpy.full(len(part), math.nan) for part in parts]
    return numpy.concatenate(parts)


def has_values(values: Any) -> bool:
    """Whether anything of a column is not missing."""
    return any(value is not None for value in values) if values.dtype == object else not numpy.isnan(values).all()


def _difference(theirs: list[str], mine: list[str]) -> str:
    """What is said of columns before the name of what they should be like."""
    absent = [name for name in mine if name not in theirs]
    more = [name for name in theirs if name not in mine]
    if (absent and more) or len(theirs) == len(mine):
        return f"its columns are {_some(theirs)}, not {_some(mine)} as in"
    return f"has no column {absent[0]!r}, unlike" if absent else f"has a column {more[0]!r} more than"


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + " ..." * (len(names) > 5)


def widened(matrix: Any, width: int) -> Any:
    """A csr matrix with `width` columns, which must be at least as many as it has."""
    from scipy.sparse import csr_matrix

    return csr_matrix((matrix.data, matrix.indices, matrix.indptr), shape=(matrix.shape[0], width))


def _read(path: str, how: How) -> Table | None:
    """The table of a file; None where it is spared. Raises Problem."""
    try:
        return _READERS[how.content or _kind(path)](path, how)
    except OSError as error:
        problem = Problem(f"{path} cannot be read: {error.strerror or _reason(error)}")
    except Problem as found:
        problem = found
    if how.spare is None or not how.spare.several:
        raise problem
    how.spare.refuse(path, 0, problem)
    return None


def _kind(path: str) -> str:
    """The format of a file: by its name, else by its beginning. Raises OSError."""
    kind = ENDINGS.get(os.path.splitext(path.lower().removesuffix(".gz"))[1])
    if kind:
        return kind
    with open(path, "rb") as file:
        beginning = file.read(4096)
    if beginning[:4] == b"PAR1":
        return "parquet"
    if beginning[:4] == b"\x0a\x23\xd7\xce":
        return "recordio"
    if beginning[:2] == b"\x1f\x8b":
        try:
            beginning = zlib.decompressobj(31).decompress(beginning)
        except zlib.error:
            return "csv"  # which says what is wrong with it
    words = beginning.split(b"\n", 1)[0].split()
    return "libsvm" if len(words) > 1 and b":" in words[1] and b"," not in words[0] else "csv"


def _stream(path: str) -> Any:
    """The file's bytes, unpacked if it is packed. Raises OSError."""
    import pyarrow

    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return pyarrow.input_stream(path, compression="gzip" if packed else None)


# --- CSV and Parquet --------------------------------------------------------------------------------------------------


def _read_csv(path: str, how: How) -> Table:
    def opened() -> Any:
        return _stream(path)

    odd: dict[int, str] = {}
    form = None
    try:
        try:
            form = _separated.form_of(path, opened)
            table = _cells_of(path, form, None if how.spare is None else odd)
        except UnicodeDecodeError:
            odd.clear()
            form = _separated.form_of(path, opened, _separated.guessed(path, opened))
            table = _cells_of(path, form, None if how.spare is None else odd)
    except (UnicodeDecodeError, csv.Error) as error:
        raise Problem(f"{path}: {_reason(error)}") from error
    except Problem:
        if form is not None:
            _separated.require_closed(path, opened, form)
        raise
    if table is not None and (odd or any("\n" in (column[-1].as_py() or "") for column in table.columns if len(column))):
        _separated.require_closed(path, opened, form)
    if table is None:
        return Table(0, {}, origins=((path, 0),))
    line, below = list(form.line), table.slice(1)
    if _cells.is_header(path, line, below, how.asked, how.bare):
        below = _cells.named(path, below.rename_columns(line), how.asked)
        if how.second_weighs and not how.weight:
            how = _with(how, how.target, below.column_names[1])
        return _table(path, below, how, True, numbers=_numbers_beside(path, odd, 1, below.num_rows, how))
    return _without_names(path, table, how, _numbers_beside(path, odd, 0, table.num_rows, how))


def _numbers_beside(path: str, odd: dict[int, str], header: int, rows: int, how: How) -> list[int]:
    """The numbers of the rows that are read, beside those that have too few or too many cells, which are spared."""
    left_out = {number - header: why for number, why in odd.items()}
    if how.spare is None:
        return []
    for row, why in left_out.items():
        how.spare.refuse(path, row, f"{path}, row {row}: {why}")
    return [row for row in range(1, rows + len(left_out) + 1) if row not in left_out]


def _cells_of(path: str, form: _separated.Form, odd: dict[int, str] | None = None) -> Any:
    """All cells as an arrow table of texts, its first line too; None without any. Raises Problem, UnicodeDecodeError.

    odd: gets rows that have too few or too many cells, by their numbers, which are wrong without it.
    """
    import pyarrow
    from pyarrow import csv as reader

    if not form.line:
        return None
    generic = [f"f{index}" for index in range(len(form.line))]

    def leave_out(row: Any) -> str:
        odd[row.number - form.skip] = f"{row.actual_columns} cells, not {row.expected_columns}"  # type: ignore[index]
        return "skip"

    try:
        with _stream(path) as stream:
            return reader.read_csv(
                stream,
                read_options=reader.ReadOptions(
                    column_names=generic, use_threads=False, skip_rows=form.skip, encoding=form.encoding.removesuffix("-sig")
                ),
                parse_options=reader.ParseOptions(
                    newlines_in_values=True,
                    delimiter=form.separator,
                    invalid_row_handler=None if odd is None else leave_out,
                ),
                convert_options=reader.ConvertOptions(
                    column_types=dict.fromkeys(generic, pyarrow.string()), null_values=MISSING, strings_can_be_null=True
                ),
            )
    except pyarrow.ArrowException as error:
        if "UTF8" in str(error):
            raise UnicodeDecodeError("utf-8", b"", 0, 1, _reason(error)) from error
        raise Problem(f"{path}: {_reason(error)}") from error


def _without_names(path: str, table: Any, how: How, numbers: Sequence[int]) -> Table:
    """What there is of a table whose file has no names: features are counted without target and weight."""
    found = list(table.column_names)
    at = found.index(how.target) if how.target in found else 0
    target, weight = found[at], found[1 if at == 0 else 0] if how.second_weighs and len(found) > 1 else ""
    if how.bare or (not how.labelled and len(found) == len(how.columns or ())):
        target = weight = ""  # without a target, features are counted from the first column
    features = [name for name in found if name not in (target, weight)]
    table = table.rename_columns([f"f{features.index(name)}" if name in features else f"#{name}" for name in found])
    how = _with(how, f"#{target}" if target else "", f"#{weight}" if weight else "")
    return _table(path, table, how, False, f"column {at + 1}", numbers)


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200].removeprefix("CSV parse error: ") if lines else type(error).__name__


def _with(how: How, target: str, weight: str) -> How:
    return replace(how, target=target, weight=weight, second_weighs=False)


def _read_parquet(path: str, how: How) -> Table:
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.ParquetFile(path).read()
    except (pyarrow.ArrowException, ValueError, OSError) as error:
        raise Problem(f"{path} is not a whole Parquet file: {_reason(error)}") from error
    return _table(path, _cells.named(path, table, how.asked), how, True)


def _table(
    path: str, table: Any, how: How, named: bool, target_said: str = "", numbers: Sequence[int] | None = None
) -> Table:
    """What there is of an arrow table with these columns; without rows that are spared. Raises Problem.

    numbers: of the rows in their file.
    """
    if how.spare is None:
        return _whole(path, table, how, named, target_said)
    numbers = numbers or range(1, table.num_rows + 1)
    read = how.spare.read(path, table, numbers, lambda part: _whole(path, part, how, named, target_said), named)
    return joined(read) if read else Table(0, {}, origins=((path, 0),))


def _whole(path: str, table: Any, how: How, named: bool, target_said: str) -> Table:
    """What there is of an arrow table with these columns. Raises Problem."""
    import difflib

    found = list(table.column_names)
    target = how.target or ("" if how.bare or (how.columns is not None and not how.labelled) else found[0])
    if target not in found:
        if how.labelled:
            near = difflib.get_close_matches(target, found, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else f"; there are {_some(found)}"
            raise Problem(f"{path}: there is no column {target!r} to learn{hint}")
        target = ""
    weight = how.weight if how.weight in found else ""
    if how.weight and how.labelled and not weight:
        raise Problem(f"{path}: there is no column {how.weight!r} of weights; there are {_some(found)}")
    features = [name for name in found if name not in (target, weight, how.group, how.upper, *how.ignored)]
    if how.columns is not None:
        absent = [name for name in how.columns if name not in features]
        if absent:
            raise Problem(f"{path} has no column {absent[0]!r}, which the model was trained with")
        features = list(how.columns)
    if not features:
        why = "its only column is the target" if target else "all its columns are left out"
        raise Problem(f"{path} has no features: {why}")
    read = _numbers if how.numeric else _column
    columns = {name: read(path, table.column(name), name, how.names or name in how.text) for name in features}
    said = target_said or target
    wanted = _target(path, table.column(target), said, how) if target and how.labelled else None
    weights = _column(path, table.column(weight), weight.lstrip("#"), False) if weight and how.labelled else None
    if wanted is not None:
        missing = _first(numpy.array([value is None for value in wanted]) if wanted.dtype == object else numpy.isnan(wanted))
        if missing is not None:
            raise Problem(f"{path}, row {missing + 1}: the target ({said}) is missing")
    if weights is not None:
        _check_weights(path, weights)
    extra = _extra(path, table, how) if how.labelled else {}
    return Table(
        table.num_rows, columns, None, wanted, said if target else "", weights, named, ((path, table.num_rows),), extra
    )


def _extra(path: str, table: Any, how: How) -> dict[str, Any]:
    """What is said of rows beside features, target and weight. Raises Problem."""
    found = {}
    for role, name in (("group", how.group), ("upper", how.upper)):
        if name and name not in table.column_names:
            raise Problem(f"{path}: there is no column {name!r}; there are {_some(table.column_names)}")
        if name:
            column = table.column(name)
            found[role] = _cells.names(path, column, name) if role == "group" else _column(path, column, name, False)
    if (uppers := found.get("upper")) is not None:
        if uppers.dtype == object:
            raise Problem(f"{path}: {how.upper} is text: the upper end is a number, or empty where there is none")
        found["upper"] = numpy.where(numpy.isnan(uppers), numpy.inf, uppers)
    return found


def grouped(table: Table) -> Table:
    """The table with groups as numbers. Raises Problem where rows of one are apart."""
    if "group" not in table.extra:
        return table
    numbers: dict[Any, int] = {}
    made = numpy.empty(table.rows, numpy.int64)
    before = None
    for row, name in enumerate(table.extra["group"].tolist()):
        if name is None:
            raise Problem(f"{table.place(row)}: the row has no group")
        if name != before and name in numbers:
            raise Problem(f"{table.place(row)}: the group {name} goes on here, after others: sort the rows by group")
        before, made[row] = name, numbers.setdefault(name, len(numbers))
    return replace(table, extra={**table.extra, "group": made})


def _check_weights(path: str, weights: Any) -> None:
    wrong = 0 if weights.dtype == object else _first(~(weights >= 0))
    if wrong is not None:
        raise Problem(f"{path}, row {wrong + 1}: the weight is not a number from 0")


def _first(wrong: Any) -> int | None:
    """Index of the first true value."""
    found = numpy.flatnonzero(wrong)
    return int(found[0]) if len(found) else None


def _target(path: str, column: Any, name: str, how: How) -> Any:
    """The target: of classes too long to be exact as numbers, texts. Raises Problem."""
    if how.text_target or (how.classes and _cells.has_leading_zeros(path, _cells.plain(column), name)):
        return _cells.names(path, column, name)
    values = _column(path, column, name, False, advise=False, apart=not how.classes)
    if not how.classes and values.dtype == object:
        _refuse_odd(path, values, name)
    return _cells.names(path, column, name) if how.classes and values.dtype != object and _cells.is_large(values) else values


def _refuse_odd(path: str, values: Any, name: str) -> None:
    """Raises Problem for the first text of a target that is a number in most rows."""
    odd = [row for row, value in enumerate(values) if value is not None and number(value) is None]
    if odd and len(odd) < (1 - MOST_NUMBERS) * len(values):
        raise Problem(f"{path}, row {odd[0] + 1}: the target ({name}) is {shown(values[odd[0]])}, and a number in most rows")


def _numbers(path: str, column: Any, name: str, as_text: bool) -> Any:
    """A column as float64, all of which is there. Raises Problem."""
    values = _column(path, column, name, as_text, advise=False)
    made = values if values.dtype != object else [math.nan if cell is None else number(cell) for cell in values]
    for row, value in enumerate(made):
        if value is None or value != value:
            why = "missing" if value is not None else f"{shown(values[row])}, not a number"
            raise Problem(f"{path}, row {row + 1}: {name} is {why} ({LEAVE_OUT})")
    return numpy.asarray(made, numpy.float64)


def _column(path: str, column: Any, name: str, as_text: bool, advise: bool = True, apart: bool = True) -> Any:
    """A column as float64 with nan, or as objects with None. Raises Problem.

    advise: whether a feature may be text or missing, and a message says so. apart: whether different values stay different.
    """
    if as_text:
        return _cells.names(path, column, name)
    column = _cells.plain(column)
    if _cells.is_time(column) or (advise and _cells.has_leading_zeros(path, column, name)):
        return _cells.names(path, column, name)
    values = _of_texts(path, column, name, advise) if _cells.is_text(column) else _of_numbers(path, column, name, advise)
    if apart and values.dtype != object:
        _cells.require_apart(path, name, column, values, "categorical_columns takes names" if advise else LEAVE_OUT)
    return values


def _of_numbers(path: str, column: Any, name: str, advise: bool) -> Any:
    import pyarrow

    try:
        values = column.cast(pyarrow.float64(), safe=False).to_numpy()
    except pyarrow.ArrowException as error:
        raise Problem(f"{path}: {name} is of type {column.type}, neither numbers nor text ({LEAVE_OUT})") from error
    return _finite(path, name, numpy.asarray(values, numpy.float64), advise)


def _of_texts(path: str, column: Any, name: str, advise: bool) -> Any:
    import pyarrow

    try:
        return _finite(path, name, column.cast(pyarrow.float64()).to_numpy(), advise)
    except pyarrow.ArrowInvalid:
        values = _cells.objects(column.to_pylist())
    numbers = [math.nan if value is None else number(value) for value in values]
    wrong = next((row for row, value in enumerate(numbers) if value is None), None)
    if wrong is None:  # `+3`, which pyarrow does not take
        return _finite(path, name, numpy.array(numbers, numpy.float64), advise)
    if (commas := _cells.with_commas(path, name, values)) is not None:
        return _finite(path, name, commas, advise)
    others = [row for row, value in enumerate(values) if value is not None and _cells.spelled_otherwise(value)]
    if others and numbers.count(None) - len(others) < (1 - MOST_NUMBERS) * sum(value is not None for value in values):
        raise Problem(
            f"{path}, row {others[0] + 1}: {name} is {shown(values[others[0]])}, a number in digits of another script or "
            f"with separators: write it as in -1234.5{', or name the column in categorical_columns' * advise} ({LEAVE_OUT})"
        )
    if numbers.count(None) < (1 - MOST_NUMBERS) * sum(value is not None for value in values) and advise:
        raise Problem(
            f"{path}, row {wrong + 1}: {name} is {shown(values[wrong])}, and a number in most rows; "
            "name the column in categorical_columns if it is meant so"
        )
    if advise and not _dates.begins(values) and (row := _cells.spelled(values)) is not None:
        raise Problem(
            f"{path}, row {row + 1}: {name} is {shown(values[row])}, a number with a sign or separators: write it as in "
            f"-1234.5, or name the column in categorical_columns ({LEAVE_OUT})"
        )
    return values


def _finite(path: str, name: str, values: Any, advise: bool) -> Any:
    wrong = _first(numpy.abs(values) > LARGEST)
    if wrong is not None:
        why = "leave it empty if it is missing" if advise else "too large a number"
        raise Problem(f"{path}, row {wrong + 1}: {name} is {values[wrong]:g}: {why}")
    return values


# --- libsvm and recordio-protobuf -------------------------------------------------------------------------------------


def _lines(path: str) -> Iterator[tuple[int, list[str]]]:
    """(row, words) of a libsvm file; comments are left out. Raises Problem."""
    import pyarrow

    row = 0
    try:
        with _stream(path) as stream:
            for content in io.TextIOWrapper(stream, encoding="utf-8-sig"):
                words = content.split("#", 1)[0].split()
                if words:
                    row += 1
                    yield row, words
    except (UnicodeDecodeError, pyarrow.ArrowException) as error:
        raise Problem(f"{path}, row {row + 1}: {_reason(error)}") from error


@dataclass
class _Sparse:
    """What a row of libsvm says. weight, group: None where it says none. empty: cells that are an index alone."""

    target: float
    weight: float | None = None
    group: str | None = None
    indices: list[int] = field(default_factory=list)
    data: list[float] = field(default_factory=list)
    empty: int = 0


def _sparse_row(where: str, words: list[str], labelled: bool) -> _Sparse:
    """Raises Problem."""
    if not labelled and ":" in words[0]:
        words = ["0", *words]  # a row to predict may come without a target
    label, colon, weight = words[0].partition(":")
    value = number(label)
    if value is None or not math.isfinite(value):
        raise Problem(f"{where}: the target {shown(label)} is not a number")
    row = _Sparse(value)
    if colon:
        row.weight = number(weight) if number(weight) is not None else math.nan
    last = -1
    for word in words[1:]:
        index, colon, cell = word.partition(":")
        if index == "qid":
            row.group = cell
            continue
        if colon and not cell and index.isdigit():  # `8:`
            row.empty += 1
            continue
        value = number(cell) if colon else None
        if value is None or not (index.isascii() and index.isdigit()):
            raise Problem(f"{where}: {shown(word)} is not index:value")
        if not last < int(index) < WIDEST:
            raise Problem(f"{where}: the index {shown(index)} does not come after {last}, or is {WIDEST} or more")
        if abs(value) > LARGEST:
            raise Problem(f"{where}: {shown(word)} is too large a number")
        last = int(index)
        row.indices.append(last)
        row.data.append(value)
    return row


def _read_libsvm(path: str, how: How) -> Table:
    from scipy.sparse import csr_matrix

    rows: list[_Sparse] = []
    numbers: list[int] = []
    for at, words in _lines(path):
        try:
            rows.append(_sparse_row(f"{path}, row {at}", words, how.labelled))
            numbers.append(at)
        except Problem as problem:
            if how.spare is None:
                raise
            how.spare.refuse(path, at, problem)
    weights = [row.weight for row in rows if row.weight is not None]
    if weights and len(weights) != len(rows):
        raise Problem(f"{path}: {len(weights)} of {len(rows)} rows have a weight")
    if weights:
        _check_weights(path, numpy.array(weights))
    groups = [row.group for row in rows if row.group is not None]
    if groups and len(groups) != len(rows):
        raise Problem(f"{path}: {len(groups)} of {len(rows)} rows have a qid")
    if empty := sum(row.empty for row in rows):
        note(f"{path}: {empty} cells are an index without a value, as 8: is, and count as missing")
    indices = [index for row in rows for index in row.indices]
    data = numpy.array([value for row in rows for value in row.data], numpy.float32)
    ends = numpy.cumsum([0, *(len(row.data) for row in rows)])
    matrix = csr_matrix((data, indices, ends), shape=(len(rows), max(indices, default=-1) + 1))
    extra = {"group": _cells.objects(groups)} if groups and how.labelled else {}
    if how.spare is not None:
        kept = _cells.objects([how.spare.beside(path) for _ in rows])
        extra = {**extra, "row": numpy.array(numbers), "kept": kept}
    return Table(
        len(rows), {}, matrix, numpy.array([row.target for row in rows]), "", numpy.array(weights) if weights else None,
        False, ((path, len(rows)),), extra,
    )  # fmt: skip


def _read_recordio(path: str, how: How) -> Table:
    from scipy.sparse import csr_matrix

    from trainshed.data import DataError
    from trainshed.data.formats.protobuf import RecordIOProtobuf, Sparse

    form = RecordIOProtobuf()
    rows: list[Any] = []
    targets: list[float] = []
    number = 0
    try:
        for offset, record in form.split(io.BytesIO(Path(path).read_bytes()), path):
            number += 1
            where = f"{path}, row {number}"
            try:
                sample = form.sample(record)
            except DataError as error:
                raise Problem(f"{where}, at byte {offset}: {error.message}") from error
            features, label = sample.get("features"), sample.get("label")
            if not isinstance(features, (Sparse, numpy.ndarray)):
                raise Problem(f"{where} has no features, or none that are a tensor of the name 'values'")
            if how.labelled and not (isinstance(label, numpy.ndarray) and label.size == 1 and numpy.isfinite(label).all()):
                raise Problem(f"{where} has no label that is one finite number")
            targets.append(float(label.reshape(-1)[0]) if how.labelled else 0.0)  # type: ignore[union-attr]
            values = features.values if isinstance(features, Sparse) else features.reshape(-1)
            if (numpy.abs(values) > LARGEST).any():
                raise Problem(f"{where} has a value that is too large a number")
            if isinstance(features, Sparse) and len(features.keys) and int(features.keys.max()) >= WIDEST:
                raise Problem(f"{where} has a key of {WIDEST} or more")
            if rows and isinstance(features, Sparse) != isinstance(rows[0], Sparse):
                raise Problem(f"{where} and those before it are of different kinds: sparse and dense")
            if rows and not isinstance(features, Sparse) and len(values) != len(rows[0]):
                raise Problem(f"{where} has {len(values)} features, the first one has {len(rows[0])}")
            rows.append(features if isinstance(features, Sparse) else values.astype(numpy.float64))
    except DataError as error:
        raise Problem(": ".join(filter(None, (error.message, error.hint)))) from error
    origins = ((path, len(rows)),)
    if not rows:
        return Table(0, {}, origins=origins)
    if not isinstance(rows[0], Sparse):
        dense = numpy.array(rows)
        columns = {f"f{index}": dense[:, index] for index in range(dense.shape[1])}
        return Table(len(rows), columns, None, numpy.array(targets), "label", origins=origins)
    keys = numpy.concatenate([row.keys for row in rows]).astype(numpy.int64)
    shaped = max((row.shape[-1] for row in rows if row.shape), default=0)
    width = max(shaped, int(keys.max()) + 1 if len(keys) else 0)
    ends = numpy.cumsum([0, *(len(row.keys) for row in rows)])
    data = numpy.concatenate([row.values for row in rows]).astype(numpy.float32)
    matrix = csr_matrix((data, keys, ends), shape=(len(rows), width))
    return Table(len(rows), {}, matrix, numpy.array(targets), "label", origins=origins)


_READERS: dict[str, Callable[[str, How], Table]] = {
    "csv": _read_csv,
    "libsvm": _read_libsvm,
    "parquet": _read_parquet,
    "recordio": _read_recordio,
}
