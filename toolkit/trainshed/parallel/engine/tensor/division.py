"""The modules of one model that are divided among the ranks of a tensor group.

Before they are, and whenever the undivided model is to run, each of them runs its own forward on whole parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from ...ground.errors import PipelineError
from ...ground.exchanges import exchanged, length_of, scattered, summed
from ...ground.halves import stays_half
from ...ground.shards import has_gradient_hook, whole
from ...ground.torch_private import ORIGINAL, parameters_in
from ...ground.tree import map_leaves
from ...tracing.naming import first_names
from ..verify.unit_outputs import Watch
from .experts import experts_of
from .kinds import Compute, Entrance, Kind, kind_of, only
from .pairs import Attempt, PairChoice
from .parameter_usage import Uses
from .part_parameters import PartParameter, ReplacedParameter
from .rank_agreement import look_at
from .sequences import in_tokens
from .sharded_tensor import Part, TensorRegion, shown, whole_of

Told = TypeVar("Told")
Tried = TypeVar("Tried", bound=Attempt)


class _Forward:
    """What stands for the forward of a module that may be divided."""

    def __init__(self, division: Division, name: str, kind: Kind) -> None:
        self.division, self.name, self.kind = division, name, kind
        self.native: Compute = kind.module.forward
        self.parts: Compute | None = None
        self.opens = self.closes = self.joins = self.along = False

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
            return self._summed(self._taken(only(*args, **kwargs)))
        given = (*args, *kwargs.values())
        if self.kind.opening is not None and len(given) == 1 and isinstance(given[0], torch.Tensor):
            return self._opened(given[0])
        args, kwargs = map_leaves(whole_of, (args, kwargs))
        read = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
        division.inputs.extend((self.name, look_at(one)) for one in read)
        return self._summed(*args, **kwargs) if self.along else self.parts(*args, **kwargs)

    def _opened(self, x: torch.Tensor) -> Any:
        """Of all features of an input, of which a rank may have some tokens."""
        division, kind = self.division, self.kind
        if isinstance(x, Part) and x.whole is None and not x.along_features:
            entered = division.entrance.collect(x, x.taken(), x.axis)
            division.inputs.append((self.name, look_at(entered)))
        else:
            x = whole_of(x)
            division.inputs.append((self.name, look_at(x)))
            entered = division.entrance(x)
        if kind.opening is None:
            raise RuntimeError(f"nobody knows this rank's features of {self.name!r} alone")
        own = kind.opening(kind.module, entered)
        if (self.opens or self.joins) and _may_stay():
            return Part.made_by(self.name, division.region, own, kind.features)
        if self._divides_tokens(own):
            size, own = own.shape[-2], exchanged(own, division.mesh, kind.features, -1, -2)
            return Part.made_by(self.name, division.region, own, size, -2)
        return kind.complete(own, division.mesh)

    def _taken(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's features of an input, which may be whole."""
        division = self.division
        if isinstance(x, Part) and x.whole is None and x.along_features:
            return x.taken()
        x = whole_of(x)
        division.inputs.append((self.name, look_at(x)))
        return division.region.cut(division.entrance(x), -1)

    def _summed(self, *args: Any, **kwargs: Any) -> Any:
        """The sum of what the ranks find, or of some tokens of it."""
        division, kind = self.division, self.kind
        if kind.term is None:
            raise RuntimeError(f"{self.name!r} is no sum")
        term = kind.term(kind.module, division.entrance, only(*args, **kwargs))
        if not self._divides_tokens(term):
            return summed(term, division.mesh)
        own = scattered(term, division.mesh, -2)
        return Part.made_by(self.name, division.region, own, term.shape[-2], -2)

    def _divides_tokens(self, result: torch.Tensor) -> bool:
        """Whether a rank goes on with some tokens of the result."""
        region = self.division.region
        return self.along and _may_stay() and not region.functions and in_tokens(result, region.ranks)


