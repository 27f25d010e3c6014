"""A tensor of which each rank of a group has some of the places along one axis, and which looks whole to all code.

What a divided Linear gives may stay so until another one takes it. In between the script's own code runs: operations that
are known to work place by place (`part_rules`) run on what this rank has, and give such a tensor again; for any other the
whole tensor is gathered, and it is an ordinary one from then on. So what the code computes is what it computes on the whole
tensor, whichever way it takes, and so are the gradients: an ordinary tensor that meets such a one has the gradients of all
ranks summed.

It takes no part in autograd itself: what it holds does.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch.distributed.device_mesh import DeviceMesh

from ...ground.errors import PipelineError
from ...ground.exchanges import entering, gathered, length_of, part_of, start_of, summed_later
from ...ground.shards import has_gradient_hook
from ...ground.torch_private import version_of, wrapper_tensor
from ...ground.tree import leaves, map_leaves
from ..alarm import waited_in_vain
from .loss_parallel import Joint, in_other_words, joint_of
from .op_call import OpCall, OpStrategy
from .op_rules import CHANGES, FACTS, HELD, REFUSED, changes, name_of, way_of
from .part_shapes import Shape, Shapes, are_the_same, shapes_of


class TensorRegion:
    """The home of such tensors: the ranks of a group, in one model.

    Args:
        mesh: of the ranks.
        is_open: tells whether all of them run the same now, so that one can be gathered.
        met: is told what tensors in parts meet that the ranks should have alike: a name, and a tensor or number.

    trial: notes what happens where nothing is divided yet; None otherwise.
    alive: all of them that something holds.
    shapes: what functions give for whole tensors, by what they are given.
    means: `id` of parameters of whose gradients the mean over all ranks is taken after the step's backward; `gathers` tells
        of others that stand for one.
    in_backward: whether that runs.
    functions: how many autograd functions of the script's own run now, one in the other. What they give has to be whole.
    """

    def __init__(
        self, mesh: DeviceMesh, is_open: Callable[[], bool], met: Callable[[str, torch.Tensor | float], None]
    ) -> None:
        self.mesh, self.ranks, self.rank = mesh, mesh.size(), mesh.get_local_rank()
        self.is_open, self.met = is_open, met
        self.trial: Trial | None = None
        self.alive: weakref.WeakValueDictionary[int, Part] = weakref.WeakValueDictionary()
        self.shapes: dict[Any, Shapes | None] = {}
        self.means: frozenset[int] = frozenset()
        self.gathers: Callable[[torch.Tensor], bool] = lambda _: False
        self.in_backward, self.functions = False, 0

    def length(self, size: int) -> int:
        """How many of `size` places this rank has."""
        return length_of(size, self.ranks, self.rank)

    def cut(self, whole: torch.Tensor, axis: int) -> torch.Tensor:
        """This rank's places of a whole tensor, in the same memory."""
        size = whole.shape[axis]
        return whole.narrow(axis, start_of(size, self.ranks, self.rank), self.length(size))

    def meeting(self, tensor: torch.Tensor, axis: int | None) -> torch.Tensor:
        """A tensor that is whole where it meets parts, or this rank's places of it along an axis; its gradient is of all
        ranks."""
        if not (tensor.requires_grad and torch.is_grad_enabled()):
            return tensor if axis is None else self.cut(tensor, axis)
        if (id(tensor) in self.means or self.gathers(tensor)) and not has_gradient_hook(tensor):
            tensor = summed_later(tensor, self.mesh, lambda: self.in_backward)
        elif axis is None:
            tensor = entering(tensor, self.mesh)
        else:
            return part_of(tensor, self.mesh, axis)
        return tensor if axis is None else self.cut(tensor, axis)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Within this context functions of autograd of the script's own are given whole tensors: `__torch_function__` does
        not see them."""
        before = torch.autograd.Function.__dict__["apply"]

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            args = tuple(map(whole_of, args))
            self.functions += 1
            try:
                return before.__func__(cls, *args, **kwargs)
            finally:
                self.functions -= 1

        torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment,method-assign]
        try:
            yield
        finally:
            torch.autograd.Function.apply = before  # type: ignore[method-assign]


class Trial:
    """Observations where nothing is divided yet: each tensor is whole beside its part, and both are compared.

    Args:
        counts: whether tensors have no values, and are compared by their shapes.

    bad: names of modules whose results were gathered -> by what.
    joint: of those whose results a function took that needs a few numbers of each rank.
    needed: of those whose results something needs whole that could not gather them later.
    kept: of those whose results something holds after the forward.
    sent: bytes that parts cost: the modules that they come from, and how many.
    share: of what a whole tensor's function keeps now for its backward, what a rank would keep.
    """

    def __init__(self, *, counts: bool = False) -> None:
        self.counts = counts
        self.bad: dict[str, str] = {}
        self.joint: set[str] = set()
        self.needed: set[str] = set()
        self.kept: set[str] = set()
        self.sent: list[tuple[frozenset[str], float]] = []
        self.share = 1.0

    @contextmanager
    def keeping(self, share: float) -> Iterator[None]:
        """Within this context a rank would keep this share of what is kept: none of what runs on its parts, which the whole
        tensors stand for."""
        self.share = share
        try:
            yield
        finally:
            self.share = 1.0

    def spoil(self, sources: frozenset[str], why: str) -> None:
        """These modules' results are needed whole."""
        for one in sources:
            self.bad.setdefault(one, why)


