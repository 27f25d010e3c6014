"""Memory for snapshots, kept from one to the next: a copy into fresh pages takes eight times as long as into used ones.

A buffer is as large as this rank's share of the state. In host memory it is page-aligned (for direct writes); beside a GPU
it is pinned, so that copies run on a stream of their own while the loop goes on. Its memory may be a file in /dev/shm, which
outlives the process.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading

import torch

from .blocks import padded


class Buffer:
    """Memory of `size` bytes: `bytes_` is a uint8 tensor over it, `view` the same memory for writing to a file.

    Args:
        device: GPU for which the memory is pinned.
        path: file in /dev/shm that is the memory; one of the same size is used as it is.

    Raises:
        OSError: there is no room for the file.
    """

    def __init__(self, size: int, device: torch.device | None = None, path: str = "") -> None:
        self.size = padded(max(size, 1))
        self._fresh = not path
        self._map = _map_file(path, self.size) if path else mmap.mmap(-1, self.size)
        try:
            self._map.madvise(mmap.MADV_HUGEPAGE)  # a page fault every 2 MiB instead of every 4 KiB
        except (AttributeError, OSError):
            pass
        self.view = memoryview(self._map)
        self.bytes_ = torch.frombuffer(self._map, dtype=torch.uint8)
        self.pinned = False
        self._device = device
        # Not a daemon: a thread in native code can abort the process when the interpreter shuts down.
        self._touching = threading.Thread(target=self._touch, name="trainshed-buffer")
        self._touching.start()

    def _touch(self) -> None:
        """Makes the kernel allocate every page, beside the loop: ctypes and CUDA release the interpreter's lock."""
        if self._fresh:
            ctypes.memset(self.bytes_.data_ptr(), 0, self.size)
        if self._device is not None:
            with torch.cuda.device(self._device):  # a new thread would open a context on the first GPU otherwise
                self.pinned = _pin(self.bytes_)

    def ready(self) -> None:
        """Waits until all pages are allocated."""
        self._touching.join()

    def close(self) -> None:
        """Releases the memory; the kernel gets it back when the last view of it is gone."""
        self.ready()
        if self.pinned:
            torch.cuda.cudart().cudaHostUnregister(self.bytes_.data_ptr())  # type: ignore[attr-defined]
            self.pinned = False


def _map_file(path: str, size: int) -> mmap.mmap:
    """Maps a file, made anew where it has another size; all of it is reserved: a full /dev/shm would be a SIGBUS later."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(fd).st_size != size:
            os.ftruncate(fd, 0)
            os.posix_fallocate(fd, 0, size)
        return mmap.mmap(fd, size, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
    finally:
        os.close(fd)


def _pin(tensor: torch.Tensor) -> bool:
    """Pins memory that is already there (pin_memory() would not be page-aligned); False where CUDA refuses."""
    portable = 1  # cudaHostRegisterPortable
    result = torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.numel(), portable)  # type: ignore[attr-defined]
    return int(result) == 0


class SnapshotMemory:
    """Copies tensors into one buffer that is kept from snapshot to snapshot."""

    def __init__(self) -> None:
        self.buffer: Buffer | None = None
        self._stream: torch.cuda.Stream | None = None
        self._event: torch.cuda.Event | None = None

    def reserve(self, size: int, device: torch.device | None = None) -> Buffer:
        """Returns the buffer; replaces one that is too small or far too large.

        Args:
            size: bytes.
            device: GPU for which the memory is pinned.
        """
        buffer = self.buffer
        if buffer is None or buffer.size < size or buffer.size > 2 * padded(size) + (64 << 20):
            if buffer is not None:
                buffer.close()
            self.buffer = buffer = Buffer(size, device)
        return buffer

    def copy(self, sources: list[torch.Tensor], targets: list[torch.Tensor]) -> None:
        """Copies each source into its target. From a GPU the copy is only started: call `wait` before reading.

        The GPU itself does not overwrite the state meanwhile: its current stream waits for the copies.
        """
        with torch.no_grad():
            if not any(source.is_cuda for source in sources):
                for source, target in zip(sources, targets, strict=True):
                    target.copy_(source)
                return
            current = torch.cuda.current_stream()
            self._stream = self._stream or torch.cuda.Stream()
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                for source, target in zip(sources, targets, strict=True):
                    target.copy_(source, non_blocking=True)
                    if source.is_cuda:
                        source.record_stream(self._stream)
                self._event = self._stream.record_event()
            current.wait_stream(self._stream)

    def wait(self) -> None:
        """Waits until the copies have arrived; called by the writing thread."""
        if self._event is not None:
            self._event.synchronize()
