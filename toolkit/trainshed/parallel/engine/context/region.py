"""The blocks of a model, inside of which ranks have a part of the sequence each; around them each rank has all of it.

A block is an entry of a list of modules (or what the script names) that is given a hidden state, (batch, positions, width)
or (positions, batch, width), returns one of the same shape, and calls torch's attention. Each kind of call is tried before
it is divided (`proof`).
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ...ground.errors import NotServed, PipelineError
from ...ground.torch_private import version_of
from ...ground.tree import leaves, map_leaves
from ...tracing.naming import first_names
from ..forward_patch import StandIn, is_compiled
from ..object_collectives import FINDINGS, objects
from ..tensor.rank_agreement import apart, look_at, refuse_apart
from ..verify.unit_outputs import Watch
from .crossing import Crossing, cut, join, shared
from .equivalence_check import Proof
from .op_handlers import Inside
from .rules import Rule, candidates, is_hidden, signature
from .slices import Slices

_HINT = (
    "only attention by torch's scaled_dot_product_attention may mix positions (attn_implementation='sdpa' in transformers); "
    "pipe.set_context_parallelism(block, False) before the first step leaves a block whole on every rank"
)

# What to do where nothing is divided.
NOTHING = (
    "attention has to be that of torch (attn_implementation='sdpa' in transformers); or name the blocks: "
    "pipe.set_context_parallelism(block, True)"
)


@dataclass(frozen=True)
class Candidate:
    """A module that may be a block. named: whether the script says that it is one."""

    name: str
    module: nn.Module
    named: bool


@dataclass
class MicrobatchState:
    """The state of one microbatch.

    layouts: length of this rank's part of a sequence -> the sequence, and its axis.
    doubtful: whether keys of another sequence were as many as this rank's part.
    """

    layouts: dict[int, tuple[Slices, int]] = field(default_factory=dict)
    doubtful: bool = False


class _Forward(StandIn):
    """What stands for the forward of a module that may be a block.

    rules: by signature of a call, how it is divided; or in words why it stays whole.
    """

    def __init__(self, region: Region, block: Candidate) -> None:
        super().__init__(block.name, block.module)
        module = block.module
        self.region, self.named = region, block.named
        self.kind = type(module).__name__  # of the script's: torch's FSDP makes other classes
        self.rules: dict[Any, Rule | str] = {}
        self.compiled = is_compiled(module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        run = self._run
        if self.region.watch is not None:
            run = self.region.watch.around(self.name, run)
        return run(*args, **kwargs)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        region = self.region
        if not region.running or region.is_whole or region.inside:
            return self.native(*args, **kwargs)
        return region.run(self, args, kwargs)


class Region:
    """The blocks of one model.

    Args:
        blocks: what may be a block.
        whole: within this context a block has whole parameters, and nobody hears of their gradients; for trying it.

    running: whether all ranks of the group run the same now.
    is_whole: whether the undivided model runs.
    inside: whether a block runs.
    watch: looks at the results of blocks.
    inputs: what was cut in this step: the block's name, and two numbers by which ranks can compare it.
    short: whether a sequence was too short to be cut.
    """

    def __init__(
        self,
        blocks: Iterable[Candidate],
        crossing: Crossing,
        whole: Callable[[nn.Module], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.crossing, self._made_whole = crossing, whole
        self.running = self.is_whole = self.inside = self.short = False
        self.watch: Watch | None = None
        self.inputs: list[tuple[str, torch.Tensor]] = []
        self._turn = MicrobatchState()
        self._first: dict[type, list[Rule]] = {}
        self._last: tuple[Any, int, torch.Tensor, Slices, int] | None = None
        self._forwards = [_Forward(self, one) for one in blocks]

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Within this context blocks are called through the region."""
        for one in self._forwards:
            one.install()
        try:
            yield
        finally:
            for one in self._forwards:
                one.remove()

    @contextmanager
    def put_aside(self) -> Iterator[None]:
        """Within this context, inside of the other, forwards of modules may be exchanged."""
        for one in self._forwards:
            one.remove()
        try:
            yield
        finally:
            for one in self._forwards:
                one.install()

    @contextmanager
    def watched(self, watch: Watch | None) -> Iterator[None]:
        """Within this context `watch` looks at the blocks."""
        self.watch = watch
        try:
            yield
        finally:
            self.watch = None

    @contextmanager
    def undivided(self) -> Iterator[None]:
        """Within this context blocks run whole."""
        self.is_whole = True
        try:
            yield
        finally:
            self.is_whole = False

    def begin(self) -> None:
        """Before the microbatches of a step."""
        self.forget()

    def forget(self) -> None:
        """After a microbatch: what is of it alone."""
        self.take(MicrobatchState())

    def take(self, turn: MicrobatchState) -> None:
        """Before a microbatch runs, or goes on; what blocks have given to others is forgotten."""
        self._turn, self._last = turn, None

    def backward(self) -> Any:
        """A context for the backward of a microbatch: what runs in it is a part of a block that activation checkpoints
        run again."""
        turn = self._turn
        if not turn.layouts:
            return nullcontext()
        return Inside(self.crossing, turn.layouts, doubtful=turn.doubtful).recomputing()

    def left(self, value: Any) -> Any:
        """Returns what the step function returned: whole in any case."""
        return value

    def divided(self) -> dict[str, Rule]:
        """Name of a block -> how it was divided."""
        return {one.name: rule for one in self._forwards for rule in one.rules.values() if isinstance(rule, Rule)}

    def told(self) -> str:
        """Says what is divided, in words; after a training step.

        Raises:
            PipelineError: no block was divided, though a sequence was long enough.
        """
        return in_words(self.kinds(), self.reasons(), self.crossing.ranks)

    def kinds(self) -> dict[str, str]:
        """Name of a block that was divided -> its class."""
        found = self.divided()
        return {one.name: one.kind for one in self._forwards if one.name in found}

    def reasons(self) -> str:
        """Why nothing was divided, in words."""
        if self.short:
            return ""
        if not self._forwards:
            return "the model has no list of blocks (nn.ModuleList, nn.Sequential)"
        said = {one.name: rule for one in self._forwards for rule in one.rules.values() if isinstance(rule, str)}
        if not said:
            return "no module in a list is given a hidden state, (batch, positions, width)"
        name, reason = next(((name, why) for name, why in said.items() if "attention" in why), next(iter(said.items())))
        return f"{name!r} {reason}"

    def run(self, block: _Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One call of what may be a block. Collective."""
        args, kwargs = map_leaves(_without_cache, (args, kwargs))
        given = leaves((args, kwargs))
        hidden = next((at for at, leaf in enumerate(given) if is_hidden(leaf)), None)
        if hidden is None:
            return block.native(*args, **kwargs)
        key = signature(block.module, given, given[hidden])
        rule = block.rules.get(key)
        if rule is None:
            rule = self._tried(block, args, kwargs, given, hidden)
            if rule is None:
                return self._whole(block, args, kwargs)
            block.rules[key] = rule
        if isinstance(rule, str):
            return block.native(*args, **kwargs)
        slices = Slices(given[hidden].size(rule.axis), self.crossing.ranks)
        if not slices.fits:
            return self._whole(block, args, kwargs)
        return self._in_parts(block, args, kwargs, rule, slices)

    def _whole(self, block: _Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.short = True
        return block.native(*args, **kwargs)

    def _tried(
        self, block: _Forward, args: tuple[Any, ...], kwargs: dict[str, Any], given: list[Any], hidden: int
    ) -> Rule | str | None:
        """How a call is divided; in words why it stays whole; None if it is too short to say.

        Raises:
            PipelineError: on all ranks: it is a block, and cannot be divided.
        """
        if block.compiled:
            raise NotServed(
                f"{block.name!r} is compiled, and context parallelism has to see what is in a block",
                hint="leave torch.compile out, or pipe.set_context_parallelism(block, False) for this one",
            )
        state, first = given[hidden], self._first.setdefault(type(block.module), [])
        ways = list(candidates(given, hidden, self.crossing.ranks, first))
        if not ways:
            return None
        self._compare(block, given)
        self.inside = True  # what is in it is no block of its own
        try:
            with self._made_whole(block.module):
                found, reasons = self._proven(block, args, kwargs, state, ways)
        except NotServed as error:
            raise NotServed(f"{block.name!r} ({block.kind}): {error.message}", hint=error.hint) from error
        finally:
            self.inside = False
        if found is not None:
            if isinstance(found, Rule):
                first.append(found)
            return found
        why = next((one for one in reasons if one), "another rank cannot run its part")
        raise PipelineError(f"{block.name!r} ({block.kind}) cannot be divided along the sequence: {why}", hint=_HINT)

    def _proven(
        self, block: _Forward, args: tuple[Any, ...], kwargs: dict[str, Any], state: torch.Tensor, ways: list[Rule]
    ) -> tuple[Rule | str | None, list[str]]:
        """The first way that is right, or in words why the call stays whole; else why each of them is wrong."""
        proof = Proof(block.module, block.native, (args, kwargs), self.crossing)
        result = next((one for one in proof.whole.results if isinstance(one, torch.Tensor)), None)
        if not block.named and (result is None or result.shape != state.shape):
            return "returns no hidden state of the same shape", []
        if not block.named and not proof.whole.lengths:
            return "calls no attention of torch (scaled_dot_product_attention)", []
        reasons = []
        for way in ways:
            rule, why = proof.of_parts(way)
            if rule is not None:
                if not block.named and not any(rule.sites):
                    continue  # cut along another axis than that of attention
                return rule, []
            reasons.append(why)
        return None, reasons

    def _compare(self, block: _Forward, given: list[Any]) -> None:
        """All ranks call a block with the same. Collective.

        Raises:
            PipelineError: on all ranks, if one of them has something else.
        """
        mine = [(block.name, look_at(leaf)) for leaf in given if isinstance(leaf, torch.Tensor)]
        group = self.crossing.group
        found = objects(FINDINGS, mine, group.ranks, group.group, self.crossing.device)
        if what := apart(group.ranks, found, [[] for _ in found], group.kind):
            refuse_apart(what, group.kind)

    def _in_parts(self, block: _Forward, args: tuple[Any, ...], kwargs: dict[str, Any], rule: Rule, slices: Slices) -> Any:
        crossing = self.crossing
        mine = slices.size(crossing.rank)
        if self._turn.layouts.setdefault(mine, (slices, rule.axis)) != (slices, rule.axis):
            raise PipelineError(
                f"{block.name!r} is given a sequence of {slices.length} along axis {rule.axis}, and other blocks are given "
                "others of about that length in the same step",
                hint="pad both sequences to one length, or leave blocks whole: pipe.set_context_parallelism(block, False)",
            )
        numbers = iter(range(1 << 30))

        def entered(leaf: Any) -> Any:
            number = next(numbers)
            if not isinstance(leaf, torch.Tensor):
                return leaf
            axis = rule.cuts[number]
            if axis is None:
                return shared(leaf, crossing) if leaf.requires_grad and torch.is_grad_enabled() else leaf
            if number == rule.hidden:
                return self._entered(block, leaf, axis, slices)
            return cut(leaf, crossing, axis, slices)

        args, kwargs = map_leaves(entered, (args, kwargs))
        self.inside = True
        try:
            inside = Inside(crossing, {mine: (slices, rule.axis)}, rule.sites)
            with inside:
                result = block.native(*args, **kwargs)
        except ValueError as error:
            raise PipelineError(
                f"{block.name!r} cannot be divided along the sequence as it was before: {error}", hint=_HINT
            ) from error
        finally:
            self.inside = False
        self._turn.doubtful = self._turn.doubtful or inside.had_doubt
        joins = iter(rule.joins)
        return map_leaves(lambda leaf: self._left(leaf, next(joins), slices), result)

    def _entered(self, block: _Forward, whole: torch.Tensor, axis: int, slices: Slices) -> torch.Tensor:
        """This rank's part of the hidden state: what the block before has returned, if it is that as it was."""
        if self._last is not None:
            before, version, part, of, along = self._last
            if before() is whole and version_of(whole) == version and (of, along) == (slices, axis):
                return part
        self.inputs.append((block.name, look_at(whole)))
        return cut(whole, self.crossing, axis, slices)

    def _left(self, leaf: Any, axis: int | None, slices: Slices) -> Any:
        if axis is None or not isinstance(leaf, torch.Tensor):
            return leaf
        whole = join(leaf, self.crossing, axis, slices)
        if leaf.is_floating_point():
            self._last = weakref.ref(whole), version_of(whole), leaf, slices, axis
        return whole


def in_words(divided: Mapping[str, str], reasons: str, ranks: int) -> str:
    """Says what context groups divide.

    Args:
        divided: name of a block -> its class.
        reasons: why nothing is divided; empty where sequences were too short.
        ranks: of a group.

    Raises:
        PipelineError: no block was divided, though a sequence was long enough.
    """
    if not divided and reasons:
        raise PipelineError(f"context_parallel_degree = {ranks} divides nothing: {reasons}", hint=NOTHING)
    if not divided:
        return f"sequences are too short to be divided: each rank needs 2 positions, and there are {ranks}"
    what = ", ".join(f"{number} {kind}" for kind, number in Counter(divided.values()).items())
    return f"context parallelism: {what}: sequences are divided among {ranks} ranks inside of them"


def _without_cache(leaf: Any) -> Any:
    """A cache that is empty stays so: parts of keys are of no use to anybody.

    Raises:
        PipelineError: it has keys of before.
    """
    length = getattr(leaf, "get_seq_length", None)
    if not callable(length) or isinstance(leaf, (torch.Tensor, nn.Module)):
        return leaf
    if length():
        raise PipelineError(
            "blocks are given keys and values of an earlier call (past_key_values): context parallelism does not serve that",
            hint="call the model without a cache inside a step; model.generate() between steps runs whole on each rank",
        )
    return None


def candidates_in(root: nn.Module, marks: Callable[[nn.Module], bool | None], kept: tuple[str, ...] = ()) -> list[Candidate]:
    """Finds the modules that may be a block: entries of lists of modules; only those that the script names if it names some.

    Args:
        marks: tells of a module whether the script names it a block (True), excludes it (False), or says nothing (None).
        kept: names of modules that stay whole with all that is in them.
    """
    found: dict[int, Candidate] = {}
    names = first_names(root)
    named = [module for module in root.modules() if marks(module)]
    for module in root.modules():
        entries = list(module) if isinstance(module, (nn.ModuleList, nn.Sequential)) else []
        for entry in named or entries:
            if marks(entry) is not False:
                found[id(entry)] = Candidate(names[id(entry)], entry, bool(named))
    return [one for one in found.values() if not any(one.name == each or one.name.startswith(f"{each}.") for each in kept)]
