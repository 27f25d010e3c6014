"""Metrics of a training: write them, read them.

    from trainshed import metrics
    metrics.log(loss=0.25, step=10)
    metrics.log(samples=metrics.Image(array, caption="a cat"), step=10)

Imports nothing heavy; any process of a job may use it.

    points       the one format; reading: all that a run has measured, as curves and in a few numbers
    scraper      searches a log by the job's definitions (capture), and as programs print (formats); searching: its process
    media        pictures, tables and the like as files; media_files writes, media_reading finds,
    shapes       reads lines that differ in their digits alone by one expression
    loggers      hooks into trainers; event_files and tensorboard: files of others
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .media import Audio, Figure, Histogram, Image, Table, Text
    from .writing import MetricsWriter

    log = MetricsWriter().log

__all__ = ["Audio", "Figure", "Histogram", "Image", "Table", "Text", "log"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "log":
        from .writing import MetricsWriter

        globals()[name] = MetricsWriter().log
        return globals()[name]
    from . import media

    return getattr(media, name)
