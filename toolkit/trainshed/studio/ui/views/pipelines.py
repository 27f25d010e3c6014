"""Pipelines of steps: `trainshed steps status` with its picture, live."""

from __future__ import annotations

from collections.abc import Sequence

from trainshed.base.errors import TrainshedError
from trainshed.studio.batches.folder import COMPLETED, FAILED, STOPPED
from trainshed.studio.steps import running
from trainshed.studio.steps.drawing import WAITING, Box
from trainshed.studio.steps.steps_folder import SKIPPED, StepsFolder
from trainshed.studio.steps.steps_plan import TUNE

from . import tunings
from .batches import batches
from .kind import End, Kind
from .parts import Part, box, graph, is_live, link, moment, pill, table, view

ADDRESS = "#/pipelines/"
_STOP = "Its runs are asked to end, too. The same `trainshed steps run` goes on with it."


class Pipelines(Kind):
    """The pipelines of the runs that are shown."""

    def keys(self) -> list[str]:
        """Of all."""
        return [*batches(StepsFolder, self.known)]

    def listed(self) -> Part:
        """A row for each."""
        rows = [_row(key, folder) for key, folder in batches(StepsFolder, self.known).items()]
        head = ("pipeline", "state", "steps", "began", "folder")
        empty = "no pipelines: trainshed steps run PIPELINE.yaml starts one"
        return view("Pipelines", [table("", head, rows, empty=empty)], live=is_live(rows))

    def one(self, key: str) -> Part | None:
        """One of them."""
        folder = batches(StepsFolder, self.known).get(key)
        if folder is None:
            return None
        boxes, about = running.standing(folder), folder.about()
        state = _state(boxes, folder)
        live = bool(folder.worker)
        edges = [(need, one.name, "") for one in boxes for need in one.needs]
        drawn = [box(one.name, one.name, _lines(one), state=one.state, link=self._link(one)) for one in boxes]
        rows = [
            (link(one.name, self._link(one)), one.kind, pill(one.state), one.words, ", ".join(one.needs), one.detail)
            for one in boxes
        ]
        params = about.get("params")
        given = params.items() if isinstance(params, dict) else ()
        facts = [
            *((f"{name} (parameter)", value) for name, value in given),
            ("file", about.get("file")),
            ("folder", folder.path),
        ]
        head = ("step", "kind", "state", "in words", "needs", "detail")
        parts = [graph("Steps", drawn, edges), table("Each step", head, rows)]
        return view(
            about.get("name"), parts, state=state, facts=facts, live=live, can={"stop": live}, stop=_STOP, up="pipelines"
        )

    def end(self, key: str) -> tuple[StepsFolder, End] | None:
        """(folder, what stops it)."""
        folder = batches(StepsFolder, self.known).get(key)
        return None if folder is None else (folder, running.end)

    def _link(self, one: Box) -> str:
        if one.run and one.kind == TUNE:
            return tunings.ADDRESS + self.known.key_of(one.run)
        return self.known.address(one.run) if one.run else ""


def _row(key: str, folder: StepsFolder) -> tuple[object, ...]:
    about = folder.about()
    try:
        boxes = running.standing(folder)
    except TrainshedError as error:
        return (folder.shown, pill(FAILED), error.message, "", folder.path)
    began = about.get("began")
    over = sum(one.state in (COMPLETED, SKIPPED) for one in boxes)
    reused = sum(one.cached for one in boxes)
    how = f"{over} of {len(boxes)} over" + (f", {reused} reused" if reused else "")
    when = moment(began) if isinstance(began, float) else ""
    return (link(about.get("name"), ADDRESS + key), pill(_state(boxes, folder)), how, when, folder.path)


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
