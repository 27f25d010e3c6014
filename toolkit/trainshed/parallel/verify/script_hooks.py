"""Sees the steps of a script while it runs: forwards, backwards, clippings and updates, and writes them down.

Whatever a script calls to be parallel, it calls modules, `backward` and an optimizer's `step`. Those are looked at.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from ..engine.verify.tensor_digest import Sketch, sketch
from ..ground.errors import PipelineError
from ..ground.shards import local, whole
from ..ground.torch_private import ORIGINAL
from ..ground.tree import leaves, map_leaves, tensors
from .evidence import Evidence, Pass, Sketches, Update
from .global_batch import Batches, rows_in
from .padding import counts_padding


class Enough(BaseException):
    """So many steps have been seen: the script may end. No script catches it by mistake."""


class ScriptRecorder:
    """What one process does.

    Args:
        rank, world: as the script knows them.
        steps: of optimizers that are written down.
        weights: what parameters and buffers begin with; None for the script's own.
        rows_of: tells which rows of the first forward each rank had, for the outputs of modules; None in a rank.
        ends: whether `Enough` is raised then.
        done: is called after the last step.
        batches: keeps the inputs of forwards and losses, or gives others.
    """

    def __init__(
        self,
        rank: int,
        world: int,
        steps: int,
        *,
        weights: dict[str, torch.Tensor] | None = None,
        rows_of: Callable[[list[str]], list[list[int]]] | None = None,
        ends: bool = True,
        done: Callable[[], None] = lambda: None,
        batches: Batches | None = None,
    ) -> None:
        self.batches: Batches = batches or Batches()
        self.evidence = Evidence(rank, world)
        self.weights = weights
        self.initial: dict[str, torch.Tensor] = {}
        self.roots: list[nn.Module] = []
        self.wrapped: set[int] = set()
        self.replaced: list[torch.Tensor] = []
        self.parallel: list[Any] = []
        self.scale: dict[str, float] = {}
        self.release: Callable[[], None] = lambda: None  # puts torch's functions back, in a training that goes on
        self._steps, self._rows_of, self._ends, self.done = steps, rows_of, ends, done
        self._depth = 0
        self._now = Update()
        self._pass: Pass | None = None
        self._shown: dict[int, str] = {}
        self._ids: torch.Tensor | None = None
        self._masks: list[torch.Tensor] = []
        self._updating = self._losses = 0
        self._inside = False
        self._before: Sketches = {}

    @property
    def over(self) -> bool:
        """Whether all steps have been seen."""
        return len(self.evidence.updates) >= self._steps

    # Forwards --------------------------------------------------------------------------------------------------------

    def began(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Before a forward of any module; returns the arguments that it is to have."""
        if self.over:
            self.release()
        self._depth += 1
        if self._depth > 1 or not self._trains(module):
            return args, kwargs
        given = [one for one in leaves((args, kwargs)) if _is_given(one)]
        made = self.batches.inputs(len(self.evidence.updates), len(self._now.passes), given)
        known = {id(one): two for one, two in zip(given, made, strict=True)}
        self._begin(module, made)
        found: tuple[Any, Any] = map_leaves(lambda one: known.get(id(one), one), (args, kwargs))
        return found

    def targets(self, tensor: Any) -> Any:
        """What a loss is told is right; returns what it is to be told."""
        if self._pass is None or self.over or not _is_given(tensor):
            return tensor
        self._losses += 1
        return self.batches.targets(len(self.evidence.updates), len(self._now.passes) - 1, self._losses - 1, tensor)

    def left(self, module: nn.Module, output: Any) -> None:
        """After it."""
        self._depth -= 1
        if self._pass is not None and id(module) in self._shown and not self._updating:
            self._look(self._shown[id(module)], output)
        if not self._depth:
            self._shown = {}
            if self._pass is not None and self._inside:
                self._pass.draws, self._inside = _digest(_states()) != self._pass.random, False

    def _trains(self, module: nn.Module) -> bool:
        trained = torch.is_grad_enabled() and module.training and not self.over and not self._updating
        return trained and any(one.requires_grad for one in module.parameters())

    def _begin(self, module: nn.Module, tensors: list[torch.Tensor]) -> None:
        root, self._losses = unwrapped(module), 0
        if not any(one is root for one in self.roots):
            self.roots.append(root)
            self._meet(root)
        self._ids = next((one for one in tensors if one.dim() == 2 and not one.is_floating_point()), None)
        self._masks = [one for one in tensors if self._ids is not None and one.shape == self._ids.shape]
        self._pass = Pass(
            rows=rows_in(tensors),
            random=_digest(_states()),
            training=self._modes(root),
            past=id(module) in self.wrapped,
        )
        # DDP asks in its forward whether the backward is to sum.
        self._pass.synced = all(getattr(one, "require_backward_grad_sync", True) for one in self.parallel)
        self._now.passes.append(self._pass)
        self._inside = True
        if not self.evidence.updates and len(self._now.passes) == 1:
            self._shown = {id(one): plain_name(name) for name, one in root.named_modules()}

    def _meet(self, root: nn.Module) -> None:
        """Before the first forward of a model: its parameters, which the one process takes from the ranks."""
        known = set(self.initial)
        for name, tensor in (*self.named([root]), *named_buffers([root])):
            if self.weights is not None and name in self.weights:
                if tensor.shape != self.weights[name].shape:
                    self.evidence.by_hand = True
                    raise PipelineError(f"{name!r} has another shape as one process: the script divides the model itself")
                with torch.no_grad():
                    local(tensor).copy_(self.weights[name])
            value = whole(tensor.detach())
            if self.weights is None and self.evidence.rank == 0 and name not in known:
                self.initial[name] = value.cpu().clone()
            self.evidence.start[name] = sketch(value)
        old = {id(one) for one in self.replaced}
        every = root.named_parameters(remove_duplicate=False)
        self.evidence.loose += [plain_name(name) for name, one in every if id(one) in old]
        batch_norms = [(name, one) for name, one in root.named_modules() if isinstance(one, _BATCH_NORMS) and one.training]
        self.evidence.norms_by_rank += [plain_name(name) for name, _ in batch_norms]

    def _modes(self, root: nn.Module) -> str:
        return _digest([bytes(one.training for one in root.modules())])

    def _look(self, name: str, output: Any) -> None:
        tensor = next((one for one in tensors(output) if one.dim()), None)
        now = self._pass
        if tensor is None or now is None or not now.rows or name in now.outputs:
            return
        tensor, count = tensor.detach(), len(now.rows)
        if hasattr(tensor, "placements") or not tensor.is_floating_point() or tensor.shape[0] % count:
            return
        rows = tensor.reshape(count, -1)
        chosen = [list(range(count))] if self._rows_of is None else self._rows_of(now.rows)
        now.outputs[name] = (list(rows.shape[1:]), [sketch(rows[one]) for one in chosen])

    def dropped(self) -> None:
        """A dropout, which is left out."""
        if self._pass is not None:
            self._pass.dropout = True

    def counted(self, targets: Any, ignored: int, reduction: str) -> None:
        """A cross entropy."""
        if self._pass is None or not isinstance(targets, torch.Tensor) or targets.is_floating_point():
            return
        count = int((targets != ignored).sum())
        self._pass.tokens.append((count, targets.numel(), reduction))
        if self._ids is not None and reduction != "none":
            self._pass.padding |= counts_padding(self._ids, self._masks, targets, ignored)

    # Backwards and updates -------------------------------------------------------------------------------------------

    def backward(self, loss: torch.Tensor) -> None:
        """After a backward."""
        if self.over or self._pass is None:
            return
        value = whole(loss.detach())
        if value.numel() == 1:
            self._pass.loss = (self._pass.loss or 0.0) + float(value) / self.scale.get("now", 1.0)
        self._now.made = dict(self._gradients())

    def clipped(self, limit: float, norm: Any) -> None:
        """After torch's clipping."""
        if not self.over and not self._updating:
            self._now.norms.append((float(limit), float(whole(torch.as_tensor(norm)))))
            self._now.scaled |= bool(self.scale.get("waits"))

    def stepping(self, optimizer: torch.optim.Optimizer) -> None:
        """Before a step of an optimizer."""
        self._updating += 1
        if self._updating == 1 and not self.over:
            now, names = self._now, {id(one): name for name, one in self.named(self.roots)}
            given = [one for group in optimizer.param_groups for one in group["params"]]
            now.strange = sum(id(one) not in names for one in given)
            now.taken = dict(self._gradients())
            now.rates = [float(group.get("lr", 0.0)) for group in optimizer.param_groups]
            self._before = {name: sketch(whole(one.detach())) for name, one in self.named(self.roots)}

    def stepped(self) -> None:
        """After it."""
        self._updating -= 1
        if self._updating or self.over:
            return
        now = self._now
        after = {name: sketch(whole(one.detach())) for name, one in self.named(self.roots)}
        now.moved = {name: _less(after[name], self._before[name]) for name in after if name in self._before}
        now.buffers = {name: sketch(whole(one)) for name, one in named_buffers(self.roots)}
        self.evidence.updates.append(now)
        self._now, self._pass = Update(), None
        if self.over:
            self.done()
            if self._ends:
                raise Enough

    def named(self, roots: Sequence[nn.Module]) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters of models, those of the second one with the number of it."""
        for root in roots:
            for name, one in root.named_parameters():
                if one.requires_grad or self.weights is None or name in self.weights:
                    yield _of_root(self.roots, root, name), one

    def _gradients(self) -> Iterator[tuple[str, Sketch]]:
        for name, one in self.named(self.roots):
            if one.grad is not None:
                gradient = whole(one.grad)
                yield name, sketch(gradient.coalesce().to_dense() if gradient.is_sparse else gradient)


_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def _is_given(one: Any) -> bool:
    """Whether it comes from the data, and not from another module."""
    return isinstance(one, torch.Tensor) and one.dim() > 0 and not one.requires_grad


def _of_root(roots: Sequence[nn.Module], root: nn.Module, name: str) -> str:
    number = next(at for at, one in enumerate(roots) if one is root)
    return f"{f'model {number}: ' if number else ''}{plain_name(name)}"


def named_buffers(roots: Sequence[nn.Module]) -> Iterator[tuple[str, torch.Tensor]]:
    """Those of numbers."""
    for root in roots:
        for name, one in root.named_buffers():
            if not one.is_meta and not name.endswith("num_batches_tracked"):
                yield _of_root(roots, root, name), one


def unwrapped(module: nn.Module) -> nn.Module:
    """The model within DDP and torch.compile."""
    while True:
        inner = [getattr(module, name, None) for name in ("module", ORIGINAL)] if _wraps(module) else []
        found = next((one for one in inner if isinstance(one, nn.Module)), None)
        if found is None:
            return module
        module = found


def _wraps(module: nn.Module) -> bool:
    return type(module).__name__ in ("DistributedDataParallel", "DataParallel", "OptimizedModule")


def plain_name(name: str) -> str:
    """Without the names of what torch wraps modules in."""
    return ".".join(
        part for part in name.split(".") if part != ORIGINAL and not re.fullmatch("_[a-z]+_wrapped_module", part)
    )


def _states() -> list[bytes]:
    states = [torch.get_rng_state()]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state())
    return [bytes(one.numpy().tobytes()) for one in states]


def _digest(parts: Sequence[bytes]) -> str:
    return hashlib.blake2b(b"".join(parts), digest_size=8).hexdigest()


def _less(one: Sketch, other: Sketch) -> Sketch:
    """Of the difference, with its own length."""
    products = tuple(a - b for a, b in zip(one.products, other.products, strict=True))
    return Sketch(products, one.distance(other), one.unit, one.broken)
