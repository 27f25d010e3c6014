"""Pictures, tables and the like in the report: what is drawn of whose files, and how much of them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from support.lazy import Lazy
from trainshed.metrics import Histogram, Image, Table, Text
from trainshed.metrics.media_files import Album
from trainshed.studio.pages.engine import embedded
from trainshed.studio.pages.facts import gather
from trainshed.studio.pages.media_view import shown
from trainshed.studio.pages.report import LARGEST, report

numpy: Any = Lazy("numpy")
HOSTILE = "<script>alert(1)</script>\"'&</svg>"
PNG = b"\x89PNG"


def logged(folder: Path, **values: Any) -> None:
    """Logs values as a script does."""
    log(Album(), folder, 1, **values)


def log(album: Album, folder: Path, step: int, **values: Any) -> None:
    """Logs values of one step."""
    taken = {name: album.take(name, value) for name, value in values.items()}
    album.keep(f"{folder}/metrics/sagemaker", taken, (step, None, 0))


def page(folder: Path) -> str:
    """The report of what was logged."""
    return report(gather("", [[(str(folder), f"{folder}/data")]], {}))


def chart(kind: str, told: object) -> dict[str, Any]:
    """The chart that the engine is given of JSON."""
    made = shown(kind, "json", json.dumps(told).encode()).figure
    assert made is not None
    return made


def test_the_report_shows_what_was_logged(tmp_path: Path) -> None:
    table = Table([{"word": "cat", "right": 3}], "by class")
    logged(tmp_path, image=Image(PNG, "a cat"), table=table, histogram=Histogram([1.0, 2.0]), text="good morning")
    seen = page(tmp_path)

    for words in (
        "Pictures and tables",
        "data:image/png;base64,",
        "step 1, a cat",
        "cat</td>",
        "by class",
        "2 values",
        "good m",
    ):
        assert words in seen
    assert "img-src data:" in seen


def test_texts_of_others_are_texts(tmp_path: Path) -> None:
    logged(
        tmp_path, text=Text(HOSTILE, HOSTILE), table=Table([{HOSTILE: HOSTILE}], HOSTILE), **{HOSTILE: Image(PNG, HOSTILE)}
    )
    trace = {"type": "scatter", "name": HOSTILE, "x": [HOSTILE, "b"], "y": [1, 2]}

    assert "<script" not in page(tmp_path) and page(tmp_path).count("&lt;script&gt;") >= 5
    assert "<script" not in embedded(chart("figure", {"data": [trace], "layout": {"title": HOSTILE}}))


def test_the_report_stays_small_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    album, noise = Album(), numpy.random.default_rng(1).integers(0, 255, (300, 300, 3), "uint8")
    for step in range(6):
        log(album, tmp_path, step, **{f"n{number}": Image(noise) for number in range(8)})
    seen = page(tmp_path)

    assert len(seen) < LARGEST and "data:image/jpeg" in seen and "more are not shown" in seen


def test_plotly_lines_points_and_bars_are_drawn_and_others_named() -> None:
    packed = {"dtype": "f8", "bdata": base64.b64encode(numpy.array([1.0, 2.0, 4.0])).decode()}
    lines = chart("figure", {"data": [{"y": packed}, {"x": [1, 2], "y": [None, 3], "mode": "markers"}]})["lines"]
    bars = chart("figure", {"data": [{"type": "bar", "x": ["a", "b"], "y": [1, -2]}, {"type": "bar", "y": [3, 4]}]})
    other = shown("figure", "json", b'{"data": [{"type": "sankey"}], "layout": {"title": {"text": "Flow"}}}')

    assert [(line["mode"], line["x"], line["y"]) for line in lines] == [
        ("lines", [0, 1, 2], [1, 2, 4]), ("markers", [1, 2], [None, 3]),
    ]  # fmt: skip
    assert bars["names"] == ["a", "b"] and [line["y"] for line in bars["lines"]] == [[1, -2], [3, 4]]
    assert other.said == "Flow · sankey of plotly is not drawn here: open the file with plotly" and not other.figure


@pytest.mark.parametrize("kind", ["table", "histogram", "figure"])
@pytest.mark.parametrize(
    "told",
    [
        "[", "[]", "{}", '{"rows": 3, "columns": 3, "counts": {}, "edges": 1, "data": 3}', "[" * 100_000,
        '{"data": [{"y": {"dtype": "f8", "bdata": "AAA"}}], "counts": [1], "edges": ["a", 2], "count": [], "rows": [[{}]]}',
        '{"data": [{"y": [1e999, 1e308, -1e308], "x": [{}, null, 3]}], "counts": [1e999], "edges": [0, 1], "count": 1}',
    ],
)  # fmt: skip
def test_files_of_any_form_are_survived(kind: str, told: str) -> None:
    assert shown(kind, "json", told.encode()) is not None
