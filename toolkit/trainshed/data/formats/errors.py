"""Errors of a channel's data."""

from __future__ import annotations

from trainshed.base.errors import TrainshedError


class DataError(TrainshedError):
    """A channel cannot be read as asked, or a file in it is damaged."""


class SampleError(DataError):
    """A record cannot be made into a sample. `what` says why; who knows the place adds it: `placed`."""

    def __init__(self, what: str) -> None:
        super().__init__(f"a record {what}")
        self.what = what


def broken(path: str, what: str) -> DataError:
    """An error about a file that is not as it was written."""
    return DataError(f"{path} {what}", hint="fetch or write that file again")


def damaged(path: str, record: int, offset: int, what: str) -> DataError:
    """An error about one record.

    Args:
        record: its number in the file, from 0.
        offset: where it begins, bytes; in what a compressed file unpacks to.
        what: "is cut short", "begins with ..." and the like.
    """
    return broken(f"{path}: record {record} at byte {offset}", what)


def placed(error: SampleError, path: str, record: int, offset: int | None) -> DataError:
    """A sample's error with the place of its record; `offset` is None where a format has none."""
    where = f"record {record}" if offset is None else f"record {record} at byte {offset}"
    return broken(f"{path}: {where}", error.what)
