"""Whether less or more of a metric is better, by the words of its name."""

from __future__ import annotations

import re

_LESS = frozenset(
    {"loss", "losses", "error", "err", "perplexity", "ppl", "wer", "cer", "mae", "mse", "rmse", "nll", "time", "seconds",
     "latency", "bytes", "memory"}
)  # fmt: skip
_MORE = frozenset(
    {"accuracy", "acc", "f1", "auc", "auroc", "precision", "recall", "bleu", "rouge", "score", "map", "iou", "dice", "r2",
     "reward", "throughput", "top1", "top5"}
)  # fmt: skip


def better(name: str) -> str:
    """`min` or `max`; "" where the name says neither, or both."""
    words = re.findall(r"[a-z]+[0-9]?", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower())
    if "per" in words:  # tokens_per_second
        return "max"
    less, more = not _LESS.isdisjoint(words), not _MORE.isdisjoint(words)
    return "" if less == more else "min" if less else "max"
