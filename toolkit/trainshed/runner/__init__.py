"""Outside the container: places a job on hosts (processes here, or containers), watches it, brings home what it made.

    job file, flags --job.read()--> Job --layout.place()--> Run --backend.start()--> hosts
    hosts --watch.watch()--> Ending --verdict.judge()--> Verdict --collect, status, summary--> files, exit status

In Python, notebooks included:

    import trainshed
    done = trainshed.run("job.yaml", hyperparameters={"epochs": 3})
    done.status["TrainingJobStatus"], done.metrics, done.model

Standard dataclasses are fine here: unlike `train`, the runner starts once for a person and not on every node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .api import JobFailed, Training, find, make_job, predict, run, runs

__all__ = ["JobFailed", "Training", "find", "make_job", "predict", "run", "runs"]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})  # what is loaded late is there for whoever looks, too


def __getattr__(name: str) -> object:
    if name in __all__:
        from . import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
