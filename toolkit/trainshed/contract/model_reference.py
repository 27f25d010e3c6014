"""Which version a person means: `digits` (the newest one), `digits:3`, `digits@champion`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trainshed.base.errors import TrainshedError

SCHEME = "model://"
RULE = "up to 63 letters, digits, '.', '_' and '-', a letter or digit first"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_STAGE = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_NUMBER = re.compile(r"[1-9][0-9]{0,5}")


@dataclass(frozen=True)
class ModelReference:
    """A model, and one of `stage` and `number` where one was named; else the newest version is meant."""

    name: str
    stage: str = ""
    number: int = 0

    def __str__(self) -> str:
        return self.name + (f"@{self.stage}" if self.stage else f":{self.number}" if self.number else "")


def is_name(text: str) -> bool:
    """Returns whether a model or a tag can be named so."""
    return _NAME.fullmatch(text) is not None


def is_stage(text: str) -> bool:
    """Returns whether a stage can be named so."""
    return _STAGE.fullmatch(text) is not None


def reference_of(text: str) -> ModelReference:
    """Reads a reference, with or without `model://`. Raises ValueError with what is wrong with it."""
    plain = text.removeprefix(SCHEME)
    name, at, stage = plain.partition("@")
    number = ""
    if not at:
        name, colon, number = plain.partition(":")
        if colon and not _NUMBER.fullmatch(number):
            raise ValueError(f"{number!r} is not a version: it must be a number from 1 on, like {name or 'NAME'}:3")
    if not is_name(name):
        raise ValueError(f"{name!r} is not a valid model name: {RULE}")
    if at and not is_stage(stage):
        raise ValueError(f"{stage!r} is not a valid stage name: a small letter, then letters, digits, '_' and '-'")
    return ModelReference(name, stage, int(number or 0))


def meant_by(address: str) -> ModelReference:
    """As `reference_of`, for what was checked before. Raises TrainshedError."""
    try:
        return reference_of(address)
    except ValueError as error:
        raise TrainshedError(f"{address}: {error}") from None
