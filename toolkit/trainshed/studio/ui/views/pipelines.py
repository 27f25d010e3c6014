"""Pipelines of steps: `trainshed steps status` with its picture, live."""

from __future__ import annotations

from collections.abc import Sequence

from trainshed.studio.batches.folder import COMPLETED, FAILED, STOPPED
from trainshed.studio.steps import running
from trainshed.studio.steps.drawing import WAITING, Box
from trainshed.studio.steps.steps_folder import SKIPPED, StepsFolder
from trainshed.studio.steps.steps_plan import TUNE

from .batches import Batches, Page, Row
from .parts import box, graph, link, moment, pill, table

_HEAD = ("step", "kind", "state", "in words", "needs", "detail")


class Pipelines(Batches[StepsFolder]):
    """The pipelines of the runs that are shown."""

    folder, ends = StepsFolder, running.end
    name, head, starts = "pipelines", ("steps", "began"), "trainshed steps run PIPELINE.yaml"
    stop = "Its runs are asked to end, too. The same `trainshed steps run` goes on with it."

    def row(self, folder: StepsFolder) -> tuple[object, str, Row]:
        """How many of its steps are over, and when it began."""
        about, boxes = folder.about(), running.standing(folder)
        began = about.get("began")
        over = sum(one.state in (COMPLETED, SKIPPED) for one in boxes)
        reused = sum(one.cached for one in boxes)
        how = f"{over} of {len(boxes)} over" + (f", {reused} reused" if reused else "")
        return about.get("name"), _state(boxes, folder), (how, moment(began) if isinstance(began, float) else "")

    def shown(self, key: str, folder: StepsFolder) -> Page:
        """Its steps, as a graph and in words."""
        boxes, about = running.standing(folder), folder.about()
        edges = [(need, one.name, "") for one in boxes for need in one.needs]
        drawn = [box(one.name, one.name, _lines(one), state=one.state, link=self._link(one)) for one in boxes]
        rows = [
            (link(one.name, self._link(one)), one.kind, pill(one.state), one.words, ", ".join(one.needs), one.detail)
            for one in boxes
        ]
        params = about.get("params")
        given = params.items() if isinstance(params, dict) else ()
        facts = [*((f"{name} (parameter)", value) for name, value in given), ("file", about.get("file"))]
        return (
            about.get("name"),
            _state(boxes, folder),
            facts,
            [graph("Steps", drawn, edges), table("Each step", _HEAD, rows)],
        )

    def _link(self, one: Box) -> str:
        if one.run and one.kind == TUNE:
            return f"#/tunings/{self.known.key_of(one.run)}"
        return self.known.address(one.run) if one.run else ""


def _state(boxes: Sequence[Box], folder: StepsFolder) -> str:
    """In the words of a run's status."""
    if folder.worker:
        return "InProgress"
    states = {one.state for one in boxes}
    if FAILED in states:
        return FAILED
    return COMPLETED if states <= {COMPLETED, SKIPPED} else STOPPED


def _lines(one: Box) -> list[str]:
    return [one.kind, one.words if one.state != WAITING else "waiting", one.detail]