def _may_stay() -> bool:
    """Whether results may be in parts now: in inference mode nobody would see that one was changed in place."""
    return not torch.is_inference_mode_enabled()


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
        yield name, kind, "compiled" if ORIGINAL in name.split(".") else ""


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
        self.region = TensorRegion(mesh, lambda: self.running, self._met)
        self.pairs: Attempt | None = None
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
        self.region.means = frozenset(id(one) for one in self.root.parameters() if not isinstance(one, DTensor))

    @contextmanager
    def backward(self) -> Iterator[None]:
        """A context for the backward of a microbatch, in which forwards that run again have inputs of their own."""
        self.forget()
        self.region.in_backward = True
        try:
            yield
        finally:
            self.region.in_backward = False

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
        seen = Uses([p for one in self._forwards for p in parameters_in(one.kind.module).values() if p is not None])
        self.uses = seen if uses else None
        try:
            with seen if uses else nullcontext():
                yield
        finally:
            self.watch = self.uses = None
            if uses:
                self._seen = seen

    @contextmanager
    def trying(
        self,
        attempt: Callable[[TensorRegion, Mapping[str, Kind], Container[str], Told], Tried],
        told: Told,
        kept: Container[str] = (),
    ) -> Iterator[Tried]:
        """Within this context forwards run in a trial, before anything is divided.

        Args:
            attempt: `Pairs` or `Along`; `told`: its last argument.
            kept: names of modules that stay whole for other reasons than are known here.
        """
        ranks, kinds = self.mesh.size(), {one.name: one.kind for one in self._forwards}
        known = [one for one in self._forwards if one.kind.closing is not None or one.kind.term is not None]
        tried = attempt(
            self.region, kinds, [one.name for one in known if one.name in kept or self._reason(one, ranks)], told
        )
        self.pairs = tried
        try:
            with tried.watching():
                yield tried
        finally:
            self.pairs = None

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Name of a module that may be divided -> its inputs and features."""
        return {one.name: (one.kind.inputs, one.kind.features) for one in self._forwards}

    def pair(self, choice: PairChoice) -> None:
        """These modules' results stay in parts, and these take them so; before `choose`."""
        for one in self._forwards:
            one.opens, one.joins = one.name in choice.opening, one.name in choice.joint
            one.along = one.name in choice.along
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

    def along_tokens(self) -> set[str]:
        """Names of modules whose results are in parts along the tokens."""
        return {one.name for one in self._chosen if one.along}

    def left(self, value: Any) -> Any:
        """Returns what the step function returned, whole. Collective."""
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
                    axes.setdefault(id(parameters_in(one.kind.module)[name]), set()).add(axis)
            whole_ones = {id(parameter) for one in kept for parameter in parameters_in(one.kind.module).values()}
            whole_ones.update(key for key, several in axes.items() if len(several) > 1)
            apart = [
                one
                for one in chosen
                if any(id(p) in whole_ones for p in parameters_in(one.kind.module).values() if p is not None)
            ]
            if not apart:
                break
            for one in apart:
                self.reasons[one.name] = "shares a parameter with a module that stays whole"
            kept += apart
            chosen = [one for one in chosen if one not in apart]
        self._chosen = chosen
        axis_of = {id(parameters_in(one.kind.module)[name]): axis for one in chosen for name, axis in one.kind.axes.items()}
        self._axes = {name: axis_of[id(p)] for name, p in self.root.named_parameters() if id(p) in axis_of}
        return self._axes

    def adopt(self, parameters: Container[int]) -> None:
        """Modules that were chosen run with parts from now on, if all their parameters (by `id`) are among these; all others
        run as they were written."""
        for one in self._chosen:
            if all(id(parameters_in(one.kind.module)[name]) in parameters for name in one.kind.axes):
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
            parameters_in(module)[name] = made[id(old)]
        for old in old_ones.values():
            old.data = torch.empty(0, dtype=old.dtype, device=old.device)
            old.grad = None
            old.__class__ = ReplacedParameter

    def _places(self, parameters: Container[int]) -> list[tuple[nn.Module, str, nn.Parameter]]:
        """Where parameters with these ids are: also modules that have one and do not read it, as heads have a bias."""
        return [
            (module, name, parameter)
            for module in self.root.modules()
            for name, parameter in parameters_in(module).items()
            if parameter is not None and id(parameter) in parameters
        ]

    def _reason(self, one: _Forward, ranks: int) -> str:
        """Why a module stays whole; empty if it need not."""
        if not length_of(one.kind.features, ranks, ranks - 1):
            return f"{one.kind.features} {one.kind.noun} do not make {ranks} parts"
        for name in one.kind.axes:
            parameter: Any = parameters_in(one.kind.module)[name]
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
    def whole(self, module: nn.Module | None = None) -> Iterator[None]:
        """Within this context each rank has all parameters whole, and the modules run as they were written. Collective.

        Args:
            module: whose parameters alone are made whole, for a time in which nothing else runs.
        """
        parts = {id(one): one for one in (module or self.root).parameters() if isinstance(one, DTensor)}
        made = {
            key: stays_half(nn.Parameter(whole(part.detach()), requires_grad=part.requires_grad), part)
            for key, part in parts.items()
        }
        before = self._places(parts)
        try:
            for module, name, part in before:
                parameters_in(module)[name] = made[id(part)]
            self.is_whole = True
            yield
        finally:
            self.is_whole = False
            for module, name, part in before:
                parameters_in(module)[name] = part

    def line(self) -> str:
        """Says what is divided, in words."""
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
        along = len(self.along_tokens())
        what += f", {along} of them with results in parts along the tokens" if along else ""
        line = f"tensor parallelism: {share:.1f} % of {total} parameters are divided among {self.mesh.size()} ranks ({what})"
        shown = [f"{name!r}: {reason}" for name, reason in list(self.reasons.items())[:4]]
        more = f"; and {len(self.reasons) - 4} more" if len(self.reasons) > 4 else ""
        return f"{line}; whole stay: {'; '.join(shown)}{more}" if shown else line


def in_words(error: Exception) -> PipelineError | None:
    """Says what torch means where a part of a parameter meets a whole tensor."""
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
