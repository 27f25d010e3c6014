"""Settings of torch's compiler that keep a training run what it was, only faster."""

from __future__ import annotations

import logging
import re

from .messages import say


class _OneLine(logging.Filter):
    """Tells in one line that a frame stays eager; torch itself prints its whole traceback."""

    def __init__(self) -> None:
        super().__init__()
        self.said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        if "WON'T CONVERT" not in str(record.msg):
            return True
        try:
            lines = [line.strip() for line in record.getMessage().splitlines() if line.strip()]
        except (TypeError, ValueError):
            return True
        # Below the traceback stand the exception, the user's code and advice about logging.
        causes = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Unsupported|Violation)\b", line)]
        text = f"{lines[0].replace(chr(39), '')}: {(causes or lines)[-1]}"[:300]
        if text not in self.said:
            self.said.add(text)
            say(f"stays eager: {text}", every_rank=True)
        return False


def configure() -> None:
    """Once in a process, before anything is compiled."""
    import torch._dynamo
    import torch._inductor.config

    config = torch._dynamo.config
    config.suppress_errors = True  # what cannot be captured runs eagerly
    logging.getLogger("torch._dynamo.convert_frame").addFilter(_OneLine())
    # Dropout draws the numbers that it would have drawn.
    torch._inductor.config.fallback_random = True
    # transformers logs a warning inside GPT-2's forward, once; for the compiler that is a break in the graph.
    for name in ("warning_once", "info_once"):
        function = getattr(logging.Logger, name, None)
        if function is not None:
            getattr(config, "ignore_logging_functions", set()).add(function)
