"""`trainshed watch`: frames that fit, whatever is in them."""

from __future__ import annotations

import math
from array import array
from pathlib import Path

from trainshed.metrics.reading import Curve, Track
from trainshed.runner.state.stored import Stored
from trainshed.studio.watch.dashboard import View, last_lines, render
from trainshed.studio.watch.live import bars_for, frame
from trainshed.studio.watch.sparks import BARS, PLAIN, cut, spark

HOSTILE = "\x1b[2J\x1b]0;title\x07\r漢字\u202e" * 20


def stored(folder: str = "/nowhere", name: str = "run") -> Stored:
    return Stored(folder, {"TrainingJobName": name, "TrainingJobStatus": "InProgress"}, {})


def curve(name: str, values: list[float]) -> Curve:
    track = Track()
    for step, value in enumerate(values, 1):
        track.add(float(step), math.nan, float(step), value)
    return Curve(name, 0, track)


def test_a_spark_shows_the_form_of_a_curve_in_so_many_columns() -> None:
    assert spark([1, 2, 3, 4, 5, 6, 7, 8], 8) == BARS and spark([3, 1], 5) == "█▁" and spark([5, 5], 9) == "▁▁"
    assert spark(array("d", range(1000)), 8) == BARS
    assert spark([1, math.nan, 2, math.inf], 4) == "▁!█!" and spark([math.nan], 3) == "!" and spark([], 4) == ""
    assert len(spark(array("d", [float(n % 7) for n in range(999)]), 40, PLAIN)) == 40


def test_wide_letters_take_two_columns_and_nothing_controls_the_terminal() -> None:
    assert cut("漢字漢字", 5) == "漢字" and cut("abc", 2) == "ab" and cut("a\x1b[31mb", 20) == "a\\x1b[31mb"


def test_a_frame_fits_whatever_is_in_it() -> None:
    curves = {name: curve(name, [1.0, math.nan, 2.0] * 50) for name in [HOSTILE, *(f"m{n}" for n in range(30))]}
    view = View(stored(name=HOSTILE), "InProgress", curves, findings=[HOSTILE], failure=HOSTILE, log=[HOSTILE] * 99)
    for width, height in ((80, 24), (20, 6), (300, 60), (1, 1)):
        lines = render(view, width, height)
        assert len(lines) <= height and all(len(line) <= width for line in lines), (width, height)
        drawn = frame(lines)
        assert drawn.count("\x1b") == 2 + len(lines) and "\u202e" not in drawn and "\x07" not in drawn


def test_a_frame_tells_metrics_machine_and_log() -> None:
    system = {("algo-1", "cpu", "cpus", "CPUUtilization"): [(1.0, 10.0), (2.0, 90.0)]}
    view = View(
        stored(), "InProgress Training", {"loss": curve("loss", [3.0, 2.0, 1.0])}, system, log=["first", "last words"]
    )
    text = "\n".join(render(view, 100, 30))

    assert "run  InProgress Training" in text and "█▅▁  step 3" in text and "cpu" in text and "90 %" in text
    assert text.endswith("first\nlast words")


def test_lines_of_one_rank(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/algo-1.log").write_text("[algo-1:0] a\n[algo-1:1] b\n10%\r[algo-1:1] c\n")
    run = stored(str(tmp_path))

    assert (
        last_lines(run, 0) == ["[algo-1:0] a"]
        and last_lines(run, 1)[0] == "[algo-1:1] b"
        and len(last_lines(run, None)) == 3
    )


def test_terminals_without_the_letters_get_plain_ones() -> None:
    assert bars_for("utf-8", {"TERM": "xterm"}) == BARS
    assert bars_for("ascii", {}) == bars_for(None, {}) == bars_for("utf-8", {"TERM": "linux"}) == PLAIN
