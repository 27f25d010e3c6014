"""The plan file: JSON that a person can read and edit, made by `trainshed plan` or by a job's first step.

version      of this format
model        fingerprint of the parameters' names and shapes: a plan fits one model
pipeline     ranks, virtual stages, schedule, microbatches that the prediction is for; "asked": more virtual stages, for
             which the model has too few parts
units        in the order of execution: unit, call, stage, milliseconds, MiB. To move a unit, change its `stage`
atomic       modules kept whole, with the reason
overrides    module -> stage, as the script or the job asked
boundaries   what is sent from each stage to the next, bytes for one microbatch
shared       parameters used by several stages: their gradients are summed
predicted    milliseconds of a step and of each stage; the bubble; memory of each stage
degrees      stages, tensor (ranks that divide each stage), context (ranks that divide sequences), replicas, sharded
             (replicas that parameters are sharded over), shard_optimizer_state: who holds what
divided      module -> what a rank of a tensor group has of it, or why it stays whole
considered   where degrees were chosen: all ways with their milliseconds and MiB, and why not
settings     where degrees were chosen: those of a job that uses its ranks so, as `pipe.init` takes them
notes        what limits this plan and what would help
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import nn

from trainshed.base.errors import shorten

from ..ground.errors import PlanError

VERSION = 1


@dataclass(frozen=True)
class PlanUnit:
    """One unit call: where it runs, what it costs (milliseconds for one microbatch, MiB) on one rank.

    parameters_mib: with gradients and optimizer states; divided_mib: what of that is a part of a tensor
        group's parameters. least_mib: of saved_mib, what is kept where the unit runs again in its backward; -1
        in plans of before, which do not tell.
    """

    unit: str
    call: int
    stage: int
    forward_ms: float = 0.0
    backward_ms: float = 0.0
    saved_mib: float = 0.0
    parameters_mib: float = 0.0
    divided_mib: float = 0.0
    least_mib: float = -1.0


@dataclass(frozen=True)
class Plan:
    """A partition with its reasons; see the module's text for the fields."""

    model: str
    pipeline: dict[str, Any]
    units: tuple[PlanUnit, ...]
    atomic: dict[str, str] = field(default_factory=dict)
    overrides: dict[str, int] = field(default_factory=dict)
    boundaries: tuple[dict[str, Any], ...] = ()
    shared: tuple[dict[str, Any], ...] = ()
    predicted: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    degrees: dict[str, Any] = field(default_factory=dict)
    divided: dict[str, str] = field(default_factory=dict)
    considered: tuple[dict[str, Any], ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    version: int = VERSION

    @property
    def stages(self) -> int:
        """Number of stages."""
        return self.units[-1].stage + 1

    @property
    def unit_names(self) -> frozenset[str]:
        """Modules that are not opened."""
        return frozenset(unit.unit for unit in self.units)

    def serves(self, ranks: int, virtual: int) -> bool:
        """Returns whether it is for a job that asks for `virtual` stages on each rank, of which there may be fewer."""
        made = self.pipeline if isinstance(self.pipeline, dict) else {}
        fewer = made.get("asked") == virtual and self.stages == ranks * made.get("virtual", 0)
        return self.stages == ranks * virtual or fewer

    def starts(self) -> tuple[int, ...]:
        """Position at which each stage starts."""
        return tuple(next(i for i, unit in enumerate(self.units) if unit.stage == stage) for stage in range(self.stages))

    def check(self, where: str = "the plan") -> Plan:
        """Itself.

        Raises:
            PlanError: stages do not follow each other.
        """
        expected = 0
        for before, unit in zip((None, *self.units), self.units, strict=False):
            if unit.stage not in (expected, expected + 1) or (before is None and unit.stage != 0):
                name = f"{unit.unit!r} (call {unit.call})"
                raise PlanError(
                    f"{where}: {name} is on stage {unit.stage}, after stage {expected}",
                    hint="units run in the order of the file, so stages must rise by steps of one from 0",
                )
            expected = unit.stage
        return self

    def to_json(self) -> str:
        """The file's text; the same plan gives the same text."""
        data = {"version": self.version, **{key: value for key, value in asdict(self).items() if key != "version"}}
        units = [json.dumps(unit) for unit in data.pop("units")]
        text = json.dumps({**data, "units": ["@"]}, indent=2)
        return text.replace('"@"', ",\n    ".join(units)) + "\n"

    def save(self, path: str) -> None:
        """Writes the file, whole or not at all."""
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        partial = f"{path}.{os.getpid()}.partial"
        with open(partial, "w", encoding="utf-8") as file:
            file.write(self.to_json())
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)


def load_plan(path: str) -> Plan:
    """Reads and checks a plan file.

    Raises:
        PlanError: it is missing or not a plan.
    """
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
    except OSError as error:
        raise PlanError(f"the plan file {path} cannot be read: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise PlanError(f"the plan file {path} is not JSON: line {error.lineno}: {error.msg}") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, a number of 5,000 digits, lists in lists in lists
        raise PlanError(f"the plan file {path} is not JSON: {error}") from None
    return plan_from(data, path)


def plan_from(data: Any, where: str) -> Plan:
    """A plan from its JSON form.

    Raises:
        PlanError: a field is missing or wrong.
    """
    if not isinstance(data, dict) or data.get("version") != VERSION:
        found = data.get("version") if isinstance(data, dict) else None
        raise PlanError(f"{where}: version = {shorten(repr(found))}: this release reads version {VERSION}")
    try:
        units = tuple(PlanUnit(**unit) for unit in data["units"])
        rest = {key: value for key, value in data.items() if key != "units"}
        for name in ("boundaries", "shared", "notes", "considered"):
            rest[name] = tuple(rest.get(name, ()))
        plan = Plan(units=units, **rest)
    except (KeyError, TypeError) as error:
        raise PlanError(f"{where}: not a plan: {shorten(str(error), 200)}") from None
    if not plan.units:
        raise PlanError(f"{where}: units is empty")
    return plan.check(where)


def model_fingerprint(root: nn.Module) -> str:
    """Depends on the names, shapes and types of the parameters, not on their values."""
    digest = hashlib.sha256()
    for name, parameter in root.named_parameters():
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}\n".encode())
    return digest.hexdigest()[:16]