class Alias:
    """Tensors that are views of each other. wholes: what was gathered of them, and its version then."""

    def __init__(self) -> None:
        self.wholes: list[tuple[torch.Tensor, int]] = []


class Part(torch.Tensor):
    """As the module says.

    own: this rank's places. axis: along which. twin: the whole tensor, in a trial. sources: the modules that it comes from.
    whole: from when on it is an ordinary tensor.
    """

    own: torch.Tensor
    axis: int
    region: TensorRegion
    twin: torch.Tensor | None
    sources: frozenset[str]
    whole: torch.Tensor | None
    alias: Alias

    @classmethod
    def of(
        cls,
        region: TensorRegion,
        own: torch.Tensor,
        axis: int,
        shape: Shape,
        sources: frozenset[str],
        twin: torch.Tensor | None,
    ) -> Part:
        """Made of this rank's places.

        Args:
            shape: of the whole tensor: sizes and strides.
        """
        made: Part = wrapper_tensor(cls, shape[0], strides=shape[1], dtype=own.dtype, device=own.device)
        made.own, made.axis, made.region, made.sources, made.twin, made.whole = own, axis, region, sources, twin, None
        made.alias = Alias()
        region.alive[id(made)] = made
        return made

    @classmethod
    def made_by(
        cls, name: str, region: TensorRegion, own: torch.Tensor, size: int, axis: int = -1, twin: torch.Tensor | None = None
    ) -> Part:
        """Made of this rank's places, of `size` along an axis, that a module has computed."""
        axis %= own.ndim
        sizes = (*own.shape[:axis], size, *own.shape[axis + 1 :])
        strides = torch.empty(sizes, device="meta").stride()
        return cls.of(region, own, axis, (sizes, strides), frozenset({name}), twin)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Any function of torch with such a tensor."""
        if func in FACTS and getattr(args[0], "whole", None) is None:
            with torch.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        if torch.compiler.is_compiling():
            _refuse(next(one for one in leaves((args, kwargs)) if isinstance(one, Part)), "a compiled function is given it")
        return _run(func, tuple(args), kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:  # type: ignore[override]
        """Refused: code that torch does not show to Python would work with a tensor that has no values."""
        raise PipelineError(
            f"{func} meets a tensor that is divided among ranks, where it cannot be made whole",
            hint="pipe.set_tensor_parallelism(module, False) before the first step keeps the modules before it whole",
        )

    def shown(self) -> torch.Tensor:
        """The whole tensor without its gradient, while this one stays in parts. Collective."""
        found = self.whole if self.whole is not None else self.twin
        return (self._gathered("comparing") if found is None else found).detach()

    def become_whole(self, why: str) -> torch.Tensor:
        """The whole tensor, which this is from now on. Collective."""
        if self.whole is None:
            if (trial := self.region.trial) is not None:
                trial.spoil(self.sources, why)
                trial.sent.append((self.sources, size_of(self)))
            self.whole = self._gathered(why) if self.twin is None else self.twin
            self.alias.wholes.append((self.whole, _version(self.whole)))
            self.own = self.twin = self.whole
        return self.whole

    @property
    def along_features(self) -> bool:
        """Tells whether it is in parts along the last axis."""
        return self.axis == self.ndim - 1

    def taken(self) -> torch.Tensor:
        """This rank's places, for a module that takes them so."""
        self.check()
        return self.own

    def check(self) -> None:
        """Raises:
        PipelineError: a view of this tensor that was gathered was changed in place since.
        """
        if self.region.trial is None and any(
            one is not self.whole and _version(one) != version for one, version in self.alias.wholes
        ):
            _refuse(self, "it was changed through a view of it that all ranks have whole")

    def check_open(self) -> None:
        """Raises:
        PipelineError: the ranks do not run the same now.
        """
        if not self.region.is_open():
            _refuse(self, "it is read outside the step that computed it")

    def _gathered(self, why: str) -> torch.Tensor:
        self.check_open()
        try:
            return gathered(self.own, self.region.mesh, self.shape[self.axis], self.axis)
        except RuntimeError as error:
            if not waited_in_vain(error):
                raise
            raise PipelineError(
                f"this rank waited in vain for the others to gather what {_named(self)} gave, for {why}",
                details=str(error),
                hint="read it on all ranks of the tensor group or on none: leave out `if rank() == 0`, or return it from "
                "the step function; if another rank has ended, the cause is in its log",
            ) from error


