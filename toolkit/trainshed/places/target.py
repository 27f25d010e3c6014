"""A job's options of a place: a mapping of its file, read field by field."""

from __future__ import annotations

from typing import Any

from trainshed.base.errors import JobError, Problem, did_you_mean
from trainshed.contract.hyperparameters import SpelledFloat
from trainshed.runner.job.job import Job
from trainshed.runner.job.places import Place

TYPES: dict[type, str] = {
    str: "text",
    int: "a whole number",
    bool: "true or false",
    dict: "names and values",
    list: "a list",
}


class PlaceFields:
    """One mapping (`kubernetes`, `ssh`) with everything that is found wrong, told together at the end."""

    def __init__(self, job: Job, place: Place, known: tuple[str, ...]) -> None:
        self.name, self.values = place.name, plain(job.places.get(place.name, {}))
        self.problems: list[Problem] = []
        for field in self.values:
            if field not in known:
                self.problem(field, "is not a known field", did_you_mean(field, known) or f"it has {', '.join(known)}")

    def problem(self, field: str, message: str, hint: str = "") -> None:
        """Something is wrong with a field (`kubernetes.volumes`), or with one of the job's own (`image`)."""
        own = field if field.startswith("job.") else f"{self.name}.{field}"
        self.problems.append(Problem("the job", message, own.removeprefix("job."), suggestion=hint))

    def get(self, field: str, kind: type, default: Any) -> Any:
        """A field of one type; the default where it is absent or wrong."""
        value = self.values.get(field)
        if value is None:
            return default
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            self.problem(field, f"must be {TYPES[kind]}")
            return default
        return value

    def done(self) -> None:
        """Raises JobError with every problem."""
        if self.problems:
            raise JobError(self.problems)


def plain(value: Any) -> Any:
    """Values as YAML and JSON know them; a float loses its spelling."""
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return float(value) if isinstance(value, SpelledFloat) else value
