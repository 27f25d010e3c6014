"""Translations of GPT-Neo's state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .identity import translation


def __getattr__(name: str) -> Callable[..., Any]:
    return translation(__name__, name)
