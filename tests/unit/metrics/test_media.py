"""What `metrics.log` makes of pictures, tables and the like: the files, byte for byte where others read them."""

from __future__ import annotations

import io
import json
import wave
from typing import Any

import pytest

from support.extras import needs
from support.lazy import Lazy
from trainshed.metrics import Audio, Figure, Histogram, Image, Table, Text
from trainshed.metrics.media import BINS, MOST_ROWS, MOST_SIDE, WrongKind, content_of, loggables

needs("numpy")
numpy: Any = Lazy("numpy")


class Plot:
    """As matplotlib's figure has it."""

    def savefig(self, file: Any, **_options: Any) -> None:
        """Writes itself."""
        file.write(b"\x89PNG of a plot")


def pixels(content: bytes) -> Any:
    """The pixels that PIL sees."""
    return numpy.asarray(pytest.importorskip("PIL.Image").open(io.BytesIO(content)))


def table(*given: Any, **more: Any) -> Any:
    """The JSON of a table."""
    return json.loads(content_of(Table(*given, **more)).data)


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 1), (1, 4, 6), (4, 6, 3), (3, 4, 6), (4, 6, 4)])
def test_an_array_of_any_usual_shape_is_a_picture(shape: tuple[int, ...]) -> None:
    array = numpy.arange(numpy.prod(shape)).reshape(shape).astype("uint8")
    told = pixels(content_of(Image(array)).data)

    assert told.shape[:2] == (4, 6)
    assert (told == (array.transpose(1, 2, 0) if shape == (3, 4, 6) else array.reshape(told.shape))).all()


def test_fractions_are_brightness_and_large_pictures_are_thinned() -> None:
    bright = pixels(content_of(Image(numpy.array([[0.0, 0.5], [2.0, float("nan")]]))).data)
    large = pixels(content_of(Image(numpy.zeros((10, MOST_SIDE * 3), bool))).data)

    assert bright.tolist() == [[0, 128], [255, 0]] and large.shape == (4, MOST_SIDE)


def test_tensors_pil_files_and_bytes_are_pictures(tmp_path: Any) -> None:
    torch, PIL = pytest.importorskip("torch"), pytest.importorskip("PIL.Image")
    tensor = content_of(Image(torch.ones(3, 4, 4, dtype=torch.bfloat16, requires_grad=True))).data
    pillow = PIL.new("P", (3000, 10))
    path = tmp_path / "one.jpg"
    PIL.new("RGB", (2, 2)).save(path)

    assert pixels(tensor).min() == 255
    assert pixels(content_of(loggables("any", pillow)[0]).data).shape[1] == MOST_SIDE and pillow.width == 3000
    assert content_of(Image(path)).ending == "jpg" and content_of(Image(path.read_bytes())).data == path.read_bytes()


def test_a_batch_and_a_list_are_several_pictures() -> None:
    batch = numpy.zeros((5, 3, 4, 4), "uint8")

    assert len(loggables("image", batch)) == 5
    assert [one.caption for one in loggables("x", [Image(batch[0], caption="a"), Image(batch, caption="b")])] == [
        "a",
        *"bbbbb",
    ]


def test_figures_of_matplotlib_and_plotly() -> None:
    plotly = {"data": [{"type": "scatter", "y": numpy.array([1, 2])}], "layout": {}}

    assert content_of(Figure(Plot())).data == b"\x89PNG of a plot" and loggables("any", Plot())[0].kind == "figure"
    assert json.loads(content_of(Figure(plotly)).data)["data"][0]["y"] == [1, 2]
    assert content_of(Figure(json.dumps({"data": []}))).ending == "json"


def test_tables_from_frames_rows_and_columns() -> None:
    pandas = pytest.importorskip("pandas")
    wanted = {"columns": ["a", "b"], "rows": [[1, "x"], [2, "y"]], "count": 2}

    assert table(pandas.DataFrame({"a": [1, 2], "b": ["x", "y"]})) == wanted
    assert table({"a": [1, 2], "b": ["x", "y"]}) == table([{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]) == wanted
    assert table([[1, "x"], (2, "y")], columns=["a", "b"]) == wanted
    assert table(numpy.array([[1.5, float("nan")]])) == {"columns": ["0", "1"], "rows": [[1.5, "nan"]], "count": 1}
    assert table(pandas.DataFrame({"a": [1.0, 3.0]}).describe())["rows"][1] == ["mean", 2.0]
    long = content_of(Table([[number] for number in range(MOST_ROWS + 7)]))
    assert long.cut == "7 rows" and len(json.loads(long.data)["rows"]) == MOST_ROWS


def test_a_histogram_counts_finite_numbers_and_tells_of_the_others() -> None:
    told = json.loads(content_of(Histogram([1, 2, 2, float("inf")])).data)
    none = json.loads(content_of(Histogram(numpy.zeros(0))).data)

    assert (sum(told["counts"]), told["count"], told["odd"], len(told["edges"])) == (3, 4, 1, BINS + 1)
    assert none == {"counts": [], "edges": [], "count": 0, "odd": 0}


def test_sound_is_16_bits_with_its_rate() -> None:
    with wave.open(io.BytesIO(content_of(Audio(numpy.array([[0.0, 1.0, -2.0]] * 2), sample_rate=8000)).data)) as file:
        assert (file.getnchannels(), file.getframerate(), file.getnframes()) == (2, 8000, 3)
        assert numpy.frombuffer(file.readframes(3), "<i2").tolist() == [0, 0, 32767, 32767, -32767, -32767]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: Image(numpy.zeros((2, 2, 7))), r"ndarray of shape \(2, 2, 7\) cannot be kept as image: it needs \[H, W\]"),
        (lambda: Image(object()), "object cannot be kept as image: an array of numbers"),
        (lambda: Image(b"<svg onload=alert(1)>"), "neither PNG, JPEG"),
        (lambda: Figure(3), "int cannot be kept as figure: a figure of matplotlib or plotly"),
        (lambda: Figure("not JSON"), "str cannot be kept as figure"),
        (lambda: Table(3), "int cannot be kept as table: a DataFrame"),
        (lambda: Table(["a", "b"]), "its rows are texts"),
        (lambda: Table([1, 2]), "its rows are not lists"),
        (lambda: Histogram(["a"]), "list cannot be kept as histogram"),
        (lambda: Histogram([[1], [1, 2]]), "list cannot be kept as histogram"),
        (lambda: Text(3), "int cannot be kept as text"),
        (lambda: Audio(numpy.zeros((5, 5))), "cannot be kept as audio: it needs"),
    ],
)
def test_what_is_of_another_kind_is_refused_in_words(made: Any, words: str) -> None:
    with pytest.raises(WrongKind, match=words):
        content_of(made())
