"""The modules of one model that are divided among the ranks of a tensor group.

Before they are, and whenever the undivided model is to run, each of them runs its own forward on whole parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from ...errors import PipelineError
from ...halves import stays_half
from ...record.naming import first_names
from ...shards import has_gradient_hook, whole
from ...tree import map_leaves
from ..verify.unit_outputs import Watch
from .alike import look_at
from .experts import experts_of
from .kinds import Compute, Entrance, Kind, kind_of, length_of, only
from .pairs import Choice, Pairs
from .part import Part, Region, shown, whole_of
from .part_parameters import PartParameter, ReplacedParameter
from .uses import Uses


class _Forward:
    """What stands for the forward of a module that may be divided."""

    def __init__(self, division: Division, name: str, kind: Kind) -> None:
        self.division, self.name, self.kind = division, name, kind
        self.native: Compute = kind.module.forward
        self.parts: Compute | None = None
        self.opens = self.closes = self.joins = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        run = self._run
        if self.division.watch is not None:
            run = self.division.watch.around(self.name, run, shown)
        return run(*args, **kwargs)

    def __deepcopy__(self, _memo: Any) -> NoReturn:
        """Refused."""
        raise PipelineError(
            f"{self.name!r} is divided among ranks and cannot be copied",
            hint="copy the model before the first step, or build it again and load model.state_dict(), which all ranks call",
        )

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        division = self.division
        if division.uses is not None:
            self.kind.note(args, kwargs)
            with division.uses.of(self.kind.module, self.kind.reads):
                return self.native(*args, **kwargs)
        if division.pairs is not None:
            return division.pairs.call(self.name, self.kind, self.native, args, kwargs)
        if self.parts is None or division.is_whole:
            return self.native(*args, **kwargs)
        if not division.running:
            raise PipelineError(
                f"{self.name!r} is called outside a step, where the ranks that have its parts do not meet",
                hint="decorate the function with @step, or call model(x) itself under torch.no_grad(), on all ranks",
            )
        if self.closes:
            return self._closed(only(*args, **kwargs))
        args, kwargs = map_leaves(whole_of, (args, kwargs))
        given = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
        division.inputs.extend((self.name, look_at(one)) for one in given)
        # In inference mode nobody would see that a part was changed in place.
        stays = (self.opens or self.joins) and not torch.is_inference_mode_enabled()
        if not stays or self.kind.opening is None:
            return self.parts(*args, **kwargs)
        own = self.kind.opening(self.kind.module, division.entrance(only(*args, **kwargs)))
        return Part.features(division.region, own, self.kind.features, self.name)

    def _closed(self, x: torch.Tensor) -> Any:
        """Of an input in parts, or of this rank's part of one that is whole."""
        division = self.division
        if isinstance(x, Part) and x.whole is None and x.axis == x.ndim - 1:
            own = x.taken()
        else:
            x = whole_of(x)
            division.inputs.append((self.name, look_at(x)))
            own = division.region.cut(division.entrance(x), -1)
        return self.parts(own) if self.parts is not None else self.native(x)


def candidates(
    root: nn.Module, wanted: Callable[[nn.Module], bool], kept: tuple[str, ...]
) -> Iterator[tuple[str, Kind, str]]:
    """Modules that might be divided: name, how, and why not by what they look like, or "".

    Args:
        wanted, kept: see `Division`.
    """
    for key, name in first_names(root).items():
        module = _module(root, name)
        kind = (kind_of(module) or experts_of(module)) if id(module) == key else None
        if kind is None or not wanted(module) or any(name == one or name.startswith(f"{one}.") for one in kept):
            continue
        yield name, kind, "compiled" if "_orig_mod" in name.split(".") else ""


