"""One pipeline stage for torch's schedules: the user's step function, replayed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage

from ..engine.context.stage_blocks import StageBlocks
from ..engine.offload import Offload
from ..engine.shape import Boundary, Cut
from ..engine.step import Step
from ..engine.zero_bubble import Inseparable, SplitBackward
from ..ground.errors import PipelineError, TraceMismatch
from ..ground.torch_version import TORCH
from ..ground.tree import map_leaves, with_cloned_tensors
from ..tracing import host_rng as dice
from ..tracing import notes, rng
from ..tracing.call_routing import Gatekeeper, UnitGates
from ..tracing.held import OfStages, Place
from ..tracing.notes import Notes
from ..tracing.replay import StageForward
from ..tracing.subject import Backward
from .recompute import ALL_KEPT, Fit
from .stage_parts import StageParts


@dataclass
class Frame:
    """The surroundings that a stage needs.

    gates: of the model's units.
    attach: tells the user's model where its `backward` goes.
    local_units: units that this rank runs, as names.
    stages: number of stages of this rank.
    noted: stage -> what its forwards have noted in this step; first: what was noted before it.
    function: the step function.
    held: tensors in attributes that each stage has its own of, in a step.
    offload: keeps what forwards save for their backward, where it is not to stay on the device.
    parts: where the modules of stages are divided.
    blocks: where their sequences are.
    """

    gates: UnitGates
    attach: Callable[[Backward | None], None]
    device: torch.device
    root: nn.Module
    local_units: frozenset[str] = frozenset()
    step: Step | None = None
    stages: int = 1
    noted: dict[int, Notes] = field(default_factory=dict)
    first: Notes = field(default_factory=dict)
    function: notes.Function = None
    held: OfStages | None = None
    offload: Offload | None = None
    parts: StageParts | None = None
    blocks: StageBlocks | None = None

    def begin(self, function: notes.Function, counters: frozenset[notes.Key], kept: frozenset[Place]) -> None:
        """Before a step."""
        self.held = OfStages(self.root, kept if self.stages > 1 else frozenset())
        self.function = function
        self.noted = {}
        self.first = notes.notes(self.root, function) if self.stages > 1 and counters else {}

    def end(self, stage: int, tallies: frozenset[notes.Key]) -> Notes:
        """After a step: what the code between units has counted in a stage, as far as it came."""
        now = self.noted[stage] if stage in self.noted else notes.notes(self.root, self.function)
        return {key: now[key] for key in tallies if key in now}

    def over(self, counters: frozenset[notes.Key], counted: Notes) -> None:
        """After a step: what units have noted in any stage, and what the last stage has `counted`, which alone comes to the
        end of a forward."""
        if self.held is not None:
            self.held.over()
        if not counters:
            return
        for noted in self.noted.values():
            notes.put(self.root, {key: note for key, note in noted.items() if note != self.first.get(key)}, self.function)
        notes.put(self.root, counted, self.function)
        notes.forget_entries(self.root, self.function, counters)

    def turn(self, stage: int, counters: frozenset[notes.Key]) -> None:
        """Before a stage's forward: what modules count is what this stage has counted, where a rank has several."""
        if self.held is not None:
            self.held.turn(stage)
        if self.stages > 1 and counters:
            before = {key: self.first[key] for key in counters if key in self.first}
            notes.put(self.root, before | self.noted.get(stage, {}), self.function)

    def turned(self, stage: int, counters: frozenset[notes.Key]) -> None:
        """After a stage's forward."""
        if self.parts is not None:
            self.parts.turned()
        if self.held is not None:
            self.held.turned(stage)
        if self.stages > 1 and counters:
            now = notes.notes(self.root, self.function)
            self.noted[stage] = self.noted.get(stage, {}) | {key: now[key] for key in counters if key in now}


