"""A channel in Pipe mode: batches as they come through the pipe."""

from __future__ import annotations

import hashlib
import os
import threading
from contextlib import closing
from itertools import islice

from trainshed.base.voice import tell

from .channels import place_of_rank
from .formats.equal import Equal, regrouped
from .formats.errors import DataError, SampleError, placed
from .formats.format import StreamFormat
from .pipe_epochs import Enough, Epochs
from .pipe_sharing import Seat, batches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from .channels import ChannelFacts
    from .formats.format import Format
    from .pipe_loading import StreamLoader

# Variables that say a rank's number on its host, and how many there are: torchrun's and ours; Open MPI's.
_LOCAL = (
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
)


class Stream:
    """The samples of a channel in Pipe mode. Each `loader` reads the epochs that no other has read."""

    def __init__(self, facts: ChannelFacts, form: Format, environ: Mapping[str, str] | None = None) -> None:
        if not isinstance(form, StreamFormat):
            raise DataError(
                f"{form.name} cannot be read in Pipe mode: it is not a stream",
                hint="give the channel input_mode File or FastFile",
            )
        self.name, self.format, self._facts = f"the channel {facts.name}", form, facts
        self._environ = os.environ if environ is None else environ
        self._epochs = Epochs(facts.name, facts.path, tell)
        self._opened = 0

    def loader(self, batch_size: int, **options: Any) -> StreamLoader:
        """Batches for this rank: see `StreamLoader`, whose arguments these are."""
        from .pipe_loading import StreamLoader

        return StreamLoader(self, batch_size, **options)

    def __iter__(self) -> Iterator[Any]:
        """The samples of the next epoch, all of them, in a job with one rank a host.

        Raises:
            DataError: several ranks of this host would have to share the pipe.
        """
        seat = self._seat()
        if seat.local_world > 1:
            raise DataError(f"{self.name} is one pipe for {seat.local_world} ranks of this host", hint="use loader(...)")
        for path, offset, number, record in self._placed(threading.Event()):
            try:
                yield self.format.sample(record)
            except SampleError as error:
                raise placed(error, path, number, offset) from error

    def rounds(self, batch_size: int, skip: int, shared: bool = False) -> Iterator[Sequence[Any]]:
        """The records of this rank's batches of the next epoch, without the first `skip`.

        Args:
            shared: whether records are used while the next ones are read, as other processes do.
        """
        rank, world = place_of_rank(self._environ)
        seat = self._seat()
        first = rank - seat.local_rank  # hosts have successive ranks
        if self._facts.sharded:  # each host has other records, and shares them among its own ranks
            first, world = 0, seat.local_world
        ranks = range(seat.local_world)
        shared = shared or seat.local_world > 1

        def parts(over: threading.Event) -> Iterator[dict[int, Sequence[Any]]]:
            for found in rounds(self._runs(over, world * batch_size), world * batch_size, skip):
                if over.is_set():  # many rounds are read at once
                    raise Enough
                if shared and isinstance(found, Equal):
                    found = found.kept()
                yield {local: part(found, first + local, world, batch_size) for local in ranks}

        return batches(seat, parts)

    @property
    def reshuffled(self) -> bool:
        """Tells whether an epoch that is read again comes in another order."""
        return self._facts.shuffled

    def _runs(self, over: threading.Event, many: int) -> Iterator[Sequence[Any]]:
        path, pipe = self._epochs.open(over)
        with closing(pipe):
            for *_, records in self.format.runs(pipe, path, many):
                yield records

    def _placed(self, over: threading.Event) -> Iterator[tuple[str, int, int, Any]]:
        """(path of the pipe, where the record begins in it, number of the record, record)."""
        path, pipe = self._epochs.open(over)
        with closing(pipe):
            for number, (offset, record) in enumerate(self.format.split(pipe, path)):  # type: ignore[arg-type]
                yield path, offset, number, record

    def _seat(self) -> Seat:
        environ = self._environ
        given = [(environ.get(rank, ""), environ.get(size, "")) for rank, size in _LOCAL]
        said = next((one for one in given if all(one)), None)
        if said is None and place_of_rank(environ)[1] > 1:
            raise DataError(
                f"{self.name} is one pipe for all ranks of a host, and nobody says which they are",
                hint="set LOCAL_RANK and LOCAL_WORLD_SIZE, as torchrun and trainshed do",
            )
        try:
            local, world = map(int, said or ("0", "1"))
        except ValueError:
            local, world = 0, 1
        job = f"{environ.get('MASTER_ADDR')} {environ.get('MASTER_PORT')} {self._facts.path} {self._opened}"
        return Seat(local, world, hashlib.sha256(job.encode()).hexdigest()[:16])

    def begun(self) -> None:
        """Counts the epochs that this process has begun, as all ranks do."""
        self._opened += 1


def rounds(runs: Iterable[Sequence[Any]], size: int, skip: int = 0) -> Iterator[Sequence[Any]]:
    """The records of each round, all of them full but the last.

    Args:
        runs: the stream, in sequences of any length.
        size: records of a round: a batch for each rank.
        skip: rounds that the ranks have had already.
    """
    return islice(regrouped(runs, size), skip, None)


def part(records: Sequence[Any], rank: int, world: int, batch: int) -> Sequence[Any]:
    """A rank's batch of a round: every rank gets one, so that none waits for the others.

    Where the last round has fewer records than ranks, some get one that another has, too.
    """
    if len(records) == world * batch:
        return records[rank * batch : (rank + 1) * batch]
    each, more = divmod(len(records), world)
    if not each:
        return [records[rank % more]]
    first = rank * each + min(rank, more)
    return records[first : first + each + (rank < more)]
