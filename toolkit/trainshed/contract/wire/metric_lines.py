"""How a log names its metrics: what the setting `metrics` may ask for, and the words without which nothing is searched."""

from __future__ import annotations

PREFIX = "metric "  # of a line that any program may print: `metric loss=0.125 step=10`
# `auto` looks for all formats, `off` for `metric ...` lines alone.
FORMATS = ("auto", "off", "hf", "lightning", "keras", "json", "kv", "tqdm")
# A block of lines with metrics of one of these formats has one of these texts.
SIGNS = (PREFIX.encode(), b"loss", b"acc", b"eval_", b"Epoch ")
