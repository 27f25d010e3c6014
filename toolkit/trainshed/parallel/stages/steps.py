"""Runs steps: prepares, schedules the microbatches, sums gradients, checks."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch

from ..delayed.tape import Tape
from ..engine.alarm import Alarm
from ..engine.batch import Microbatch, Ran, digest, parts_of
from ..engine.checking import agree_with_replicas, check_gradients, meet, refuse_hooks, report, same_batch
from ..engine.object_collectives import STEP
from ..engine.placeholder_batches import empties, supply
from ..engine.placement import broadcast_buffers
from ..engine.tensor.division import in_words
from ..ground.errors import PipelineError, SeveralPasses, TraceMismatch
from ..plan.plan_file import Plan
from ..tracing import host_rng as dice
from ..tracing import rng
from ..tracing.captured_values import name_of
from ..tracing.subject import Backward
from .planning import Planned
from .preparing import Preparation, Prepared
from .stage import Step
from .stage_holding import StageHolding
from .verifier import Verifier

# The training step after which measured times are shown against the plan: caches are warm by then.
_REPORTED = 4
# Training steps from the first one on in which replicas with the same batch are noticed: they compute one thing twice.
_LOOKED_AT = 3


class _Refused(Exception):
    """An error that all ranks raise."""

    def __init__(self, error: PipelineError) -> None:
        self.error = error


class Engine:
    """The pipeline of one model on one rank.

    Args:
        holding: of the user's model.
        attach: tells the model that the user sees where its `backward` goes.
        between: within this context each call of the model is a step of its own.
        loss_scale: gives the factor of the loss.
        planned: what a process that only makes a plan has to know.
        pins: module -> stage, as set by `set_partition`; read at the first step.
        average: whether to divide each microbatch's loss by their number.
        overlap: whether to sum gradients over replicas during the last microbatch's backward.
        buffers: whether replicas take the buffers of replica 0 before each training step.
        bucket_bytes: bytes of gradients that are summed over replicas at once.
        states: tells how many bytes the optimizer keeps.
        tape: tells the values of parameters that the model was built without.
    """

    def __init__(
        self,
        holding: StageHolding,
        attach: Callable[[Backward | None], None],
        *,
        between: Callable[[], AbstractContextManager[None]],
        loss_scale: Callable[[], float],
        planned: Planned | None,
        pins: dict[str, int],
        average: bool,
        overlap: bool,
        buffers: bool,
        bucket_bytes: int,
        states: Callable[[], int],
        tape: Tape | None = None,
    ) -> None:
        self.steps = 0
        self._alarm = Alarm(holding.grid)
        self._calls = 0
        self._same_batches = 0
        self._grid = holding.grid
        self._holding = holding
        self._root = holding.root
        self._between = between
        self._said = {""}
        self._apart: set[tuple[Callable[..., Any], str]] = set()
        self._loss_scale = loss_scale
        self._average = average
        self._buffers = buffers
        self._preparation = Preparation(
            holding,
            attach,
            planned=planned,
            pins=pins,
            overlap=overlap,
            bucket_bytes=bucket_bytes,
            states=states,
            tape=tape,
        )
        self._verifier = Verifier(holding, self._preparation, attach, loss_scale=loss_scale, average=average)

    @property
    def plan(self) -> Plan | None:
        """The plan; None before the first step unless one was given."""
        return self._preparation.plan

    @plan.setter
    def plan(self, plan: Plan) -> None:
        self._preparation.plan = plan

    def run(
        self,
        function: Callable[..., Any],
        microbatches: list[Microbatch],
        rows: Callable[[Microbatch], int | None] | None = None,
    ) -> Ran:
        """Returns what `function` returned for each microbatch, on every rank of the pipeline. Collective.

        Args:
            rows: tells how many rows a microbatch has, by which its loss counts.

        Raises:
            PipelineError: the step cannot be planned or run as recorded, or another rank was lost.
        """
        self._alarm.check()
        with ExitStack() as whole:
            try:
                if self._holding.shards is not None:
                    whole.enter_context(self._holding.shards.gathered())
            except RuntimeError as error:
                raise self._stopped(error) from error
            return self._run(function, microbatches, rows)

    def _run(
        self,
        function: Callable[..., Any],
        microbatches: list[Microbatch],
        rows: Callable[[Microbatch], int | None] | None,
    ) -> Ran:
        grid = self._grid
        rolled = dice.get_state()
        mode = f"{name_of(function)} {self._root.training} {torch.is_grad_enabled()}"
        batch = digest(microbatches) if len(grid.company_ranks) > 1 else 0
        try:
            known = self._preparation.recall(function, microbatches)
        except Exception as error:  # of an attribute that cannot be read, on this rank
            raise self._stopped(error) from error
        try:
            own = dice.seed_of(rolled, self._calls) if grid.place.pipeline == 0 else 0  # the first rank's counts
            met = meet(grid, STEP, mode, batch, own, empties(microbatches), known)
            seed, known = met.seed, met.record
            if met.lacking:
                microbatches = supply(grid, microbatches)
                known = self._preparation.recall(function, microbatches)
                known = meet(grid, STEP, mode, digest(microbatches), record=known).record
        except RuntimeError as error:
            raise self._stopped(error) from error
        self._calls += 1
        try:
            parts = parts_of(microbatches, rows)
            if (function, mode) not in self._apart:
                try:
                    return Ran(self._step(function, microbatches, parts, seed, known, rolled), parts)
                except _Refused as refused:
                    if not isinstance(refused.error, SeveralPasses):
                        raise
                    self._apart.add((function, mode))
            return Ran(self._call_by_call(function, microbatches, seed, rolled), parts)
        except _Refused as refused:
            raise refused.error from refused.error.__cause__
        except Exception as error:
            explained = self._stopped(error)
            if explained is error:
                raise
            raise explained from error

    def _call_by_call(
        self, function: Callable[..., Any], microbatches: list[Microbatch], seed: int, rolled: dice.State
    ) -> list[Any]:
        """What `function` returns for each microbatch, each of its calls of the model by itself: the stages of one call are
        over when the next one begins. Without gradients nothing else is lost than the time in which stages wait."""
        results = []
        try:
            with self._between():
                for number, (args, kwargs) in enumerate(microbatches):
                    dice.start(seed, number)
                    results.append(function(*args, **kwargs))
        finally:
            dice.set_state(rolled)
        return results

    def _stopped(self, error: Exception) -> Exception:
        """Why the step failed; the other ranks are told."""
        mixed = in_words(error) if self._holding.parts is not None else None
        explained = mixed or self._alarm.explain(error)
        self._preparation.forget()
        if self._holding.blocks is not None:
            self._holding.blocks.let_go()
        if mixed is not None:  # this rank's own error, in other words: the others are told
            mixed.__cause__ = error
        self._alarm.ring(explained, mixed or error)
        return explained

    def _step(
        self,
        function: Callable[..., Any],
        microbatches: list[Microbatch],
        parts: list[float],
        seed: int,
        known: int,
        rolled: dice.State,
    ) -> list[Any]:
        grid = self._grid
        try:
            prepared, ways = self._preparation.prepare(function, microbatches, seed, known)
        except PipelineError as error:
            if isinstance(error, TraceMismatch):
                raise
            raise _Refused(error) from error  # on all ranks: the pipeline goes on if the script does
        verified = self._verifier.due(prepared)
        if prepared.training:
            if len(grid.replica_ranks) > 1:
                verified = agree_with_replicas(grid, *self._preparation.alike(), verified)
                self._look_at_replicas(microbatches)
            if self._buffers:
                broadcast_buffers(self._root, grid)
            refuse_hooks(self._root, prepared.ways)
        scale = (1 / len(microbatches) if self._average else 1.0) * self._loss_scale()
        counted = parts if self._average else [1.0] * len(parts)
        step = Step(function, microbatches, ways, prepared.training, scale, counted, seed)
        after = self._draw_states(prepared, step)
        check = self._verifier.begin(prepared, step) if verified else None
        started = time.perf_counter()
        self._preparation.frame.begin(function, prepared.counters, prepared.kept)
        try:
            self._run_schedule(prepared, step, after)
        finally:
            if prepared.draws:
                dice.set_state(rolled)
        if prepared.training:
            self._finish(prepared, step, started)
        results = [step.results[number] for number in sorted(step.results)] if step.results else None
        frame, last = self._preparation.frame, grid.pipeline_ranks[grid.seat(prepared.last)]
        if results is not None and prepared.tallies:
            results.append(list(frame.end(prepared.last, prepared.tallies).items()))
        results = prepared.post.share(results, last, grid.pipeline_group, grid.device)
        tallied: list[Any] = []
        if prepared.tallies:
            *results, tallied = results
        frame.over(prepared.counters, dict(tallied))
        if check is not None:
            check.compare(results)
        if prepared.training:
            self._holding.step_ended(self.steps, verified)
        return results

    def _look_at_replicas(self, microbatches: list[Microbatch]) -> None:
        """Says so once where all replicas are given the same from the first step on. Collective over the replicas."""
        replicas = len(self._grid.batches[0])
        if replicas == 1 or self.steps >= _LOOKED_AT or self._same_batches < self.steps:
            return
        self._same_batches += same_batch(self._grid, microbatches)
        if self._same_batches == _LOOKED_AT and self._grid.rank == 0:
            print(
                f"warning: all {replicas} replicas were given the same batches in the first {_LOOKED_AT} steps, and all "
                "compute the same: share the data out by dp_rank() of dp_size(), for example with DistributedSampler(data, "
                "num_replicas=dp_size(), rank=dp_rank())",
                flush=True,
            )

    def _run_schedule(self, prepared: Prepared, step: Step, after: torch.Tensor | None) -> None:
        """Forward and backward of all microbatches; gradients are those of this rank alone afterwards.

        Args:
            after: the state that random generators get; None leaves them as they are.
        """
        frame, sync = self._preparation.frame, self._preparation.sync
        parts, blocks = self._holding.parts, self._holding.blocks
        frame.step = step
        if prepared.training and sync is not None:
            sync.begin(prepared.expected(step.ways))
        try:
            with ExitStack() as together:
                for one in (parts, blocks):
                    if one is not None:
                        together.enter_context(one.running())
                prepared.schedule.run()
            self._compare_ranks(step)
        except Exception as error:
            if step.failure is None or step.failure is error:
                raise
            raise step.failure from step.failure.__cause__
        finally:
            frame.step = None
            if step.watch is not None:
                step.watch.close()
            if after is not None:
                rng.set_state(after, self._grid.device)
            if sync is not None:
                sync.abandon()

    def _compare_ranks(self, step: Step) -> None:
        """Ranks that divide modules or sequences have run the same."""
        parts, blocks = self._holding.parts, self._holding.blocks
        losses = [float(loss) for loss in step.losses] if parts is not None or blocks is not None else []
        try:
            if parts is not None:
                parts.compare(losses)
            line = blocks.compare(losses) if blocks is not None else ""
        except PipelineError:
            self._holding.forget_gradients()
            raise
        if line not in self._said and self._grid.rank == 0 and step.training:
            print(line, flush=True)
            self._said.add(line)

    def _draw_states(self, prepared: Prepared, step: Step) -> torch.Tensor | None:
        """Gives the step its random states: one number from the generator decides them, for any number of stages.

        Returns:
            The state of the generators after the step; None if the forward draws no random numbers.
        """
        if not prepared.random:
            return None
        seed = int(torch.randint(0, 2**62, (1,)))
        for one in (self._holding.parts, self._holding.blocks):
            if one is not None:
                seed = one.agreed_seed(seed)
        device = self._grid.device
        step.states = [rng.state_of_seed(seed + number, device) for number in range(len(step.microbatches))]
        return rng.get_state(device)

    def _finish(self, prepared: Prepared, step: Step, started: float) -> None:
        """Checks the gradients and sums them over stages and replicas."""
        sync = self._preparation.sync
        if sync is None:
            return
        taken = [prepared.ways[number] for number in dict.fromkeys(step.ways)]
        if not all(way.checked for way in taken):
            check_gradients(self._grid, taken, sync, prepared.schedule.inseparable(), prepared.schedule.skipped())
        sync.finish()
        self.steps += 1
        several = self._grid.world > 1
        if self.steps == _REPORTED and self.plan is not None and several and self._grid.place.replica == 0:
            seconds = time.perf_counter() - started
            report(self._grid, self.plan, seconds, len(step.microbatches), step.seconds)