class Division:
    """Which modules are divided, and their parts.

    Args:
        wanted: tells whether the script wants a module divided.
        kept: names of modules that stay whole with all that is in them.

    divided: they themselves.
    entrance: where their inputs come in.
    inputs: what they were given in this step: the module's name, and two numbers by which ranks can compare it.
    running: whether all ranks of the group run the same now.
    is_whole: whether the parameters are whole now.
    watch: looks at the outputs of the modules that can be divided.
    uses: watches who reads their parameters.
    reasons: module -> why it stays whole, of those of a kind that can be divided.
    region: where results of theirs are in parts.
    pairs: notes which of them can stay so, in a trial.
    """

    def __init__(
        self, root: nn.Module, mesh: DeviceMesh, wanted: Callable[[nn.Module], bool], kept: tuple[str, ...]
    ) -> None:
        self.root, self.mesh, self.entrance = root, mesh, Entrance(mesh)
        self.region = Region(mesh, lambda: self.running, self._met)
        self.pairs: Pairs | None = None
        self.running = self.is_whole = False
        self.watch: Watch | None = None
        self.uses: Uses | None = None
        self.reasons: dict[str, str] = {}
        self.divided: list[nn.Module] = []
        self.inputs: list[tuple[str, torch.Tensor]] = []
        self._forwards: list[_Forward] = []
        self._chosen: list[_Forward] = []
        self._axes: dict[str, int] = {}
        for name, kind, reason in candidates(root, wanted, kept):
            if reason:
                self.reasons[name] = reason
                continue
            forward = _Forward(self, name, kind)
            self._forwards.append(forward)
            kind.module.forward = forward  # type: ignore[method-assign]

    def installed(self) -> AbstractContextManager[None]:
        """A context for a step."""
        return self.region.running()

    def begin(self) -> None:
        """Before the microbatches of a step."""

    def backward(self) -> AbstractContextManager[None]:
        """A context for the backward of a microbatch, in which forwards that run again have inputs of their own."""
        self.forget()
        return nullcontext()

    def forget(self) -> None:
        """Lets go of the last input."""
        self.entrance.forget()

    @contextmanager
    def watched(self, watch: Watch | None, *, uses: bool = False) -> Iterator[None]:
        """Within this context `watch` looks at the modules.

        Args:
            uses: also note who reads their parameters, for `divide`.
        """
        self.watch = watch
        seen = Uses([p for one in self._forwards for p in one.kind.module._parameters.values() if p is not None])
        self.uses = seen if uses else None
        try:
            with seen if uses else nullcontext():
                yield
        finally:
            self.watch = self.uses = None
            if uses:
                self._seen = seen

    @contextmanager
    def trying(self, avoided: Container[str]) -> Iterator[Pairs]:
        """Within this context forwards run that show which modules make pairs, before anything is divided.

        Args:
            avoided: modules whose results have to be whole, as another trial has shown.
        """
        ranks, kinds = self.mesh.size(), {one.name: one.kind for one in self._forwards}
        kept = [one.name for one in self._forwards if one.kind.closing is not None and self._reason(one, ranks)]
        self.pairs = Pairs(self.region, kinds, kept, avoided)
        try:
            with self.pairs.watching():
                yield self.pairs
        finally:
            self.pairs = None

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Name of a module that may be divided -> its inputs and features."""
        return {one.name: (one.kind.inputs, one.kind.features) for one in self._forwards}

    def pair(self, choice: Choice) -> None:
        """These modules' results stay in parts, and these take them so; before `choose`."""
        for one in self._forwards:
            one.opens, one.joins = one.name in choice.opening, one.name in choice.joint
            if one.name in choice.closing and one.kind.closing is not None:
                one.kind, one.closes = one.kind.closing, True

    def _met(self, name: str, value: torch.Tensor | float) -> None:
        """Notes what met results of a module that are in parts."""
        if self.running:
            value = look_at(value) if isinstance(value, torch.Tensor) else torch.tensor([value, abs(value)])
            self.inputs.append((name, value))

    def in_pairs(self) -> tuple[set[str], set[str]]:
        """Names of modules whose results stay in parts, and of those that take them."""
        return {one.name for one in self._chosen if one.opens}, {one.name for one in self._chosen if one.closes}

    def up_to_a_loss(self) -> set[str]:
        """Names of modules whose results stay in parts up to a loss."""
        return {one.name for one in self._chosen if one.joins}

    def left(self, value: Any) -> Any:
        """What the step function returned, whole. Collective."""
        return map_leaves(whole_of, value)

    def choose(self, together: Callable[[dict[str, str]], Mapping[str, str]] = dict) -> dict[str, int]:
        """Name of a parameter that is to be divided -> along which axis. Its modules were seen to read it as they must.

        Args:
            together: joins the reasons of all ranks, by module, why something stays whole.
        """
        ranks, chosen, kept = self.mesh.size(), [], []
        reasons = together({one.name: reason for one in self._forwards if (reason := self._reason(one, ranks))})
        for one in self._forwards:
            if one.name in reasons:
                self.reasons[one.name] = reasons[one.name]
                kept.append(one)
            else:
                chosen.append(one)
        while True:  # a parameter that several modules share is divided in all of them, along one axis, or in none
            axes: dict[int, set[int]] = {}
            for one in chosen:
                for name, axis in one.kind.axes.items():
                    axes.setdefault(id(one.kind.module._parameters[name]), set()).add(axis)
            whole_ones = {id(parameter) for one in kept for parameter in one.kind.module._parameters.values()}
            whole_ones.update(key for key, several in axes.items() if len(several) > 1)
            apart = [
                one
                for one in chosen
                if any(id(p) in whole_ones for p in one.kind.module._parameters.values() if p is not None)
            ]
            if not apart:
                break
            for one in apart:
                self.reasons[one.name] = "shares a parameter with a module that stays whole"
            kept += apart
            chosen = [one for one in chosen if one not in apart]
        self._chosen = chosen
        axis_of = {id(one.kind.module._parameters[name]): axis for one in chosen for name, axis in one.kind.axes.items()}
        self._axes = {name: axis_of[id(p)] for name, p in self.root.named_parameters() if id(p) in axis_of}
        return self._axes

    def adopt(self, parameters: Container[int]) -> None:
        """Modules that were chosen run with parts from now on, if all their parameters (by `id`) are among these; all others
        run as they were written."""
        for one in self._chosen:
            if all(id(one.kind.module._parameters[name]) in parameters for name in one.kind.axes):
                one.parts = one.kind.computing(self.entrance)
                self.divided.append(one.kind.module)
        for one in self._forwards:
            if one.parts is None:
                del one.kind.module.forward
        self._forwards = [one for one in self._chosen if one.parts is not None]

    def divide(self, together: Callable[[dict[str, str]], Mapping[str, str]] = dict) -> None:
        """Gives each rank its parts, of what `choose` has chosen."""
        axes = self.choose(together)
        old_ones = {name: parameter for name, parameter in self.root.named_parameters() if name in axes}
        made = {id(old): self.part_of(old, axes[name]) for name, old in old_ones.items()}
        self.adopt(made)
        for module, name, old in self._places(made):
            module._parameters[name] = made[id(old)]
        for old in old_ones.values():
            old.data = torch.empty(0, dtype=old.dtype, device=old.device)
            old.grad = None
            old.__class__ = ReplacedParameter

    def _places(self, parameters: Container[int]) -> list[tuple[nn.Module, str, nn.Parameter]]:
        """Where parameters with these ids are: also modules that have one and do not read it, as heads have a bias."""
        return [
            (module, name, parameter)
            for module in self.root.modules()
            for name, parameter in module._parameters.items()
            if parameter is not None and id(parameter) in parameters
        ]

    def _reason(self, one: _Forward, ranks: int) -> str:
        """Why a module stays whole; empty if it need not."""
        if not length_of(one.kind.features, ranks, ranks - 1):
            return f"{one.kind.features} {one.kind.noun} do not make {ranks} parts"
        for name in one.kind.axes:
            parameter: Any = one.kind.module._parameters[name]
            if has_gradient_hook(parameter):
                return f"{name} has a gradient hook"
            if type(parameter) is not nn.Parameter or parameter.layout is not torch.strided:
                return f"{name} is a {type(parameter).__name__}"
            if id(parameter) in self._seen.outside:
                return f"{name} is also read by {self._seen.outside[id(parameter)]}() outside of its own forward"
            if id(parameter) not in self._seen.inside:
                return "its own forward does not run"
        return one.kind.reason(ranks)

    def part_of(self, old: nn.Parameter, axis: int) -> nn.Parameter:
        """This rank's part of a parameter, with all that belongs to it."""

        def cut(tensor: torch.Tensor) -> DTensor:
            return distribute_tensor(tensor.detach(), self.mesh, [Shard(axis)], src_data_rank=None)

        part = cut(old)
        mine = part.to_local()
        if mine.untyped_storage().nbytes() > mine.numel() * mine.element_size():  # a view would keep all of it
            part = DTensor.from_local(
                mine.clone(), self.mesh, [Shard(axis)], run_check=False, shape=part.shape, stride=part.stride()
            )
        new = nn.Parameter(part, requires_grad=old.requires_grad)
        new.__class__ = PartParameter  # type: ignore[assignment]
        new.__dict__.update(old.__dict__)
        stays_half(new, old)
        if old.grad is not None:
            new.grad = cut(old.grad)
        return new

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Within this context each rank has all parameters whole, and the modules run as they were written. Collective."""
        parts = {id(one): one for one in self.root.parameters() if isinstance(one, DTensor)}
        made = {
            key: stays_half(nn.Parameter(whole(part.detach()), requires_grad=part.requires_grad), part)
            for key, part in parts.items()
        }
        before = self._places(parts)
        try:
            for module, name, part in before:
                module._parameters[name] = made[id(part)]
            self.is_whole = True
            yield
        finally:
            self.is_whole = False
            for module, name, part in before:
                module._parameters[name] = part

    def line(self) -> str:
        """What is divided, in words."""
        every = dict(self.root.named_parameters())
        parts = sum(p.numel() for name, p in every.items() if name in self._axes)
        total = sum(p.numel() for p in every.values())
        kinds: dict[str, int] = {}
        for one in self._chosen:
            kind = type(one.kind.module).__name__
            kinds[kind] = kinds.get(kind, 0) + 1
        what = ", ".join(f"{number} {name}" for name, number in kinds.items()) or "no module"
        share = 100 * parts / total if total else 0.0
        pairs = sum(len(names) for names in self.in_pairs())
        what += f", {pairs} of them in pairs" if pairs else ""
        joint = len(self.up_to_a_loss())
        what += f", {joint} of them in parts up to the loss" if joint else ""
        line = f"tensor parallelism: {share:.1f} % of {total} parameters are divided among {self.mesh.size()} ranks ({what})"
        shown = [f"{name!r}: {reason}" for name, reason in list(self.reasons.items())[:4]]
        more = f"; and {len(self.reasons) - 4} more" if len(self.reasons) > 4 else ""
        return f"{line}; whole stay: {'; '.join(shown)}{more}" if shown else line


def in_words(error: Exception) -> PipelineError | None:
    """What torch means where a part of a parameter meets a whole tensor."""
    if "mixed torch.Tensor and DTensor" not in str(error):
        return None
    return PipelineError(
        f"a parameter that is divided is read outside of its own module, as it was not in the first step: {error}",
        hint="keep that module whole: set_tensor_parallelism(module, False) before the first step",
    )


def tensor_mesh(group: dist.ProcessGroup, device: torch.device) -> DeviceMesh:
    """The ranks of a tensor group, as DTensor wants them."""
    # A name of its own: torch keeps what it found for an equal mesh, whose group may be gone.
    return DeviceMesh.from_group(group, device.type, mesh_dim_names=(f"tensor {group.group_name}",))


def _module(root: nn.Module, name: str) -> nn.Module:
    return root.get_submodule(name) if name else root
