"""Batches of a channel for the ranks of a job: shuffled, exact, and resumable at the sample."""

from __future__ import annotations

import hashlib
import itertools
from typing import Protocol

import torch
from torch.utils.data import DataLoader, default_collate

from trainshed.base.record import Record

from .formats.errors import DataError, SampleError
from .formats.format import Format
from .order import Order, Runs, blocks_of
from .sharding import Deal, Share, left_of, seed_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any

    from .formats.format import Counted
    from .reader import RecordReader

_STATE = 1  # version of `state_dict`
_BLOCK_BYTES = 8 << 20  # of a block, that is shuffled as a whole
_WINDOW_BYTES = 64 << 20  # of a window, that a worker holds in memory
_MOST_SAMPLES = 1 << 14  # of either
_LEAST_SAMPLES = 256  # of a block
_SCATTERED_SAMPLES = 16  # of a block of records that are files of their own


class SampleSource(Protocol):
    """The data to load: `dataset.Files`."""

    name: str

    @property
    def format(self) -> Format:
        """Of all files."""

    @property
    def counted(self) -> list[Counted]:
        """The records of each file."""

    @property
    def bytes(self) -> int:
        """The size of all files."""

    def __len__(self) -> int: ...

    def relative(self, file: int) -> str:
        """A file's path below the channel's folder."""

    def reader(self) -> RecordReader:
        """A new reader of the files."""

    def placed(self, error: SampleError, file: int, record: int) -> DataError:
        """An error of a sample with the place of its record."""


