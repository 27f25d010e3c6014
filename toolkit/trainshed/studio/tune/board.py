"""How a tuning job stands, for a person: a table on a terminal that is drawn anew, lines elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping

from trainshed.base.errors import one_line
from trainshed.base.secrets import mask_text
from trainshed.base.units import duration
from trainshed.studio.batches.folder import COMPLETED, FAILED, STOPPED
from trainshed.studio.batches.session import Log

from .trial import Trial, best_of, front_of
from .tuner import TuningStatus, short

REDRAW_SECONDS = 0.5
_ROWS = 12  # trials in the table that is drawn anew


class Board(Log):
    """Says lines on standard error, and on a terminal keeps a table below them."""

    def __init__(self, path: str, environ: Mapping[str, str]) -> None:
        super().__init__(path)
        self.terminal = sys.stderr.isatty() and environ.get("TERM", "dumb") != "dumb"
        self.drawn = 0
        self.last = 0.0

    def say(self, line: str) -> None:
        """One line of what happens, above the table."""
        self.close()
        self.last = 0.0  # the table comes back at once
        super().say(line)

    def show(self, view: Callable[[], TuningStatus]) -> None:
        """The table, now and then."""
        now = time.monotonic()
        if not self.terminal or now - self.last < REDRAW_SECONDS:
            return
        self.last = now
        width = shutil.get_terminal_size().columns - 1
        lines = [line[:width] for line in live(view(), time.time())]
        self.close()
        self.put("".join(f"{line}\n" for line in lines))
        self.drawn = len(lines)

    def close(self) -> None:
        """Takes the table away."""
        if self.drawn:
            self.put(f"\x1b[{self.drawn}A\x1b[J")
            self.drawn = 0


def live(view: TuningStatus, now: float) -> list[str]:
    """The table that is drawn anew: what runs, the best, the last ones."""
    trials, best = view.trials, marked(view)
    running = [trial for trial in trials if not trial.over]
    over = sorted((trial for trial in trials if trial.over), key=lambda trial: trial.ended)
    chosen = {trial.number: trial for trial in (*running, *best[:_ROWS])}
    for trial in reversed(over):
        if len(chosen) >= _ROWS:
            break
        chosen.setdefault(trial.number, trial)
    return [counted(view), *table([chosen[number] for number in sorted(chosen)], view, best, now)]


def counted(view: TuningStatus) -> str:
    """`digits: 12 of 30 trials over, 2 running, 1 failed · best val_loss 0.12 (trial 7)`."""
    trials, objective = view.trials, view.tuning.objective
    over = [trial for trial in trials if trial.over]
    parts = [f"{len(over)}{f' of {limit}' if (limit := view.tuning.limits.max_jobs) else ''} trials over"]
    for count, word in (
        (sum(not trial.over and not trial.paused for trial in trials), "running"),
        (sum(not trial.over and trial.paused for trial in trials), "waiting to go on"),
        (sum(trial.state == STOPPED for trial in over), "stopped early"),
        (sum(trial.state == FAILED for trial in over), "failed"),
    ):
        parts += [f"{count} {word}"] if count else []
    best = best_of(trials, view.tuning.objectives)
    said = f" · best {objective.metric} {best.value:.6g} (trial {best.number})" if best and best.value is not None else ""
    if view.tuning.further and best is not None:
        said += f" · {len(marked(view))} on the front"
    return one_line(f"{view.tuning.name}: {', '.join(parts)}{said}")


def marked(view: TuningStatus) -> list[Trial]:
    """The trials with a star: the best one, or with several objectives those that no other one beats."""
    if view.tuning.further:
        return front_of(view.trials, view.tuning.objectives)
    best = best_of(view.trials, view.tuning.objectives)
    return [] if best is None else [best]


def table(trials: list[Trial], view: TuningStatus, best: list[Trial], now: float) -> list[str]:
    """Lines, one a trial, with a head. best: those with a star."""
    names = [parameter.name for parameter in view.tuning.space]
    stars = {trial.number for trial in best}
    further = view.tuning.further
    rows = [("", "TRIAL", "STATE", view.tuning.objective.metric, *(one.metric for one in further), "AT", "TIME", *names)]
    for trial in trials:
        resource, value = view.latest.get(trial.number, (None, None))
        value = trial.value if trial.over else value
        going = "waiting" if trial.paused else "running"
        state = going if not trial.over else {COMPLETED: "completed", STOPPED: "stopped"}.get(trial.state, "failed")
        rows.append((
            "*" if trial.number in stars else "",
            str(trial.number),
            state,
            f"{value:.6g}" if value is not None else "-",
            *([f"{one:.6g}" for one in trial.further] or ["-"] * len(further)),
            f"{resource:.6g}" if resource is not None else "-",
            duration(max(0.0, (trial.ended if trial.over else now) - trial.created)),
            *(short(trial.values.get(name, "-")) for name in names),
        ))  # fmt: skip
    shown = [tuple(one_line(mask_text(cell))[:24] for cell in row) for row in rows]
    widths = [max(len(row[column]) for row in shown) for column in range(len(shown[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in shown]


def page(view: TuningStatus, status: str, reason: str, folder: str, now: float) -> str:
    """`trainshed tune status`: everything, for a person."""
    best = marked(view)
    lines = [f"{status.lower()}  {counted(view)}" + (f" · {one_line(reason)}" if reason else ""), ""]
    lines += table(list(view.trials), view, best, now)
    for trial in view.trials:
        if trial.reason and trial.state != COMPLETED:
            lines.append(one_line(mask_text(f"trial {trial.number}: {trial.reason}")))
    if best:
        lines += ["", f"best model   {folder}/best/model", f"best job     {folder}/best.yaml"]
    if best and view.tuning.further:
        lines += [f"the front    {folder}/front: {', '.join(str(trial.number) for trial in best)}"]
    return "\n".join(lines) + "\n"
