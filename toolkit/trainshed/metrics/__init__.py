"""Metrics of a training: write them, read them.

    from trainshed import metrics
    metrics.log(loss=0.25, step=10)

Imports nothing heavy; any process of a job may use it.

    points       the one format; reading: all that a run has measured, as curves and in a few numbers
    scraper      searches a log by the job's definitions (capture), and as programs print (formats); searching: its process
    shapes       reads lines that differ in their digits alone by one expression
    loggers      hooks into trainers; event_files and tensorboard: files of others
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .writing import Writer

    log = Writer().log

__all__ = ["log"]


def __getattr__(name: str) -> object:
    if name != "log":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .writing import Writer

    globals()[name] = Writer().log
    return globals()[name]
