"""One operation of this rank, from its submission to its result."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from ...common.exceptions import HorovodInternalError


class Handle:
    """The object that the asynchronous functions return; `synchronize` and `poll` take it.

    request: what was announced (agreement.py).
    tensors: what the operation reads, and for allreduce and broadcast writes into.
    finish: makes what the caller gets of the outputs, in the caller's thread.
    """

    def __init__(
        self, request: dict[str, Any], tensors: list[torch.Tensor], finish: Callable[[list[torch.Tensor]], Any]
    ) -> None:
        self.request, self.tensors, self._finish = request, tensors, finish
        self.extra: Any = None  # what an operation finds besides tensors
        self.submitted = _event(tensors)
        self._finished: torch.cuda.Event | None = None
        self._over = threading.Event()
        self._error = ""
        self._outputs: list[torch.Tensor] = []
        self._result: list[Any] = []

    @property
    def key(self) -> tuple[int, str]:
        """Process set and name."""
        return self.request["set"], self.request["name"]

    def succeed(self, outputs: list[torch.Tensor]) -> None:
        """The operation has run, or on a GPU it has been enqueued on the current stream."""
        self._outputs, self._finished = outputs, _event(outputs)
        self._over.set()

    def fail(self, why: str) -> None:
        """The operation does not run."""
        if not self._over.is_set():
            self._error = why
            self._over.set()

    def is_over(self) -> bool:
        """Returns whether waiting would return at once."""
        return self._over.is_set() and (self._finished is None or self._finished.query())

    def wait(self, seconds: float) -> bool:
        """Waits until the operation has run or failed; False if it has not by then."""
        return self._over.wait(seconds)

    def result(self) -> Any:
        """Returns what the operation gives; the current stream waits for it.

        Raises:
            HorovodInternalError: the operation failed.
        """
        if self._error:
            raise HorovodInternalError(self._error)
        if not self._result:
            if self._finished is not None:
                for tensor in self._outputs:
                    if tensor.is_cuda:
                        stream = torch.cuda.current_stream(tensor.device)
                        stream.wait_event(self._finished)
                        tensor.record_stream(stream)
            self._result.append(self._finish(self._outputs))
            self._outputs = self.tensors = []
        return self._result[0]


def _event(tensors: list[torch.Tensor]) -> torch.cuda.Event | None:
    """An event of the GPU's current stream, after what has been enqueued so far; None for tensors on the CPU."""
    device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
    if device is None:
        return None
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event
