"""Programs that declare themselves: `<program>.algorithm.yaml` beside a program says what it takes and what it prints.

From it come the program's command line and `--help`, the check of a job before anything is fetched or installed, the tables
of documentation, `trainshed describe`, and the request that registers it with SageMaker. Each module knows those before it:
values (one hyperparameter), declaration (reads the file), checking (a job against it), about (for people), request, shelf
(where they are), looking (at data, without training), own_script and predictions (what a model makes of data).
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

ENDING = ".algorithm.yaml"


def declaration_of(program: str, places: Iterable[str]) -> str:
    """Path of a program's declaration in the first of these folders that has one, "" where none does."""
    name = os.path.splitext(program)[0] + ENDING
    return next((path for place in places if place and os.path.isfile(path := os.path.join(place, name))), "")
