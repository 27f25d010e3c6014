"""Snapshots: the state is copied into kept memory at once, and handed to the writing thread."""

from __future__ import annotations

import io
import mmap

import torch

from . import manifest as manifests
from .blocks import padded
from .buffers import Buffer, SnapshotMemory
from .replicas import check_replicas
from .save import Content, Retention, write_part
from .shardfile import Layout
from .write_plan import Planner, tensor_of
from .writer import Writer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from .ranks import Ranks
    from .remote import Remote


class Snapshots:
    """Takes one snapshot at a time. Collective: all ranks call `prepare` and `start` together."""

    def __init__(
        self, folder: str, ranks: Ranks, states: Sequence[Any], keep: Retention, remote: Remote | None = None
    ) -> None:
        self.writer = Writer()
        self._folder = folder
        self._ranks = ranks
        self._states = states
        self._keep = keep
        self._remote = remote
        self._planner = Planner(ranks)
        self._layout = Layout([])
        self._views: list[torch.Tensor] = []
        self._memory = SnapshotMemory()
        self._count = 0

    def prepare(self) -> None:
        """Allocates the memory while training goes on; call it after the first step, when the optimizer has its state."""
        if self._memory.buffer is None:
            self._lay_out(capture(self._states)[0])

    def start(self, step: int, reason: str, run: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
        """Copies the state and starts writing it; no other snapshot may be being written.

        Args:
            run: the manifest's `run`.

        Raises:
            CheckpointError: the ranks' models have drifted apart.
        """
        ranks = self._ranks
        tensors, tree = capture(self._states)
        check_replicas(ranks, self._states, tensors)
        self._lay_out(tensors)
        layout, buffer = self._layout, self._memory.buffer
        assert buffer is not None
        buffer.ready()
        self._memory.copy([tensor_of(piece, tensors) for piece in layout.pieces], self._views)
        contents = rank_files(ranks, layout, buffer, tree)
        beside = len(layout.header) + contents[1].size  # bytes; the other ranks' are taken to be as many
        needed = self._planner.bytes_on_storage + len(ranks.peers) * beside
        self._count += 1
        manifest = manifests.of_ranks(
            ranks,
            step=step,
            save=f"{ranks.token}{self._count:x}",
            complete=self._planner.complete,
            reason=reason,
            run=run,
            metrics=metrics,
        )

        def write() -> None:
            self._memory.wait()
            write_part(self._folder, ranks, contents, manifest, needed, self._keep, self._remote)

        self.writer.start(write)

    def _lay_out(self, tensors: dict[str, torch.Tensor]) -> None:
        """Divides the state among the ranks and reserves memory for this rank's share, again if the state has changed."""
        if self._planner.update(tensors):
            self._layout = Layout(self._planner.share)
            device = next((tensor.device for tensor in tensors.values() if tensor.is_cuda), None)
            buffer = self._memory.reserve(self._layout.memory, device)
            self._views = self._layout.views(buffer.bytes_)


def capture(states: Sequence[Any]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The states' tensors by name, and everything else."""
    tensors: dict[str, torch.Tensor] = {}
    tree = {state.name: state.capture(tensors) for state in states}
    return tensors, tree


def rank_files(ranks: Ranks, layout: Layout, buffer: Buffer, tree: Any) -> list[Content]:
    """The two files of this rank: its tensors, which are in the buffer or still on their way there, and its objects."""
    return [tensors_file(ranks, layout, buffer), objects_file(ranks, tree)]


def tensors_file(ranks: Ranks, layout: Layout, buffer: Buffer, number: int = 0) -> Content:
    """A file of this rank's tensors, which are in the buffer or still on their way there.

    Args:
        number: of the file, where they are in several.
    """
    buffer.view[: len(layout.header)] = layout.header
    several = f".{number}" if number else ""
    return Content(name=f"{ranks.host}.rank{ranks.rank}{several}.safetensors", data=buffer.view, size=layout.size)


def objects_file(ranks: Ranks, tree: Any) -> Content:
    """The file of this rank's objects.

    Args:
        tree: plain objects and small tensors; what `torch.load` reads with `weights_only=True`.
    """
    blob = io.BytesIO()
    torch.save(tree, blob)
    objects = blob.getbuffer()
    return Content(name=f"{ranks.host}.rank{ranks.rank}.objects", data=_page_aligned(objects), size=objects.nbytes)


def _page_aligned(data: memoryview) -> memoryview:
    """A copy of a small file's bytes in page-aligned memory."""
    memory = mmap.mmap(-1, padded(max(data.nbytes, 1)))
    memory[: data.nbytes] = data
    return memoryview(memory)
