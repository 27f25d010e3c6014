"""Parquet: rows as dictionaries, read with pyarrow."""

from __future__ import annotations

from contextlib import contextmanager

from trainshed.base.errors import did_you_mean, some

from .errors import DataError, broken
from .format import BLOCK, Counted, Format, changed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

ROWS = 256  # that are decoded at once


class Parquet(Format):
    """Rows by column: numbers, text, bytes; a list of numbers is an array. What is missing is None.

    Times and decimals are Python's objects for them.

    Args:
        columns: those that are read; () for all.
    """

    name = "parquet"
    content_types = ("application/x-parquet", "application/parquet", "application/vnd.apache.parquet")
    endings = (".parquet", ".pq")
    needs = ("numpy", "pyarrow")

    def __init__(self, *, columns: tuple[str, ...] = ()) -> None:
        self.columns = columns

    def count(self, path: str) -> Counted:
        """Reads the file's metadata alone."""
        with _told(path), _opened(path) as file:
            return Counted(file.metadata.num_rows)

    def read(self, path: str, first: int, counted: Counted) -> Iterator[dict[str, Any]]:
        """Enters the file at the row group that has the record, and holds ROWS rows."""
        number = group = 0
        with _told(path), _opened(path) as file:
            meta = file.metadata
            if meta.num_rows != counted.records:
                raise changed(path, counted, meta.num_rows)
            while group < meta.num_row_groups and number + meta.row_group(group).num_rows <= first:
                number += meta.row_group(group).num_rows
                group += 1
            groups, columns = range(group, meta.num_row_groups), self._columns(path, file.schema_arrow.names)
            for batch in file.iter_batches(ROWS, row_groups=groups, columns=columns, use_threads=False):
                if number + batch.num_rows > first:
                    yield from _rows(batch.slice(max(0, first - number)))
                number += batch.num_rows
            if number != counted.records:
                raise DataError(f"{path} has {number} rows, and its metadata tells of {counted.records}")

    def recognizes(self, path: str, beginning: bytes) -> bool:
        """By the letters PAR1."""
        return beginning[:4] == b"PAR1"

    def _columns(self, path: str, names: list[str]) -> list[str]:
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise DataError(f"{path} has two columns {twice[0]!r}", hint="a row is read by its columns' names")
        if unknown := [name for name in self.columns if name not in names]:
            hint = did_you_mean(unknown[0], names) or f"it has {some(names, 20)}"
            raise DataError(f"{path} has no column {unknown[0]!r}", hint=hint)
        return list(self.columns) or names


def _rows(batch: Any) -> list[dict[str, Any]]:
    if not any(map(_is_list, batch.schema.types)):
        return batch.to_pylist()  # type: ignore[no-any-return]
    names = batch.schema.names
    columns = [_values(column) for column in batch.columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _values(column: Any) -> list[Any]:
    """A column's elements; lists of numbers in which nothing is missing as arrays of numpy."""
    import pyarrow as pa

    kind = column.type
    if not _is_list(kind) or column.null_count or not _is_number(kind.value_type):
        return column.to_pylist()  # type: ignore[no-any-return]
    flat = column.flatten()
    if flat.null_count:
        return column.to_pylist()  # type: ignore[no-any-return]
    array = flat.to_numpy(zero_copy_only=False)
    if pa.types.is_fixed_size_list(kind):
        return list(array.reshape(len(column), kind.list_size).copy())
    ends = column.offsets.to_numpy()
    ends = ends - ends[0]
    return [array[begin:end].copy() for begin, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _opened(path: str) -> Any:
    from pyarrow.parquet import ParquetFile

    # Columns of a row group are streamed, instead of read as a whole; damage is told where pages have checksums.
    return ParquetFile(path, buffer_size=BLOCK, pre_buffer=False, page_checksum_verification=True)


@contextmanager
def _told(path: str) -> Iterator[None]:
    """Tells what pyarrow raises as DataError with the file's name; that a file is not there stays what it is."""
    from pyarrow import ArrowException

    try:
        yield
    except (ArrowException, OSError, ValueError, LookupError, OverflowError) as error:
        if getattr(error, "errno", None) is not None:
            raise
        text = (str(error).splitlines() or [type(error).__name__])[0]
        raise broken(path, f"is not a whole Parquet file: {text}") from error
