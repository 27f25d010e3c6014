"""Ways to run a wrapped model, one for each way to divide it among ranks: the settings that it is for, and its engine.

What does not go together is refused where settings are read, by the table in `contract/wire/combinations.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from trainshed.contract.wire.pipeline import PipelineSettings, check_combination

from .engine.context.context_steps import ContextEngine
from .engine.context.parted_steps import PartedContextEngine
from .engine.context.stage_blocks import StageBlocks
from .engine.stage_shards import StageShards
from .engine.tensor.divided_steps import TensorEngine
from .gather import plain
from .ground.shards import local
from .session import session
from .sharded import ShardedEngine
from .stages.planning import Planned
from .stages.stage_holding import StageHolding
from .stages.stage_parts import StageParts
from .stages.steps import Engine
from .tracing.subject import Backward

AnyEngine = Engine | ShardedEngine | TensorEngine | ContextEngine


@dataclass(frozen=True)
class EngineRequest:
    """What a wrapped model asks of its engine.

    attach: tells the model where its `backward` goes.
    pins: module -> stage, as the script sets it.
    overlap, average, buffers, bucket_bytes: see `steps.Engine`.
    """

    holding: StageHolding
    attach: Callable[[Backward | None], None]
    pins: dict[str, int]
    overlap: bool
    average: bool
    buffers: bool
    bucket_bytes: int

    def common(self) -> dict[str, Any]:
        """Arguments that all engines take."""
        kept = {"average": self.average, "buffers": self.buffers, "bucket_bytes": self.bucket_bytes}
        return {"holding": self.holding, "attach": self.attach, "loss_scale": _loss_scale, **kept}

    def joint(self) -> dict[str, Any]:
        """Arguments of those that run the whole model at once."""
        return {**self.common(), "on_parts": _hand_to_optimizer}


class Strategy(NamedTuple):
    """One way to run a model.

    wants: whether it is for a job's settings.
    engine: makes what runs the model.
    """

    wants: Callable[[PipelineSettings], bool]
    engine: Callable[[EngineRequest], AnyEngine]


def engine_for(asked: EngineRequest) -> AnyEngine:
    """The engine of the first strategy that is for the job.

    Raises:
        NotServed: the model was built without values, which does not go together with its settings.
    """
    settings = asked.holding.grid.settings
    if session.tape is not None:  # of a script that says so itself, whatever the setting
        settings = settings.replace(delayed_parameter_initialization=True)
        check_combination(settings, "delayed_initialization()")
    return next(one for one in STRATEGIES if one.wants(settings)).engine(asked)


def _divides_sequences(settings: PipelineSettings) -> bool:
    return settings.pipeline_parallel_degree == 1 and settings.context_parallel_degree > 1


def _divides_modules(settings: PipelineSettings) -> bool:
    """Without values there is no whole model to divide: it then runs as one stage, which makes its parts one by one. And
    stages alone keep masters of parts that are sharded."""
    one_stage = session.tape is not None or settings.has_sharded_halves
    return settings.pipeline_parallel_degree == 1 and settings.tensor_parallel_degree > 1 and not one_stage


def _divides_parameters(settings: PipelineSettings) -> bool:
    degrees = settings.pipeline_parallel_degree, settings.tensor_parallel_degree
    return degrees == (1, 1) and settings.sharded_data_parallel_degree > 1


def _in_stages(asked: EngineRequest) -> Engine:
    holding, grid, wanted = asked.holding, asked.holding.grid, session.tensor_marks.wants
    settings = grid.settings
    if settings.tensor_parallel_degree > 1 and settings.pipeline_parallel_degree == 1:
        grid.run_groups_as_stages()
    if settings.sharded_data_parallel_degree > 1:
        holding.shards = StageShards(holding.root, grid, _hand_to_optimizer)
    if settings.tensor_parallel_degree > 1:
        holding.parts = StageParts(holding.root, grid, _hand_to_optimizer, wanted)
    if settings.context_parallel_degree > 1:
        lent = holding.parts.lent if holding.parts is not None else nullcontext
        holding.blocks = StageBlocks(holding.root, grid, session.context_marks.says, lent)
    planned = None if session.planned is None else Planned(session.planned, wanted, session.context_marks.says)
    return Engine(
        **asked.common(),
        between=_between_steps,
        planned=planned,
        pins=asked.pins,
        overlap=asked.overlap,
        states=_state_bytes,
        tape=session.tape,
    )


# The first one that wants a job runs it; what divides nothing runs as one stage.
STRATEGIES = (
    Strategy(
        lambda settings: _divides_sequences(settings) and settings.tensor_parallel_degree > 1,
        lambda asked: PartedContextEngine(
            **asked.joint(), wanted=session.tensor_marks.wants, marks=session.context_marks.says
        ),
    ),
    Strategy(_divides_sequences, lambda asked: ContextEngine(**asked.joint(), marks=session.context_marks.says)),
    Strategy(_divides_modules, lambda asked: TensorEngine(**asked.joint(), wanted=session.tensor_marks.wants)),
    Strategy(_divides_parameters, lambda asked: ShardedEngine(**asked.joint(), tape=session.tape)),
    Strategy(lambda _: True, _in_stages),
)


@contextmanager
def _between_steps() -> Iterator[None]:
    """Within the block no step runs, as far as the model is concerned."""
    before, session.in_step = session.in_step, False
    try:
        yield
    finally:
        session.in_step = before


def _loss_scale() -> float:
    return session.optimizer.loss_scale if session.optimizer is not None else 1.0


def _state_bytes() -> int:
    """Of what the optimizer keeps on this rank."""
    entries = plain(session.optimizer).state.values() if session.optimizer is not None else ()
    tensors = [local(one) for entry in entries for one in entry.values() if isinstance(one, torch.Tensor)]
    return sum(one.numel() * one.element_size() for one in tensors)


def _hand_to_optimizer(names: Mapping[int, str], shards: Mapping[str, nn.Parameter]) -> None:
    if session.optimizer is not None:
        session.optimizer.follow(names, shards)
