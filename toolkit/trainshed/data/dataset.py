"""A channel whose files can be read in any order."""

from __future__ import annotations

import os
from functools import cached_property

from trainshed.base.voice import tell

from .channels import place_of_rank
from .formats.errors import SampleError, placed
from .index import counts_of
from .order import Order, blocks_of
from .reader import RecordReader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from .formats.errors import DataError
    from .formats.format import Counted, Format
    from .loader import Loader

_AT_ONCE = 16  # records that are read and then made into samples


class Files:
    """The samples of a channel in the order of its files: `len(train)`, `train[7]`, `for sample in train`.

    It is a map-style dataset for torch's own DataLoader and samplers, too, and so for trainers that make their own loader;
    `loader` reads faster, and goes on at the exact sample after an interruption.

    Args:
        name: for messages.
        paths: of its files, sorted.
        top: the folder that they are in.
    """

    def __init__(self, name: str, paths: Sequence[str], top: str, form: Format) -> None:
        self.name, self.paths, self.format = name, tuple(paths), form
        self._top = top

    @cached_property
    def counted(self) -> list[Counted]:
        """The records of each file; the first look counts them."""
        return counts_of(self.paths, self.format, tell)

    @cached_property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(os.path.getsize(path) for path in self.paths)

    def relative(self, file: int) -> str:
        """A file's path below the channel's folder."""
        return os.path.relpath(self.paths[file], self._top)

    def only(self, paths: tuple[str, ...]) -> Files:
        """The samples of some of its files, for one that holds others out."""
        return Files(self.name, paths, self._top, self.format)

    def reader(self) -> RecordReader:
        """A new reader of the files."""
        return RecordReader(self.paths, self.counted, self.format)

    def loader(self, batch_size: int, **options: Any) -> Loader:
        """Batches for this rank: see `Loader`, whose arguments these are."""
        from .loader import Loader

        rank, world = place_of_rank(os.environ)
        return Loader(self, batch_size, **{"rank": rank, "world_size": world, **options})

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, number: int) -> Any:
        if not -len(self) <= number < len(self):
            raise IndexError(f"{self.name} has {len(self)} samples, and none with the number {number}")
        [(file, record)] = self._order.places([number % len(self)])
        return self._sample(self._reader.read(file, record, 1)[0], file, record)

    def __iter__(self) -> Iterator[Any]:
        """All samples, in the order of the files, whatever the rank."""
        reader = self.reader()
        for file, counted in enumerate(self.counted):
            for first in range(0, counted.records, _AT_ONCE):
                records = reader.read(file, first, min(_AT_ONCE, counted.records - first))
                for number, record in enumerate(records, first):
                    yield self._sample(record, file, number)

    def placed(self, error: SampleError, file: int, record: int) -> DataError:
        """An error of a sample with the place of its record."""
        path = self.paths[file]
        return placed(error, path, record, self.format.offset_of(path, record, self.counted[file]))

    def _sample(self, record: Any, file: int, number: int) -> Any:
        try:
            return self.format.sample(record)
        except SampleError as error:
            raise self.placed(error, file, number) from error

    def __getstate__(self) -> Mapping[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_reader"}

    def __repr__(self) -> str:
        return f"<{self.name}: {len(self.paths)} {self.format.name} files>"

    @cached_property
    def _reader(self) -> RecordReader:
        return self.reader()

    @cached_property
    def _order(self) -> Order:
        counts = [one.records for one in self.counted]
        return Order(blocks_of(counts, max(1, *counts)), "")