class Loader:
    """Batches of one rank. Iterating it gives one epoch; the next iteration is the next epoch.

    All ranks get equally many batches, and every sample of an epoch comes once. (Where an epoch cannot be divided so, with
    batches of one sample or fewer samples than ranks, up to one sample a rank comes twice.) Iterating again after a `break`
    goes on where the loop has stopped.

    Args:
        files: what `channel(...)` has found.
        batch_size: samples of one batch of one rank.
        shuffle: blocks of files, and samples within a window of up to 64 MiB; by `seed` and epoch.
        workers: processes that read and transform; 0: this one.
        transform: what becomes of each sample; runs in the workers. A SampleError of its is told with the record's place.
        collate: makes a batch of a list of samples; torch's `default_collate` otherwise.
        device: where the batches go, one ahead, through pinned memory if it is a GPU.
        rank, world_size: this rank's place; torch.distributed's or the launcher's otherwise.

    epoch: the one that the next batch belongs to, from 0.
    """

    def __init__(
        self,
        files: SampleSource,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        workers: int = 0,
        transform: Callable[[Any], Any] | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        device: torch.device | str | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if batch_size < 1 or workers < 0 or not 0 <= rank < world_size:
            raise ValueError(f"batch_size={batch_size}, workers={workers}, rank={rank}, world_size={world_size}")
        self.epoch = 0
        self._files, self._batch, self._shuffle, self._seed, self._workers = files, batch_size, shuffle, seed, workers
        self._making = transform, collate
        self._device = torch.device(device) if device is not None else None
        self._rank, self._world = rank, world_size
        self._deals: tuple[Deal, ...] = ()
        average = max(1, files.bytes // max(1, len(files)))
        self._block = max(_LEAST_SAMPLES, min(_MOST_SAMPLES, _BLOCK_BYTES // average))
        if files.format.scattered:
            self._block = _SCATTERED_SAMPLES
        self._window = max(1, min(_MOST_SAMPLES, _WINDOW_BYTES // average) // batch_size) if shuffle else 1

    def __len__(self) -> int:
        """How many batches are left of the epoch."""
        deals = self._going_on()
        return self._share(deals).batches - deals[-1].taken

    def __iter__(self) -> Iterator[Any]:
        self._deals = self._going_on()
        share, deal = self._share(self._deals), self._deals[-1]
        numbers = list(itertools.islice(share.order(), deal.taken, None))
        batches = _Batches(self._files, self._order(), share, *self._making)
        seed = self._seed * 1_000_003 + self.epoch * 1009 + deal.taken
        for number, batch in enumerate(run(batches, numbers, self._workers, self._device, seed), deal.taken + 1):
            if number == share.batches:  # the epoch ends with this batch, even where the loop ends within it
                self.epoch, self._deals = self.epoch + 1, ()
            else:
                self._deals = (*self._deals[:-1], Deal(deal.world, deal.batch, deal.window, deal.lanes, number))
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """The place of the loop, for `load_state_dict` of a loader on any rank of a job of any size."""
        return {
            "version": _STATE,
            "epoch": self.epoch,
            "shuffle": self._shuffle,
            "seed": self._seed,
            "block": self._block,
            "samples": len(self._files),
            "data": _digest(self._files),
            "deals": [[deal.world, deal.batch, deal.window, deal.lanes, deal.taken] for deal in self._deals],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on behind the last batch that the loop had when the state was taken; with its seed and order.

        Raises:
            DataError: it is a state of other data, or none of ours.
        """
        try:
            version, deals = state["version"], tuple(Deal(*map(int, numbers)) for numbers in state["deals"])
            epoch, seed, block = int(state["epoch"]), int(state["seed"]), int(state["block"])
            samples, data, shuffle = int(state["samples"]), state["data"], bool(state["shuffle"])
        except (KeyError, TypeError, ValueError):
            raise DataError("this is not the state of a loader of trainshed.data") from None
        if version != _STATE:
            raise DataError(f"the loader's state has version {version}; this trainshed reads version {_STATE}")
        if (samples, data) != (len(self._files), _digest(self._files)):
            raise DataError(
                f"{self._files.name} is not what it was when the state was saved: it had {samples} samples then, and has "
                f"{len(self._files)} now",
                hint="give the job the same data, or begin a new epoch: leave the loader's state out",
            )
        if shuffle != self._shuffle:
            raise DataError(f"the state was saved with shuffle={shuffle}, and this loader has shuffle={self._shuffle}")
        self.epoch, self._seed, self._block, self._deals = epoch, seed, block, deals

    @property
    def _epoch_seed(self) -> str:
        return f"{self._seed} {self.epoch}" if self._shuffle else ""

    def _going_on(self) -> tuple[Deal, ...]:
        """The deals of this epoch, the last of which is for the ranks that there are now."""
        now = Deal(self._world, self._batch, self._window, max(1, self._workers) if self._shuffle else 1)
        if self._deals and self._deals[-1].replace(taken=0) == now:
            return self._deals
        before = self._deals
        while before and not before[-1].taken:
            before = before[:-1]
        return (*before, now)

    def _share(self, deals: Sequence[Deal]) -> Share:
        left = left_of(len(self._files), deals[:-1], self._epoch_seed) if deals[1:] else Runs([(0, len(self._files))])
        return Share(deals[-1], left, self._rank, seed_of(self._epoch_seed, len(deals) - 1))

    def _order(self) -> Order:
        counted = self._files.counted
        streams = self._files.format.streams
        whole = frozenset(number for number, one in enumerate(counted) if streams and one.records and not one.marks)
        return Order(blocks_of([one.records for one in counted], self._block, whole), self._epoch_seed)


class _Batches(torch.utils.data.Dataset[object]):
    """Makes batches by their numbers, in this process or a worker; it holds the window that it is in."""

    def __init__(
        self,
        files: SampleSource,
        order: Order,
        share: Share,
        transform: Callable[[Any], Any] | None,
        collate: Callable[[list[Any]], Any] | None,
    ) -> None:
        self._files = files
        self._reader = files.reader()
        self._order, self._share, self._transform, self._collate = order, share, transform, collate
        self._window: tuple[int, list[int], list[Any]] = (-1, [], [])

    def __getitem__(self, batch: int) -> object:
        first, start, stop = self._share.place(batch)
        try:
            if self._window[0] != first:
                self._window = (-1, [], [])  # before the next one is read
                window = self._share.window(batch)
                self._window = (first, window, self._reader.fetch(window, self._order))
            _, positions, records = self._window
            return made(
                self._files.format,
                records[start:stop],
                self._transform,
                self._collate,
                lambda error, number: self._files.placed(error, *self._order.places([positions[start + number]])[0]),
            )
        except DataError as error:
            return WorkerError(error.message, error.hint)


class WorkerError(Record):
    """A DataError on its way from a worker: torch would make a traceback of it."""

    message: str
    hint: str


def run(
    batches: torch.utils.data.Dataset[object], wanted: Iterable[Any], workers: int, device: torch.device | None, seed: int
) -> Iterator[Any]:
    """The batches that a dataset makes of what is wanted, in that order, on the device.

    Args:
        seed: of the workers' generators: a resumed run draws the same numbers outside as one that never stopped.

    Raises:
        DataError: the one that a worker has met.
    """
    pinned = device is not None and device.type == "cuda"
    if not workers and not pinned:
        return _ahead(map(batches.__getitem__, wanted), device)
    loader = DataLoader(
        batches,
        sampler=wanted,  # type: ignore[arg-type]
        batch_size=None,
        collate_fn=_as_it_is,
        num_workers=workers,
        pin_memory=pinned,
        generator=torch.Generator().manual_seed(seed),
    )
    return _ahead(iter(loader), device)


def _as_it_is(batch: Any) -> Any:
    """For torch's DataLoader, which would look at every leaf of a batch otherwise."""
    return batch


def made(
    form: Format,
    records: Sequence[Any],
    transform: Callable[[Any], Any] | None,
    collate: Callable[[list[Any]], Any] | None,
    placed: Callable[[SampleError, int], DataError],
) -> Any:
    """A batch of records.

    Args:
        placed: tells where the record with that number in `records` lies.
    """
    if transform is None and collate is None:
        whole = form.batch(records)
        if whole is not None:
            return _mapped(whole, lambda leaf: leaf if isinstance(leaf, torch.Tensor) else torch.as_tensor(leaf))
    samples = []
    if transform is None and type(form).sample is Format.sample:  # records are samples
        samples, records = list(records), ()
    for number, record in enumerate(records):
        try:
            sample = form.sample(record)
            samples.append(sample if transform is None else transform(sample))
        except SampleError as error:
            raise placed(error, number) from error
    if collate is not None:
        return collate(samples)
    try:
        return default_collate(samples)
    except (TypeError, RuntimeError) as error:
        raise DataError(
            f"{len(samples)} samples do not make a batch: {str(error).splitlines()[0]}",
            hint="give `transform` (a function of a sample) or `collate` (a function of a list of samples)",
        ) from error


def _checked(batch: Any) -> Any:
    if isinstance(batch, WorkerError):
        raise DataError(batch.message, hint=batch.hint)
    return batch


def _digest(files: SampleSource) -> str:
    """Tells channels apart by the names and lengths of their files."""
    counts = [(files.relative(number), one.records) for number, one in enumerate(files.counted)]
    return hashlib.sha256(repr(counts).encode()).hexdigest()[:32]


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same dictionaries, lists and tuples with other leaves."""
    if isinstance(value, dict):
        return {key: _mapped(one, change) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        found = [_mapped(one, change) for one in value]
        return type(value)(*found) if hasattr(value, "_fields") else type(value)(found)
    return change(value)


def _ahead(batches: Iterator[Any], device: torch.device | None) -> Iterator[Any]:
    """The batches on the device, each sent there while the loop works with the one before.

    Raises:
        DataError: the one that a worker has met.
    """
    batches = map(_checked, batches)
    if device is None:
        yield from batches
        return

    def sent(leaf: Any) -> Any:
        return leaf.to(device, non_blocking=True) if isinstance(leaf, torch.Tensor) else leaf

    nothing = object()
    now = _mapped(next(batches, nothing), sent)
    while now is not nothing:
        coming = next(batches, nothing)
        coming = coming if coming is nothing else _mapped(coming, sent)
        yield now
        now = coming
