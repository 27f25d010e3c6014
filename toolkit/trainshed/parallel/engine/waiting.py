"""Parameters of a model that was built without values: they get them when it is known which rank holds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
import torch.distributed as dist
from torch import nn

from ..delayed.tape import Tape
from ..ground.errors import PipelineError
from ..ground.grid import Grid
from .remote_parameters import NOT_YET, Absent


class Waiting:
    """The operations that wait in one model.

    Args:
        tape: tells the values; None if the model was built with them.
        absent: keeps the parameters meanwhile.

    names: parameters that wait.

    Raises:
        PipelineError: parameters were changed past the tape, after the block in which the model was built.
    """

    def __init__(self, root: nn.Module, tape: Tape | None, absent: Absent, device: torch.device) -> None:
        self.names: frozenset[str] = frozenset()
        self._tape, self._absent = tape, absent
        self._values: dict[str, torch.Tensor] = {}
        self._elsewhere: frozenset[str] = frozenset()
        if tape is None:
            return
        _check_unwritten(tape)
        for buffer in root.buffers():
            if tape.waits(buffer):  # it is a part of a parameter
                buffer.data = tape.values(buffer)
        self._values = {name: one.detach() for name, one in root.named_parameters() if tape.waits(one)}
        self.names = frozenset(self._values)
        absent.give_up(root, dict.fromkeys(self.names, NOT_YET), device, move=False)

    def agree(self, grid: Grid) -> None:
        """Collective, where something waits.

        Raises:
            PipelineError: the ranks would make other values.
        """
        if self._tape is None or grid.world == 1:
            return
        found: list[bytes] = [b""] * grid.world
        dist.all_gather_object(found, self._tape.fingerprint(), group=grid.control_group)
        other = next((rank for rank, one in enumerate(found) if one != found[0]), None)
        if other is not None:
            raise PipelineError(
                f"rank {other} would give the model other values than rank 0",
                hint="set the same seed on all ranks (torch.manual_seed) before the model is built, and build it alike",
            )

    def come_from_elsewhere(self, names: Iterable[str]) -> None:
        """These are loaded when the model is partitioned: no values need to be made for them."""
        self._elsewhere |= frozenset(names)

    def settle(
        self, root: nn.Module, homes: dict[str, int], device: torch.device, made: Callable[[str, bool], None]
    ) -> None:
        """Gives values to what is here from now on.

        Args:
            homes: name -> rank in the pipeline, of the parameters that are not here.
            made: takes the name of each parameter that has got its values, before the next one gets them; and whether they
                are the model's own, not to be loaded.

        Raises:
            PipelineError: what they are made from has changed.
        """
        every = dict(root.named_parameters())
        for name in homes.keys() & self._values:
            self._absent.find(every[name], homes[name])
        for name, value in self.values([name for name in every if name not in homes], device):
            self._absent.take_back(every[name], value)
            del value
            made(name, name not in self._elsewhere)

    def values(self, names: Iterable[str], device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and values of those of these parameters that wait, one after the other; of those that come from elsewhere
        there is memory alone. Then nothing waits any more.

        Raises:
            PipelineError: what they are made from has changed.
        """
        if self._tape is None:
            return
        _check_unwritten(self._tape)
        for name in names:
            if name in self._values:
                yield name, self._made(self._tape, name).to(device)
        self._values, self._tape, self.names = {}, None, frozenset()

    def _made(self, tape: Tape, name: str) -> torch.Tensor:
        waits = self._values[name]
        value = torch.empty_like(waits) if name in self._elsewhere else tape.values(waits)
        # It may be a part of something larger.
        return value.clone() if value.untyped_storage().nbytes() > value.numel() * value.element_size() else value


def _check_unwritten(tape: Tape) -> None:
    if written := tape.written():
        raise PipelineError(
            f"{written} bytes of parameters were written after the block in which the model was built",
            hint="do what changes them (load_state_dict, own initialisation) inside the block of delayed_initialization()",
        )
