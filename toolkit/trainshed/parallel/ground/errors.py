"""Errors of a pipeline.

PipelineError             one line for a person
|- PlanError              no partition satisfies what was asked, or a plan file does not fit the model
|  |- TooFewParts         the model has fewer parts than stages are asked for
|  `- SeveralPasses       without gradients the model is called more often than the cut has room for: it goes on call by call
|- TorchLacks             somebody's torch has not what a feature needs; names it, and the versions that are supported
|- TraceMismatch          a forward did something else than the recorded one; stops before a wrong gradient
|- Different              the ranks of a pipeline do different things, and all of them have seen it
`- NotServed              part of Amazon's API that is not supported; names the alternative
"""

from __future__ import annotations

from trainshed.contract.wire.pipeline import NotServed, PipelineError

__all__ = [
    "Different",
    "NotServed",
    "PipelineError",
    "PlanError",
    "SeveralPasses",
    "TooFewParts",
    "TorchLacks",
    "TraceMismatch",
]


class PlanError(PipelineError):
    """No partition satisfies what was asked, or a plan file does not fit the model."""


class TraceMismatch(PipelineError):
    """A forward differs from the recorded one."""


class TooFewParts(PlanError):
    """The model has fewer parts that can be a stage than stages are asked for."""


class SeveralPasses(PlanError):
    """A step function calls the model again where a stage that is over would have to compute once more; on all ranks."""


class TorchLacks(PipelineError, RuntimeError):
    """This torch has not what a feature needs."""


class Different(PipelineError):
    """The ranks of a pipeline do different things, and all of them have seen it."""
