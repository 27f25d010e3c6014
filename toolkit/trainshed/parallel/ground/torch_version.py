"""Which torch this is, for what its versions do in different ways."""

from __future__ import annotations

import torch

TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
