"""What the cells of a table are, for every program: names, which keep each digit; numbers; a line of names above them.

A guess is checked against the data: where it is not plausible, a Problem says so; what is left out is noted.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy
from _common import LEAVE_OUT, Problem, note

MISSING = ("", "NA", "na", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "none", "?")
EXACT = 2.0**53  # from here on float64 leaves whole numbers out, and two ids become one
EXACT_IN = {16: 2.0**11, 32: 2.0**24}  # the same of narrower floating point numbers, by their bits
FEW = 10  # different values that may be categories, though they are numbers in another spelling
NOT_ONE = 0.5  # more different texts than this part of the rows are hardly categories
STAND_FOR_NOTHING = (-9.0, -99.0, -999.0, -9999.0, -99999.0, -999999.0)
ROWS = 20  # of fewer nobody can tell
_SIGNS = str.maketrans({"_": None, "\u066b": ".", "\u066c": None})  # Arabic's comma and separator
INDICES = ("Unnamed: 0", "__index_level_0__")  # what pandas calls the numbers of its rows


def number(cell: str) -> float | None:
    """The number that a cell is, if it is one."""
    if "_" in cell or not cell.isascii():  # which Python takes for numbers
        return None
    try:
        return float(cell)
    except ValueError:
        return None


def spelled_otherwise(cell: str) -> bool:
    """Whether a cell is a number to a reader, but not to `number`: in digits of another script, or as in 1_000."""
    plain = "".join(str(unicodedata.decimal(sign, sign)) for sign in unicodedata.normalize("NFKC", cell))
    return number(cell) is None and number(plain.translate(_SIGNS)) is not None


def shown(cell: object) -> str:
    """A cell for a message, in quotes."""
    text = str(cell)
    return repr(text if len(text) <= 40 else f"{text[:37]}...")


def plain(column: Any) -> Any:
    """A column of arrow without a dictionary, and without blanks around texts."""
    import pyarrow
    import pyarrow.compute as compute

    if pyarrow.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return compute.utf8_trim_whitespace(column) if is_text(column) else column


def is_text(column: Any) -> bool:
    """Whether a column of arrow has texts."""
    import pyarrow

    return bool(pyarrow.types.is_string(column.type) or pyarrow.types.is_large_string(column.type))


def is_time(column: Any) -> bool:
    """Whether a column of arrow has days or moments."""
    import pyarrow

    return bool(pyarrow.types.is_date(column.type) or pyarrow.types.is_timestamp(column.type))


def objects(values: Sequence[Any]) -> Any:
    """An array of objects, whatever they are."""
    made = numpy.empty(len(values), dtype=object)
    made[:] = values
    return made


# --- names ------------------------------------------------------------------------------------------------------------


def names(path: str, column: Any, name: str) -> Any:
    """A column of arrow whose values name something (ids, classes, categories, keys), as texts with every digit, or None.

    A whole number is the same text in every format. Raises Problem where the file has lost digits already.
    """
    import pyarrow
    import pyarrow.types as types

    column = plain(column)
    if is_text(column):
        return objects(_whole(path, name, column.to_pylist()))
    if types.is_floating(column.type):
        limit = EXACT_IN.get(column.type.bit_width, EXACT)
        return objects([_of_float(path, name, row, value, limit) for row, value in enumerate(column.to_pylist())])
    if types.is_boolean(column.type):
        column = column.cast(pyarrow.int8())
    try:
        return objects(column.cast(pyarrow.string()).to_pylist())
    except pyarrow.ArrowException as error:
        raise Problem(f"{path}: {name} is of type {column.type}, which names nothing ({LEAVE_OUT})") from error


def has_leading_zeros(path: str, column: Any, name: str) -> bool:
    """Whether a column of arrow has texts such as 00123, which are names: as a number it is another one. Says so."""
    import pyarrow.compute as compute

    if not is_text(column):
        return False
    found = compute.index(compute.match_substring_regex(column, r"^0[0-9]+$"), True).as_py()
    if found < 0:
        return False
    note(f"{path}, row {found + 1}: {name} is {shown(column[found].as_py())}, with a zero before it: its values are names")
    return True


def _whole(path: str, name: str, values: list[str | None]) -> list[str | None]:
    """Texts as they are; but ids that pandas has written as 12.0, since one is missing, are 12. Raises Problem."""
    there = [value for value in values if value is not None]
    if there and all(re.fullmatch(r"[+-]?\d+\.0", value) for value in there):
        return [value if value is None else _of_float(path, name, row, float(value)) for row, value in enumerate(values)]
    short = next((value for value in there if re.fullmatch(r"[+-]?\d\.\d+[eE]\+?\d{2}", value)), None)
    if short is not None and all(number(value) is not None for value in there):
        raise Problem(
            f"{path}, row {values.index(short) + 1}: {name} is {short!r}, an id without its last digits, as spreadsheets "
            "write long ones: write the column as text"
        )
    return values


def _of_float(path: str, name: str, row: int, value: float | None, limit: float = EXACT) -> str | None:
    if value is None or value != value:
        return None
    if abs(value) >= limit and value == value.__trunc__():
        raise Problem(
            f"{path}, row {row + 1}: {name} is {value!r}, a floating point number that has lost its last digits: write the "
            "ids as whole numbers or as text"
        )
    return repr(value).removesuffix(".0")


# --- numbers ----------------------------------------------------------------------------------------------------------


def is_large(numbers: Any) -> bool:
    """Whether there are whole numbers that a floating point number may not tell apart."""
    return bool((numpy.abs(numbers) >= EXACT).any())


def require_apart(path: str, name: str, column: Any, numbers: Any, way_out: str) -> None:
    """Raises Problem where two values of a column of arrow are one number in float64."""
    seen: dict[float, Decimal] = {}
    for row in numpy.flatnonzero(numpy.abs(numbers) >= EXACT):
        exact = _decimal(column[int(row)].as_py())
        other = seen.setdefault(numbers[row], exact)
        if exact != other:
            raise Problem(f"{path}, row {row + 1}: {name} is {exact}, and {other} elsewhere: one number; {way_out}")


def _decimal(value: Any) -> Decimal:
    try:
        return Decimal(value)
    except InvalidOperation:
        return Decimal("nan")


def with_commas(path: str, name: str, values: Sequence[str | None]) -> Any:
    """The numbers of a column of texts whose decimal sign is a comma, said; None where it may be one between thousands."""
    there = [value for value in values if value is not None]
    if not all(re.fullmatch(r"[+-]?\d+(?:,\d+)?(?:[eE][+-]?\d+)?", value) for value in there):
        return None
    telling = next((value for value in there if not re.fullmatch(r"[+-]?\d{1,3}(?:,\d{3})?", value) and "," in value), None)
    if telling is None:
        return None
    note(f"{path}: {name} has a comma as decimal sign, as in {telling}")
    return numpy.array([numpy.nan if value is None else float(value.replace(",", ".")) for value in values])


def spelled(values: Iterable[str | None]) -> int | None:
    """The row of the first of these texts that is no number as it stands, if each is one but for a sign or separators."""
    rows = [(row, value) for row, value in enumerate(values) if value is not None]
    if len({value for _, value in rows}) <= FEW or not all(number(_bare(value)) is not None for _, value in rows):
        return None
    return next((row for row, value in rows if number(value) is None), None)


def _bare(cell: str) -> str:
    """A cell without signs of currency and per cent, and without separators."""
    digits = "".join(sign for sign in cell if sign not in "%‰'’.,() \u00a0\u202f" and unicodedata.category(sign) != "Sc")
    return re.sub(r"^(?:[A-Z]{3}(?=[+-]?\d))|(?<=\d)[A-Z]{3}$", "", digits).replace("\u2212", "-")


def note_texts(name: str, texts: int, rows: int) -> None:
    """Says that a column of text can hardly be learned from, if that is so."""
    if rows >= ROWS and texts > NOT_ONE * rows:
        note(f"{name} is text, with {texts} different values in {rows} rows: hardly categories ({LEAVE_OUT})")


def note_narrow(name: str, values: Any) -> None:
    """Says that whole numbers become one in 32 bits, which trees and weights have, if that is so."""
    if not (numpy.abs(values) >= EXACT_IN[32]).any():
        return
    known = values[~numpy.isnan(values)]
    different, left = len(numpy.unique(known)), len(numpy.unique(known.astype(numpy.float32)))
    if left < different and (known == known.round()).all():
        note(
            f"{name} has {different} different whole numbers, and {left} in the 32 bits of a model: if they name something, "
            f"name the column in categorical_columns ({LEAVE_OUT})"
        )


def note_standing(name: str, values: Any) -> None:
    """Says that a number seems to stand for what is missing, if one does: far below all others, and more than once."""
    known = values[~numpy.isnan(values)]
    least = known.min() if len(known) else 0.0
    if least not in STAND_FOR_NOTHING:
        return
    others = known[known != least]
    if len(others) < len(known) - 1 and len(others) and others.min() > least / 2:
        note(
            f"{name} is {least:g} in {len(known) - len(others)} rows and {others.min():g} or more in the others: leave "
            "cells empty where that means missing"
        )


# --- a line of names --------------------------------------------------------------------------------------------------


def is_header(path: str, cells: list[str], below: Any, asked: set[str], bare: bool) -> bool:
    """Whether a first line has names, by what is below it: an arrow table of texts. Raises Problem for half of one.

    asked: names that a header has. bare: whether one column is enough.
    """
    if any(cell in asked for cell in cells):
        return True
    if len(cells) == 1 and not bare:
        return False
    words = [
        at for at, cell in enumerate(cells) if not (cell in MISSING or number(cell) is not None or spelled_otherwise(cell))
    ]
    above = next((at for at in words if _are_numbers(below.column(at))), None)
    if above is None:
        return len(words) == len(cells) == len(set(cells)) and not any(_holds(below, at, cells[at]) for at in words)
    odd = next((cell for cell in cells if number(cell) is not None and cell not in MISSING), None)
    if odd is not None:
        raise Problem(
            f"{path}: its first line is neither a header nor a row: {shown(cells[above])} stands above numbers, and {odd} "
            "is not a name; mend the cell, or give the column to learn by its name as target"
        )
    return True


def _are_numbers(column: Any) -> bool:
    """Whether a column of texts has numbers alone, and any."""
    import pyarrow

    try:
        plain(column).cast(pyarrow.float64())
    except pyarrow.ArrowInvalid:
        return False
    return int(column.null_count) < len(column)


def _holds(table: Any, at: int, cell: str) -> bool:
    import pyarrow.compute as compute

    return bool(compute.any(compute.equal(table.column(at), cell)).as_py())


def named(path: str, table: Any, asked: set[str]) -> Any:
    """An arrow table without columns that have no name of their own: empty ones, and pandas's count of rows.

    Raises Problem for others without a name, and for names that are there twice.
    """
    columns = list(table.column_names)
    for at in reversed(range(len(columns))):
        name, column = columns[at], table.column(at)
        if name in asked or name not in ("", *INDICES):
            continue
        if column.null_count == len(column) or _counts_rows(column):
            what = "no values" if column.null_count == len(column) else "the numbers of rows, which pandas writes"
            note(f"{path}: the header gives column {at + 1} {f'the name {name}' if name else 'no name'}: {what}; left out")
            table = table.remove_column(at)
        elif not name:
            raise Problem(f"{path}: the header has no name for column {at + 1}: write one into the first line")
    kept = list(table.column_names)
    double = next((name for at, name in enumerate(kept) if name in kept[:at]), None)
    if double is not None:
        raise Problem(f"{path}: two columns have the name {double!r} in the header: rename one")
    return table


def _counts_rows(column: Any) -> bool:
    import pyarrow

    try:
        values = plain(column).cast(pyarrow.int64()).to_numpy()
    except (pyarrow.ArrowException, ValueError):
        return False
    return len(values) > 1 and values[0] in (0, 1) and bool((numpy.diff(values) == 1).all())
