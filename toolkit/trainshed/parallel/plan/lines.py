"""The plan and the measured step as tables for a job's log."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from .plan_file import Plan


def assignment_lines(plan: Plan) -> list[str]:
    """Which units are on which stage, one line a stage."""
    lines = ["Partition assignments:"]
    for stage in range(plan.stages):
        names = [unit.unit + (f" (call {unit.call})" if unit.call else "") for unit in plan.units if unit.stage == stage]
        text = ", ".join(names) if len(names) <= 4 else f"{names[0]} ... {names[-1]} ({len(names)} units)"
        lines.append(f"  stage {stage}: {text}")
    lines += [f"  {entry['parameter']} is shared by stages {entry['stages']}" for entry in plan.shared]
    return lines + [f"  note: {note}" for note in plan.notes]


def predicted_lines(plan: Plan) -> list[str]:
    """Says what the plan predicts of each stage, for one microbatch, and of a step."""
    lines = ["stage  forward ms  backward ms  memory MiB"]
    for entry in plan.predicted["stages"]:
        lines.append(
            f"{entry['stage']:5d}  {entry['forward_ms']:10.2f}  {entry['backward_ms']:11.2f}  {entry['memory_mib']:10.1f}"
        )
    return [*lines, f"step: {plan.predicted['step_ms']:.2f} ms, of which ranks wait {100 * plan.predicted['bubble']:.0f} %"]


def divided_lines(plan: Plan) -> list[str]:
    """Says what tensor groups divide, kinds of modules with the same parts in one line; nothing without groups."""
    tensor = plan.degrees.get("tensor", 1)
    if tensor == 1:
        return []
    lines = [f"Each of {tensor} ranks of a tensor group has:"]
    alike: dict[tuple[str, str], list[str]] = {}
    for module, what in plan.divided.items():
        alike.setdefault((re.sub(r"\d+", "N", module), what), []).append(module)
    for (pattern, what), modules in alike.items():
        lines.append(f"  {modules[0] if len(modules) == 1 else f'{pattern} ({len(modules)})'}: {what}")
    return lines


def whole_lines(stages: Mapping[int, tuple[str, Sequence[str]]]) -> list[str]:
    """The stages of a zero-bubble pipeline that do not split their backward, one line a stage.

    Args:
        stages: stage -> reason, names of the parameters that it is because of.
    """
    lines = []
    for stage, (reason, names) in sorted(stages.items()):
        which = f": {names[0]}" if names else ""
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        lines.append(f"stage {stage} runs its whole backward at once, its bubble is larger: {reason}{which}{more}")
    return lines


def comparison_lines(plan: Plan, step_ms: float, busy_ms: Sequence[tuple[int, float, float]]) -> list[str]:
    """Predicted against measured.

    Args:
        step_ms: measured milliseconds of one training step.
        busy_ms: (stage, forward, backward) milliseconds measured for one microbatch.
    """
    predicted = plan.predicted
    lines = ["stage  forward ms (plan)  backward ms (plan)"]
    stages = {entry["stage"]: entry for entry in predicted.get("stages", [])}
    for stage, forward, backward in sorted(busy_ms):
        entry = stages.get(stage, {"forward_ms": 0.0, "backward_ms": 0.0})
        lines.append(
            f"{stage:5d}  {forward:10.2f} ({entry['forward_ms']:.2f})  {backward:11.2f} ({entry['backward_ms']:.2f})"
        )
    lines.append(f"step: {step_ms:.2f} ms measured, {predicted.get('step_ms', 0.0):.2f} ms planned")
    return lines