def size_of(tensor: torch.Tensor) -> int:
    """Bytes of all values of a tensor, also of one in parts."""
    return tensor.numel() * tensor.element_size()


def whole_of(leaf: Any) -> Any:
    """An ordinary tensor in the place of one in parts; anything else as it is. Collective."""
    return leaf.become_whole("a function of its own") if isinstance(leaf, Part) else leaf


def shown(leaf: Any) -> Any:
    """As `Part.shown`; anything else as it is."""
    return leaf.shown() if isinstance(leaf, Part) else leaf


def _named(part: Part) -> str:
    return " and ".join(repr(one) for one in sorted(part.sources))


def _refuse(part: Part, what: str) -> NoReturn:
    raise PipelineError(
        f"a tensor that {_named(part)} gave is divided among ranks, and {what}",
        hint="pipe.set_tensor_parallelism(module, False) before the first step keeps such a module whole",
    )


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else version_of(tensor)


def _run(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    every = [leaf for leaf in leaves((args, kwargs)) if isinstance(leaf, Part)]
    for part in every:
        part.check()
    args, kwargs = _wholes(args), _wholes(kwargs)
    parts = [part for part in every if part.whole is None]
    if not parts:
        return func(*args, **kwargs)
    if func in HELD:
        return func(parts[0].own if parts[0].twin is None else parts[0].twin)
    if func in REFUSED:
        _need_whole(parts, name_of(func))
        return func(*_wholes(args), **_wholes(kwargs))
    region = parts[0].region
    call = OpCall(func, args, kwargs, {id(part): part.axis for part in parts}, region.ranks, region.rank)
    same = in_other_words(call)
    if same is not None:
        return same()
    joint = joint_of(call)
    done = (_jointly(call, joint) if joint is not None else ()) or _in_parts(call, parts)
    if done:
        return done[0]
    if func in CHANGES and isinstance(args[0], Part):
        _need_whole([args[0]], name_of(func))
    for part in parts:
        part.become_whole(name_of(func))
    return func(*_wholes(args), **_wholes(kwargs))


def _wholes(value: Any) -> Any:
    return map_leaves(lambda leaf: leaf.whole if isinstance(leaf, Part) and leaf.whole is not None else leaf, value)


def _need_whole(parts: list[Part], name: str) -> None:
    """Before something is done to a tensor itself; in a trial it is whole from then on.

    Raises:
        PipelineError: it is in parts.
    """
    for part in parts:
        if part.twin is None:
            _refuse(part, f"{name}() needs it whole, as it did not in the first step")
        if (trial := part.region.trial) is not None:
            trial.needed |= part.sources
        part.become_whole(name)


def _jointly(call: OpCall, joint: Joint) -> tuple[Any, ...]:
    """What a function gives that needs a few numbers of each rank, in a tuple; an empty one if that is not right."""
    part: Part = joint.given
    region = part.region
    if region.trial is None:
        part.check_open()
        for one in call.tensors():
            if one is not part:
                region.met(min(part.sources), one)
        return (joint.computed(part.own, region.mesh),)
    with region.trial.keeping(1 / region.ranks):
        whole = call.func(*map_leaves(_twin, call.args), **map_leaves(_twin, call.kwargs))
    with torch.no_grad():
        found = joint.tried(_twin(part), region.ranks)
    if not are_the_same(found, whole, lambda one: one, values=not region.trial.counts):
        return ()
    region.trial.joint |= part.sources
    return (whole,)


def _in_parts(call: OpCall, parts: list[Part]) -> tuple[Any, ...]:
    """What a function gives that can be computed in parts, in a tuple; an empty one if it cannot."""
    region, func, way = parts[0].region, call.func, way_of(call)
    if way is None or (changes(way) and parts[0].alias.wholes):
        return ()
    shapes = shapes_of(way, region.shapes)
    if shapes is None:
        return ()
    given = way.args if way.own is None else (way.args[0], *way.own)
    versions = [_version(part.own) for part in parts if part.alias.wholes]

    def own(leaf: Any) -> Any:
        if isinstance(leaf, Part):
            return leaf.own
        if isinstance(leaf, float) or (isinstance(leaf, torch.Tensor) and not isinstance(leaf, torch.nn.Parameter)):
            region.met(min(parts[0].sources), leaf)
        if not isinstance(leaf, torch.Tensor):
            return leaf
        axis, trial = way.cuts.get(id(leaf)), region.trial
        if id(leaf) in way.drawn:
            return region.cut(leaf, way.cuts[id(leaf)]).clone()
        if trial is None:
            return region.meeting(leaf, axis)
        if leaf.requires_grad and torch.is_grad_enabled() and not isinstance(leaf, torch.nn.Parameter):
            sources = frozenset[str]().union(*(part.sources for part in parts))
            trial.sent.append((sources, size_of(leaf) * (2 if axis is None else 1)))
        return leaf if axis is None else region.cut(leaf, axis)

    if region.trial is None:
        found = way.func(*map_leaves(own, given), **map_leaves(own, way.kwargs))
        if versions != [_version(part.own) for part in parts if part.alias.wholes]:
            _refuse(parts[0], f"{name_of(func)}() changes it, of which all ranks have a view whole")
        return (_made(found, None, way, shapes, parts),)
    try:
        with region.trial.keeping(0):
            found = way.func(*map_leaves(own, given), **map_leaves(own, way.kwargs))
    except Exception:  # the whole tensor says whether that is the script's own error
        return ()
    with region.trial.keeping(1 / region.ranks):
        twins = way.func(*map_leaves(_twin, way.args), **map_leaves(_twin, way.kwargs))
    if not are_the_same(found, twins, lambda whole: region.cut(whole, way.axis), values=not region.trial.counts):
        for part in parts:
            part.become_whole(name_of(func))
        return (_first(way, twins) if changes(way) else twins,)
    return (_made(found, twins, way, shapes, parts),)


def _twin(leaf: Any) -> Any:
    return leaf.twin if isinstance(leaf, Part) else leaf


def _first(way: OpStrategy, otherwise: Any) -> Any:
    return way.args[0] if isinstance(way.args[0], Part) else otherwise


def _made(found: Any, twins: Any, way: OpStrategy, shapes: Shapes, parts: list[Part]) -> Any:
    """The results, in parts."""
    region, sources = parts[0].region, frozenset().union(*(part.sources for part in parts))
    if changes(way):
        first: Part = way.args[0]
        first.sources = sources
        return first
    others, wholes = iter(shapes), iter(leaves(twins))
    memory = {_memory(part.own): part.alias for part in parts}

    def made(leaf: Any) -> Any:
        twin = None if twins is None else next(wholes)
        if not isinstance(leaf, torch.Tensor):
            return leaf
        shape = next(others)
        expected = list(shape[0])
        expected[way.axis] = region.length(expected[way.axis])
        if list(leaf.shape) != expected:
            raise RuntimeError(f"{name_of(way.func)} gave a part of {list(leaf.shape)}, and not of {expected}")
        part = Part.of(region, leaf, way.axis, shape, sources, twin)
        part.alias = memory.get(_memory(leaf), part.alias)
        return part

    return map_leaves(made, found)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() or id(tensor)
