"""Batches of a channel in Pipe mode for the ranks of a job."""

from __future__ import annotations

from typing import Protocol

import torch

from .formats.errors import DataError
from .loader import WorkerError, made, run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from .formats.format import Format

_STATE = 1  # version of `state_dict`


class StreamSource(Protocol):
    """The data to load: `pipe_stream.Stream`."""

    name: str

    @property
    def format(self) -> Format:
        """Of its records."""

    @property
    def reshuffled(self) -> bool:
        """Tells whether an epoch that is read again comes in another order."""

    def begun(self) -> None:
        """Counts the epochs that this process has begun."""

    def rounds(self, batch_size: int, skip: int, shared: bool = False) -> Iterator[Sequence[Any]]:
        """The records of this rank's batches of the next epoch, without the first `skip`.

        shared: whether records are used while the next ones are read.
        """


class StreamLoader:
    """Batches of one rank. Iterating it reads the next epoch's pipe, also where the loop before had enough of its epoch.

    Every record of an epoch comes once, and all ranks that share the pipe's records get equally many batches. (In the
    last round a record can come twice where there are fewer than ranks.) Its length is not known before its end. The
    order is that of the pipe: shuffling is the channel's (`shuffle_seed`).

    Args: as for `Loader`.

    epoch: the one that the next batch belongs to, from 0.
    """

    def __init__(
        self,
        stream: StreamSource,
        batch_size: int,
        *,
        workers: int = 0,
        transform: Callable[[Any], Any] | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if batch_size < 1 or workers < 0:
            raise ValueError(f"batch_size={batch_size}, workers={workers}")
        self.epoch = 0
        self._stream, self._batch, self._workers = stream, batch_size, workers
        self._making = transform, collate
        self._device = torch.device(device) if device is not None else None
        self._taken = 0
        self._fresh = True  # whether what is taken of the epoch was taken by another process

    def __iter__(self) -> Iterator[Any]:
        self._stream.begun()
        if self._taken and not self._fresh:  # the loop had enough of the last epoch
            self.epoch, self._taken = self.epoch + 1, 0
        self._fresh = False
        batches = _Made(self._stream.name, self._stream.format, *self._making)
        wanted = self._stream.rounds(self._batch, self._taken, self._workers > 0)
        for batch in run(batches, wanted, self._workers, self._device, self.epoch * 1009 + self._taken):
            self._taken += 1
            yield batch
        self.epoch, self._taken = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """The place of the loop, for `load_state_dict` of a loader with the same batches."""
        return {"version": _STATE, "epoch": self.epoch, "batch": self._batch, "taken": self._taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next epoch's pipe then begins behind what the loop has had of its epoch.

        Raises:
            DataError: the channel gives another order each time, or it is a state of other batches.
        """
        try:
            version, epoch, batch, taken = (int(state[name]) for name in ("version", "epoch", "batch", "taken"))
        except (KeyError, TypeError, ValueError):
            raise DataError("this is not the state of a loader of a channel in Pipe mode") from None
        if version != _STATE or (batch != self._batch and taken):
            raise DataError(f"the state is that of batches of {batch}, and this loader makes batches of {self._batch}")
        if taken and self._stream.reshuffled:
            raise DataError(
                f"{self._stream.name} gives its files in another order each time, so that nobody can go on in the middle",
                hint="leave shuffle_seed out, save at the ends of epochs, or give the channel input_mode FastFile",
            )
        self.epoch, self._taken, self._fresh = epoch, taken, True


class _Made(torch.utils.data.Dataset[object]):
    def __init__(self, *making: Any) -> None:
        self._making = making

    def __getitem__(self, records: Sequence[Any]) -> object:
        name, form, transform, collate = self._making
        try:
            return made(form, records, transform, collate, lambda error, _: DataError(f"{name}: {error.message}"))
        except DataError as error:
            return WorkerError(error.message, error.hint)