class StageModule(nn.Module):
    """The computation of one stage, from received tensors to tensors to send.

    Args:
        cuts: the ways that microbatches go.
        fit: what units keep for their backward.

    skipped: microbatches of this step that the step function has left out of the backward.
    """

    def __init__(self, cuts: list[Cut], index: int, frame: Frame, fit: Fit = ALL_KEPT) -> None:
        super().__init__()
        self.cuts, self.index, self.frame, self.fit = cuts, index, frame, fit
        self.is_last = index == len(cuts[0].starts) - 1
        self.before = Boundary(cuts, index - 1) if index else None
        self.after = Boundary(cuts, index) if not self.is_last else None
        self.ranges = [cut.range_of(index) for cut in cuts]
        self.random = any(cut.trace.random for cut in cuts)
        self.draws = any(cut.trace.draws for cut in cuts)
        self.counters = frozenset().union(*(cut.trace.counters for cut in cuts))
        self.wanted = [cut.outgoing(index) for cut in cuts]
        self.microbatch = 0
        self.skipped: set[int] = set()

    def take(self, microbatch: int) -> None:
        """Which one `forward` runs; past what `nn.Module` does with any attribute, which takes long."""
        vars(self)["microbatch"] = microbatch

    def forward(self, *received: torch.Tensor) -> Any:
        """Runs the current microbatch.

        Args:
            received: the slots of the boundary to the previous stage; then the random state, if any is drawn. The first
                stage gets a number that it does not need.
        Returns:
            The scaled loss on the last stage, shape (), else the tensors to send.
        """
        step = self.frame.step
        if step is None:
            raise PipelineError("a stage was run outside a step")
        started = time.perf_counter()
        try:
            return self._forward(step, received)
        except Exception as error:
            step.failure = step.failure or error
            raise
        finally:
            step.seconds.setdefault(self.index, [0.0, 0.0])[0] += time.perf_counter() - started

    def _forward(self, step: Step, received: tuple[torch.Tensor, ...]) -> Any:
        way = step.ways[self.microbatch]
        trace, device = self.cuts[way].trace, self.frame.device
        values = {}
        if self.before is not None:
            orders = self.before.orders[way]
            for number, tensor in zip(self.before.numbers[way], received, strict=False):
                if number is None:
                    continue
                # What is changed in place must be a copy, for the received tensor is where this stage's backward ends.
                own = tensor.clone() if number in trace.mutated_values else tensor
                values[number] = own.permute(orders[number][1])
        slots = len(self.before.slots) if self.before is not None else 0
        if self.random:
            rng.set_state(step.states[self.microbatch] if self.index == 0 else received[slots], device)
        if self.draws:
            dice.start(step.seed, self.microbatch)
        args, kwargs = step.microbatches[self.microbatch]
        if trace.mutates_inputs:
            args, kwargs = with_cloned_tensors((args, kwargs))
        elif self.frame.stages > 1:  # what one stage puts into a dictionary is not yet there for the next
            args, kwargs = map_leaves(_itself, args), map_leaves(_itself, kwargs)
        forward = StageForward(trace, self.frame.gates, device, *self.ranges[way], values, self.wanted[way])
        forward.is_last = self.is_last
        if self.frame.stages > 1:
            forward.elsewhere = self.frame.local_units
        self.frame.turn(self.index, self.counters)
        if self.before is not None and self.before.rolled:
            forward.rolled.update(zip(self.before.rolls[way], map(dice.decode, received[-1]), strict=False))
        self.frame.attach(forward)
        self.frame.gates.watched(step.watch, self.microbatch)
        self.frame.gates.again, self.frame.gates.away = self.fit.again, self.fit.away
        if self.frame.blocks is not None:
            self.frame.blocks.turn(self.index, self.microbatch)
        try:
            with self.frame.offload.away() if self.frame.offload is not None else nullcontext():
                result = forward.run(step.function, args, kwargs)
        finally:
            self.frame.attach(None)
            self.frame.gates.watch = None
            self.frame.gates.again = self.frame.gates.away = frozenset()
            self.frame.turned(self.index, self.counters)
        if not self.is_last:
            return self._outgoing(forward, step, way)
        step.results[self.microbatch] = map_leaves(_detached, result, objects=True)
        return self._loss(forward, step)

    def _outgoing(self, forward: StageForward, step: Step, way: int) -> tuple[torch.Tensor, ...]:
        if self.after is None:
            return ()
        outgoing = []
        for number, slot in zip(self.after.numbers[way], self.after.slots, strict=True):
            if number is None:
                empty = torch.zeros(slot.shape, dtype=slot.dtype, device=self.frame.device)
                outgoing.append(empty.requires_grad_(slot.requires_grad and step.training))
                continue
            tensor, meta = forward.values.get(number), forward.trace.values[number].meta
            if tensor is None:
                raise TraceMismatch(f"stage {self.index} did not make value {number} that stage {self.index + 1} needs")
            facts = (tuple(tensor.shape), tensor.dtype)
            expects_gradient = meta.requires_grad and step.training
            if facts != (meta.shape, meta.dtype) or (step.training and tensor.requires_grad != expects_gradient):
                raise TraceMismatch(
                    f"value {number} after stage {self.index} is {list(tensor.shape)} {tensor.dtype} (gradient: "
                    f"{tensor.requires_grad}), recorded was {list(meta.shape)} {meta.dtype} ({meta.requires_grad})",
                    hint="shapes between stages must not depend on values: name the module around in `atomic`",
                )
            outgoing.append(tensor.permute(self.after.orders[way][number][0]).contiguous())
        if self.random:
            outgoing.append(rng.get_state(self.frame.device).to(self.frame.device))
        if self.after.rolled:
            states = torch.zeros(self.after.rolled, dice.SIZE, dtype=torch.uint8)
            for number, index in enumerate(self.after.rolls[way]):
                states[number] = dice.encode(forward.rolled[index])
            outgoing.append(states.to(self.frame.device))
        return tuple(outgoing) or (torch.zeros(1, device=self.frame.device),)

    def _loss(self, forward: StageForward, step: Step) -> torch.Tensor:
        if not step.training:
            if forward.losses:
                raise TraceMismatch(
                    "the step function calls model.backward(loss), which it did for no microbatch when it was recorded",
                    hint="leave out bad microbatches by values of the loss, not whole steps at the start",
                )
            return torch.zeros((), device=self.frame.device)
        if not forward.losses and forward.trace.reads:  # by its values: this microbatch is left out
            self.skipped.add(self.microbatch)
            return torch.zeros((), device=self.frame.device)
        if not forward.losses:
            raise TraceMismatch("the step function did not call model.backward(loss) as it did when it was recorded")
        losses = [loss.float() if loss.dtype.itemsize < 4 else loss for loss in forward.losses]
        loss = losses[0] if len(losses) == 1 and not losses[0].dim() else torch.stack(losses).sum()
        if not loss.requires_grad:
            raise PipelineError("the loss given to model.backward does not depend on any parameter")
        loss = loss * (step.scale * step.parts[self.microbatch])
        step.losses.append(loss.detach())
        return loss

    @contextmanager
    def turning_back(self, microbatch: int, keeper: Gatekeeper | None = None) -> Iterator[None]:
        """A context for the backward of a microbatch, or a part of it.

        Args:
            keeper: handles the calls of units that run again; None lets them pass.
        """
        step, blocks = self.frame.step, self.frame.blocks
        if step is not None and step.watch is not None:
            step.watch.backward(microbatch)
        with self.frame.gates.kept(keeper), nullcontext() if blocks is None else blocks.backward(self.index, microbatch):
            yield

    def examples(self) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
        """Inputs and outputs without values, for torch's schedules."""
        state = []
        if self.random:
            state = [torch.empty(rng.state_size(self.frame.device), dtype=torch.uint8, device="meta")]

        def likeness(boundary: Boundary) -> tuple[torch.Tensor, ...]:
            slots = boundary.slots
            made = [torch.empty(s.shape, dtype=s.dtype, device="meta").requires_grad_(s.requires_grad) for s in slots]
            rolled = [torch.empty(boundary.rolled, dice.SIZE, dtype=torch.uint8, device="meta")] if boundary.rolled else []
            return (*made, *state, *rolled) or (torch.empty(1, device="meta"),)

        inputs: tuple[torch.Tensor, ...] = (torch.empty(1, dtype=torch.int64, device="meta"),)
        if self.before is not None:
            inputs = likeness(self.before)
        outputs: tuple[torch.Tensor, ...] = (torch.empty((), device="meta", requires_grad=True),)
        if self.after is not None:
            outputs = likeness(self.after)
        return inputs, outputs


