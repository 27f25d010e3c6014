"""The modules of a rank's stages, divided among the ranks of a tensor group.

Between steps and while microbatches run a rank holds parts of what is divided, and computes with them. A forward is recorded
with whole parameters, as is the undivided model that verifies a step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from trainshed.base.errors import shorten

from ..engine.exchange import Exchange, Exchanged, Hand
from ..engine.object_collectives import STEP, objects
from ..engine.remote_parameters import IN_SHARDS, Absent
from ..engine.tensor.division import Division, tensor_mesh
from ..engine.tensor.foresight import foresee, run_forward
from ..engine.tensor.pairs import Pairs, Seen, look_for
from ..engine.tensor.rank_agreement import agreed_seed, compare_in_company
from ..engine.tensor.sharded_tensor import Part, whole_of
from ..engine.verify.tensor_digest import Sketch, sketch
from ..ground.errors import PipelineError
from ..ground.grid import Grid, TensorGroup
from ..ground.shards import local, whole
from ..ground.tree import exchange, tensors
from ..plan.division import Foreseen
from ..tracing.subject import Subject


class StageParts(Exchange):
    """One rank's part of its stages' parameters.

    Args:
        on_parts: takes `id` -> name of the parameters before, and name -> parameter after they were divided.
        wanted: tells whether the script wants a module divided.

    division: the modules; None before the first record.
    made: of values that were whole only to be divided, in the first step.
    """

    def __init__(self, root: nn.Module, grid: Grid, on_parts: Hand, wanted: Callable[[nn.Module], bool]) -> None:
        super().__init__(root, on_parts)
        self.division: Division | None = None
        self._grid, self._wanted = grid, wanted
        self._axes: dict[str, int] = {}
        self.made: dict[str, Sketch] = {}

    @contextmanager
    def seen(self) -> Iterator[None]:
        """Within this context the undivided model runs, to see who reads which parameter."""
        group, grid = self._tensor(), self._grid
        mesh = tensor_mesh(group.group, grid.device)
        self.division = Division(self._root, mesh, self._wanted, grid.settings.atomic)
        with self.division.watched(None, uses=True):
            yield

    def foresee(self, subject: Subject, paired: Sequence[int]) -> Foreseen:
        """Foresees what will be divided, for the plan, as far as one rank can tell.

        Args:
            paired: see `foresight.foresee`.
        """
        return foresee(subject, paired, self._wanted, self._grid.settings.atomic)

    def choose(self, units: Collection[str], subject: Subject | None) -> str:
        """Decides what will be divided, while all parameters are there. Collective.

        Args:
            units: of the plan; what lies around them is recorded operation by operation, and stays whole.
            subject: the forward, which runs a few times more to find modules between which nothing has to be gathered;
                None where parameters have no values.

        Returns:
            What is divided, in words.

        Raises:
            PipelineError: a rank would divide something else.
        """
        division, grid = self._divided(), self._grid
        cpu = torch.device("cpu")
        opened = {name: "the plan opens it" for name, _ in self._root.named_modules() if not _is_within(name, units)}

        def together(mine: dict[str, str]) -> dict[str, str]:
            mine = {**mine, **opened}
            found = objects(STEP, mine, range(grid.world), grid.control_group, cpu)
            return {name: reason for reasons in reversed(found) for name, reason in reasons.items()}

        # Blocks whose sequences are divided exchange whole tensors.
        pairs = subject is not None and grid.context is None
        failed = self._pair(subject, units, opened) if pairs and subject is not None else ""
        self._axes = division.choose(together)
        found = objects(STEP, self._axes, range(grid.world), grid.control_group, cpu)
        for rank, other in enumerate(found):
            if other != found[0]:
                names = sorted(name for name in {*other, *found[0]} if other.get(name) != found[0].get(name))
                raise PipelineError(
                    f"rank {rank} would divide other parameters than rank 0, as {names[0]!r}",
                    hint="build the same model on all ranks, with the same set_tensor_parallelism()",
                )
        return f"{failed}{division.line()}"

    def _pair(self, subject: Subject, units: Collection[str], opened: Container[str]) -> str:
        """Finds modules between which nothing has to be gathered; says why none were found where the forward did not run.
        Results of units are whole: they are sent to other stages. Collective."""
        division, grid, failed = self._divided(), self._grid, ""

        def trial(avoided: frozenset[str]) -> list[Seen] | None:
            nonlocal failed
            mine = self._seen_of(subject, units, opened, avoided)
            found = objects(STEP, mine, range(grid.world), grid.control_group, torch.device("cpu"))
            failed = next((one for one in found if isinstance(one, str)), "")
            return None if failed else found

        choice = look_for(trial, division.sizes())
        if choice is not None:
            division.pair(choice)
        said = "tensor parallelism: no modules make pairs, for the forward did not run with parts: "
        return f"{said}{failed}\n" if failed else ""

    def _seen_of(
        self, subject: Subject, units: Collection[str], opened: Container[str], avoided: frozenset[str]
    ) -> Seen | str:
        """What a trial shows; in words why it did not run."""
        modules = dict(self._root.named_modules())
        hooks = [modules[name].register_forward_hook(partial(_leaving, self)) for name in units if name in modules]
        try:
            with self._divided().trying(Pairs, avoided, opened) as tried:
                run_forward(subject)
            return tried.seen
        except Exception as error:
            return f"{type(error).__name__}: {shorten(str(error))}"
        finally:
            for hook in hooks:
                hook.remove()

    def left(self, value: Any) -> Any:
        """Returns what a unit gives, whole. Collective over the tensor group where some of it is in parts."""
        parted = any(isinstance(one, Part) for one in tensors(value, objects=True))
        return exchange(whole_of, value) if parted else value

    def axis_of(self, name: str) -> int | None:
        """Along which axis a parameter is divided, on whichever rank it is; None if it is whole."""
        return self._axes.get(name)

    def take_made(self, name: str, own: bool) -> None:
        """Divides a parameter that has got its values just now.

        Args:
            own: whether they are the model's; else they will be loaded.
        """
        if own:
            parameter = self._root.get_parameter(name)
            self.made[name] = sketch(parameter.detach())
        self.take([name])

    def take(self, names: Iterable[str]) -> None:
        """Divides parameters of this rank, which are in the modules; the modules of other ranks run as they were written."""
        division, parameters = self._divided(), dict(self._root.named_parameters())
        with torch.no_grad(), torch.inference_mode(False):
            for name in names:
                if name in self._axes:
                    old = parameters[name]
                    stride = old.stride()
                    self._known[name] = Exchanged(old, division.part_of(old, self._axes[name]), type(old), stride)
                    self._empty(old)

    def lent(self, module: nn.Module) -> AbstractContextManager[None]:
        """A context in which one module has whole parameters, and nothing else runs. Collective over the tensor group."""
        return self._divided().whole(module)

    def settled(self) -> None:
        """The first parameters are cut: their modules run with parts."""
        self._divided().adopt(self.names)
        super().settled()

    def open(self) -> None:
        """The modules have whole parameters, and run as they were written. Collective over the tensor group."""
        super().open()
        self._divided().is_whole = True

    def close(self) -> None:
        """The modules have parts."""
        super().close()
        if self.division is not None:
            self.division.is_whole = False

    @contextmanager
    def emptied(self) -> Iterator[None]:
        """Within this context the modules have parameters of the whole shape without values, like those of other ranks, and
        run as they were written."""
        was_open, division = self._open, self._divided()
        if not was_open:
            for one in self._known.values():
                one.whole.requires_grad_(one.part.requires_grad)
                Absent.find(one.whole, self._grid.place.pipeline)
            self._put_in({id(one.part): one.whole for one in self._known.values()})
            division.is_whole = True
        try:
            yield
        finally:
            if not was_open:
                self._put_in({id(one.whole): one.part for one in self._known.values()})
                for one in self._known.values():
                    Absent.find(one.whole, IN_SHARDS)
                division.is_whole = False

    @contextmanager
    def as_zeros(self) -> Iterator[None]:
        """Within this context they are zeros, for the shapes of a forward."""
        with self.emptied():
            absent = Absent()
            absent.adopt([(one.whole, one.stride) for one in self._known.values()])
            with absent.as_zeros():
                yield

    @contextmanager
    def running(self) -> Iterator[None]:
        """Within this context all ranks of the group run the same microbatches."""
        division = self._divided()
        division.inputs.clear()
        division.running = True
        try:
            with division.installed():
                yield
        finally:
            division.running = False
            division.entrance.forget()

    def turned(self) -> None:
        """After the forward of a microbatch: the next one has an input of its own."""
        self._divided().entrance.forget()

    def agreed_seed(self, seed: int) -> int:
        """That of the group's first rank, from which all draw their random numbers. Collective over the group."""
        return agreed_seed(self._tensor(), seed, self._grid.device)

    def compare(self, losses: list[float]) -> None:
        """After the forwards and backwards of a step: ranks of one group have had the same. Collective over all that run the
        batch.

        Args:
            losses: of this rank's microbatches.

        Raises:
            PipelineError: on all of them, if something that the step function reads is not the same.
        """
        # Within blocks ranks of a context group have other places of the sequence.
        compare_in_company(
            self._grid, "tensor", lambda place: (place.pipeline, place.context), self._divided().inputs, losses
        )

    def _gather(self) -> None:
        with torch.no_grad(), torch.inference_mode(False):
            for one in self._known.values():
                value = torch.empty_strided(one.part.shape, one.stride, dtype=one.part.dtype, device=local(one.part).device)
                value.copy_(whole(one.part.detach()))
                self._revive(one, value)

    def _meet(self) -> None:
        """They have met: in a step, or before a call for all ranks."""

    def _divided(self) -> Division:
        if self.division is None:
            raise RuntimeError("nothing has been recorded")
        return self.division

    def _tensor(self) -> TensorGroup:
        if self._grid.tensor is None:
            raise RuntimeError("there is no tensor group")
        return self._grid.tensor


def _leaving(parts: StageParts, _module: nn.Module, _args: Any, output: Any) -> Any:
    return parts.left(output)


def _is_within(name: str, units: Container[str]) -> bool:
    """Whether a module is one of these, or lies in one."""
    parts = name.split(".")
    return any(".".join(parts[:length]) in units for length in range(len(parts) + 1))