class ReplayStage(PipelineStage):
    """torch's stage around a `StageModule`.

    inseparable: why the backward is not split although the schedule asks for that; None while it is.
    """

    def __init__(self, module: StageModule, stages: int, group: dist.ProcessGroup) -> None:
        inputs, outputs = module.examples()
        self.module = module
        self.inseparable: Inseparable | None = None
        self._wanted = [one.requires_grad for one in inputs]
        self._later: dict[int, Callable[[], None]] = {}
        device = module.frame.device
        super().__init__(module, module.index, stages, device, input_args=inputs, output_args=outputs, group=group)

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Gradients go to the stage before where its outputs have some, zeros where there are none; torch 2.13 does that
        itself."""
        if TORCH >= (2, 13) or not self.has_backward or self.is_first:
            return super().get_bwd_send_ops(bwd_chunk_id)
        given = [info.buffer for info in self.args_recv_info[bwd_chunk_id]]
        if self.grad_send_info is None:
            to = [place.source for place in self.args_recv_info[0]]
            self.grad_send_info = [stage if wanted else None for stage, wanted in zip(to, self._wanted, strict=True)]
        self.bwd_cache[bwd_chunk_id] = tuple(
            None if stage is None or one is None else torch.zeros_like(one) if gradient is None else gradient
            for gradient, stage, one in zip(self.bwd_cache[bwd_chunk_id], self.grad_send_info, given, strict=True)
        )
        return super().get_bwd_send_ops(bwd_chunk_id)

    def forward_one_chunk(
        self, fwd_chunk_id: int, args: tuple[Any, ...], _kwargs: Any = None, save_forward_output: bool = False
    ) -> Any:
        """The forward of a microbatch; what it was given and has made are kept for its backward.

        torch's own looks through all tensors for a log, and hides an error of the user's behind one of its own.
        """
        given = args if self.is_first else self._received(fwd_chunk_id)
        self.module.take(fwd_chunk_id)
        output = self.module(*given)
        self.fwd_cache[fwd_chunk_id] = output if isinstance(output, tuple) else (output,), list(given)
        return output

    def _received(self, number: int) -> list[torch.Tensor]:
        """What the stage before has made of a microbatch; its gradients end here."""
        trains = self.has_backward and torch.is_grad_enabled()
        buffers: list[Any] = [place.buffer for place in self.args_recv_info[number]]
        return [one.requires_grad_(trains and wanted) for one, wanted in zip(buffers, self._wanted, strict=True)]

    def _gradients(self, number: int) -> list[Any]:
        """What the stage after has sent back for a microbatch."""
        return [place.buffer for place in self.grad_recv_info[number]]

    def set_local_fwd_input(self, prev_stage_outputs: Any, mb_index: int) -> None:
        """Takes what the stage before has made, which is on this rank."""
        whole = prev_stage_outputs if isinstance(prev_stage_outputs, tuple) else (prev_stage_outputs,)
        for place, made in zip(self.args_recv_info[mb_index], whole, strict=True):
            place.buffer = made.detach().requires_grad_(made.requires_grad)

    def set_local_bwd_input(self, next_stage_bwd_outputs: tuple[torch.Tensor | None, ...], mb_index: int) -> None:
        """Takes the gradients that the stage after has made, which is on this rank."""
        for place, gradient in zip(self.grad_recv_info[mb_index], next_stage_bwd_outputs, strict=True):
            if gradient is not None:
                place.buffer = gradient
            elif place.buffer is not None:
                place.buffer = torch.zeros_like(place.buffer)

    def clear_runtime_states(self) -> None:
        """Before a step: also drops what a failed one has left."""
        super().clear_runtime_states()
        self._later.clear()
        self.module.skipped.clear()

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False
    ) -> None:
        """Watches re-computed modules; gradients are sent in one piece of memory, which gloo and NCCL want.

        With `full_backward=False` the parameters' gradients are left to `backward_weight_one_chunk`, if they can be.
        """
        step = self.module.frame.step
        if step is None or not self.has_backward:
            return
        started = time.perf_counter()
        if not self.is_last and not any(tensor.requires_grad for tensor in self.fwd_cache[bwd_chunk_id][0]):
            _, inputs = self.fwd_cache.pop(bwd_chunk_id)  # nothing here is trained
            self.bwd_cache[bwd_chunk_id] = tuple(None for _ in inputs)
            return
        if self._is_skipped(bwd_chunk_id, step.ways[bwd_chunk_id]):
            _, inputs = self.fwd_cache.pop(bwd_chunk_id)
            self.bwd_cache[bwd_chunk_id] = tuple(torch.zeros_like(t) if t.requires_grad else None for t in inputs)
            return
        try:
            with self.module.turning_back(bwd_chunk_id, self):
                if full_backward or not self._backward_inputs(bwd_chunk_id, loss):
                    self._backward(bwd_chunk_id, loss)
        except Exception as error:
            step.failure = step.failure or _root(error)
            raise
        gradients = self.bwd_cache[bwd_chunk_id]
        self.bwd_cache[bwd_chunk_id] = tuple(None if g is None else g.contiguous() for g in gradients)
        step.seconds.setdefault(self.stage_index, [0.0, 0.0])[1] += time.perf_counter() - started

    def _is_skipped(self, number: int, way: int) -> bool:
        """Whether the step function has left a microbatch out, as the later stages tell by zeros alone: with infinite values
        the gradients of this stage would be not-a-number."""
        if self.module.cuts[way].trace.reads and not self.is_last:
            given = self._gradients(number)
            if not any(gradient is not None and gradient.count_nonzero() for gradient in given):
                self.module.skipped.add(number)
        return number in self.module.skipped

    def _backward(self, number: int, loss: Any) -> None:
        """The whole backward of a microbatch.

        torch's own keeps what it was given in closures, and so do the frames of an error: the graph, and in it connections.
        """
        outputs, inputs = self.fwd_cache.pop(number)
        if self.is_last:
            torch.autograd.backward(loss)
        else:
            both = zip(outputs, self._gradients(number), strict=True)
            pairs = [(tensor, gradient) for tensor, gradient in both if tensor.requires_grad]
            torch.autograd.backward([tensor for tensor, _ in pairs], [gradient for _, gradient in pairs])
        found = []
        for tensor in inputs:
            found.append(tensor.grad)
            tensor.grad = None
        self.bwd_cache[number] = tuple(found)

    def _backward_inputs(self, number: int, loss: Any) -> bool:
        """The first part of a microbatch's backward; False if it has to run as a whole."""
        outputs, inputs = self.fwd_cache[number]
        wanted = [tensor for tensor in inputs if tensor.requires_grad]
        made = [loss] if self.is_last else [tensor for tensor in outputs if tensor.requires_grad]
        try:
            if self.inseparable is not None:
                return False
            split = SplitBackward(made, wanted) if wanted else None
        except Inseparable as reason:
            self.inseparable = reason
            return False
        del self.fwd_cache[number]
        if self.is_last:
            given = [torch.ones_like(loss)]
        else:
            given = [g for tensor, g in zip(outputs, self._gradients(number), strict=True) if tensor.requires_grad]
        if split is None:  # no stage waits for this one: its whole backward can run later
            self.bwd_cache[number] = tuple(None for _ in inputs)
            self._later[number] = lambda: torch.autograd.backward(made, given)
            return True
        found = iter(split.run_inputs(given))
        self.bwd_cache[number] = tuple(next(found) if tensor.requires_grad else None for tensor in inputs)
        self._later[number] = split.run_parameters
        return True

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        """The second part of a microbatch's backward, if its first part has left one."""
        step, later = self.module.frame.step, self._later.pop(bwd_chunk_id, None)
        if step is None or later is None:
            return
        started = time.perf_counter()
        try:
            with self.module.turning_back(bwd_chunk_id, self):
                later()
        except Exception as error:
            step.failure = step.failure or _root(error)
            raise
        step.seconds.setdefault(self.stage_index, [0.0, 0.0])[1] += time.perf_counter() - started

    def unit_call(self, name: str, native: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A unit that is called in the backward: re-computation, which must not need another stage's parameters."""
        if name not in self.module.frame.local_units:
            raise PipelineError(
                f"an activation checkpoint re-runs {name!r}, which is on another stage",
                hint="name the checkpointed module in `atomic`",
            )
        return native(*args, **kwargs)


def _itself(leaf: Any) -> Any:
    return leaf


def _detached(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf


def _root(error: BaseException) -> Exception:
    while error.__cause__ is not None:
        error = error.__cause__
    return error if isinstance(error, Exception) else RuntimeError(str(error))
