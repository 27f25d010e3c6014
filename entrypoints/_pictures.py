"""Pictures of what a model does, for the run's report: files below `pictures` in the folder of output data.

Each has a JSON file of its name beside it, with its title and what there is to say. Nothing is drawn that is not there
already, so they cost a pass over at most `MOST` examples. SVG is written by hand, photographs by Pillow.
"""

from __future__ import annotations

import io
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from _common import note, whole_file, write_json
from _told import keep as keep_table

FOLDER = "pictures"
MOST = 2000  # examples that are looked at
SHOWN = 16  # mistakes and samples
BARS = 20
CLASSES = 20  # rows of a confusion matrix
SIDE = 128  # pixels of a picture in a sheet
BLUE, RED, GREY = "#4477aa", "#cc3311", "#777777"
COLOURS = ("#cc3311", "#0077bb", "#009988", "#ee7733", "#ee3377", "#33bbee", "#aa3377", "#228833")


def guarded(draw: Callable[[], None]) -> None:
    """Draws. What goes wrong is a note: no training fails for a picture."""
    try:
        draw()
    except Exception as error:  # of any library, about any data
        note(f"pictures for the report are missing: {type(error).__name__}: {error}")


def keep(hp: Namespace, name: str, title: str, content: str | bytes, said: str = "") -> None:
    """Keeps a picture: SVG as text, PNG as bytes. The one place that says where pictures lie."""
    file = f"{name}.{'svg' if isinstance(content, str) else 'png'}"
    with whole_file(Path(hp.output_data_dir) / FOLDER / file) as path:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    write_json(Path(hp.output_data_dir) / FOLDER / f"{name}.json", {"title": title, "file": file, "note": said})


# --- classifiers ------------------------------------------------------------------------------------------------------


def of_classes(hp: Namespace, part: str, classes: Sequence[str], truth: Any, probabilities: Any) -> None:
    """Confusion, precision and recall a class, and calibration. truth: [n]; probabilities: [n, classes]."""
    import numpy

    guess = probabilities.argmax(1)
    pairs = numpy.zeros((len(classes), len(classes)), numpy.int64)
    numpy.add.at(pairs, (truth, guess), 1)
    of_pairs(hp, part, classes, pairs, "examples")
    svg, error = reliability(probabilities.max(1), truth == guess)
    keep(hp, "calibration", f"Calibration on {part}", svg, f"expected calibration error {error:.3f}")


def of_pairs(hp: Namespace, part: str, classes: Sequence[str], pairs: Any, what: str) -> None:
    """Confusion, precision and recall a class. pairs: [truth, guess] counts of what."""
    keep(
        hp,
        "confusion",
        f"Confusion on {part}",
        confusion(classes, pairs),
        f"rows: what it is; columns: what was said; {what}",
    )
    rows = [class_row(name, pairs[at, at], pairs[:, at].sum(), pairs[at].sum()) for at, name in enumerate(classes)]
    keep_table(hp, "classes", f"Classes on {part}", CLASS_HEADS, rows)


CLASS_HEADS = ("class", "precision", "recall", "f1", "there", "said")


def class_row(name: str, hit: Any, said: Any, there: Any) -> tuple[str, ...]:
    """A row of the table of classes."""
    values = (hit / said if said else 0.0, hit / there if there else 0.0, 2 * hit / (said + there) if said + there else 0.0)
    return (str(name), *(f"{value:.3f}" for value in values), f"{int(there):,}", f"{int(said):,}")


def mistakes(truth: Any, probabilities: Any) -> list[int]:
    """The positions of the surest wrong answers, the worst first."""
    import numpy

    wrong = numpy.flatnonzero(probabilities.argmax(1) != truth)
    return [int(at) for at in wrong[numpy.argsort(-probabilities[wrong].max(1), kind="stable")][:SHOWN]]


def said_of(classes: Sequence[str], truth: Any, probabilities: Any, at: int) -> tuple[str, str, str]:
    """(what it is, what was said, how sure) of an example."""
    guess = int(probabilities[at].argmax())
    return str(classes[int(truth[at])]), str(classes[guess]), f"{probabilities[at][guess]:.3f}"


# --- SVG --------------------------------------------------------------------------------------------------------------


def bars(scores: dict[str, float], title: str) -> str:
    """The highest values, as bars."""
    first = sorted(scores.items(), key=lambda item: -item[1])[:BARS]
    most = max((score for _, score in first), default=0.0) or 1.0
    parts = [_text(10, 20, title, weight="bold")]
    for index, (name, score) in enumerate(first):
        y = 34 + 22 * index
        parts.append(_text(190, y + 14, _short(name, 24), anchor="end"))
        parts.append(_box(200, y + 2, max(1, 400 * score / most), 16, BLUE))
        parts.append(_text(206 + 400 * score / most, y + 14, f"{score:.4g}"))
    return _svg(700, 44 + 22 * len(first), parts)


def confusion(classes: Sequence[str], pairs: Any) -> str:
    """A matrix of counts; of many classes those with most mistakes."""
    wrong = pairs.sum(0) + pairs.sum(1) - 2 * pairs.diagonal()
    shown = sorted(sorted(range(len(classes)), key=lambda at: -wrong[at])[:CLASSES])
    size, left, top = 34, 150, 120
    parts = []
    for row, truth in enumerate(shown):
        y = top + size * row
        parts.append(_text(left - 6, y + 21, _short(classes[truth], 20), anchor="end"))
        x = left + size * row + 21
        parts.append(f'<g transform="rotate(-60 {x} {top - 6})">{_text(x, top - 6, _short(classes[truth], 16))}</g>')
        for column, guess in enumerate(shown):
            share = pairs[truth, guess] / max(1, pairs[truth].sum())
            x = left + size * column
            parts.append(_box(x, y, size - 1, size - 1, BLUE if truth == guess else RED, 0.06 + 0.9 * share))
            if count := int(pairs[truth, guess]):
                parts.append(
                    _text(x + size / 2, y + 21, _count(count), anchor="middle", fill="#fff" if share > 0.5 else "#111")
                )
    side = size * len(shown)
    more = len(classes) - len(shown)
    parts += [_text(left, top + side + 18, f"{more} classes with fewer mistakes are not shown")] if more else []
    return _svg(left + side + 70, top + side + 30, parts)


def reliability(sure: Any, right: Any, bins: int = 10) -> tuple[str, float]:
    """How often answers were right by how sure they were, and the mean distance of both."""
    import numpy

    of_bin = numpy.minimum((sure * bins).astype(int), bins - 1)
    side, left, top = 300, 50, 20
    parts = [f'<path d="M{left} {top + side}L{left + side} {top}" stroke="{GREY}" stroke-dasharray="4"/>']
    error = 0.0
    for at in range(bins):
        here = of_bin == at
        if here.any():
            error += here.mean() * abs(right[here].mean() - sure[here].mean())
            high = side * right[here].mean()
            parts.append(_box(left + side * at / bins + 1, top + side - high, side / bins - 2, max(1, high), BLUE))
            parts.append(_text(left + side * (at + 0.5) / bins, top + side - high - 3, _count(int(here.sum())), "middle"))
    parts += [_text(left + side * at, top + side + 16, f"{at:g}", "middle") for at in (0, 0.5, 1)]
    parts += [_text(left - 6, top + side * (1 - at) + 4, f"{at:g}", "end") for at in (0, 0.5, 1)]
    parts.append(_text(left + side / 2, top + side + 34, "how sure; bars: how often right; numbers: how many", "middle"))
    return _svg(left + side + 30, top + side + 44, parts), float(error)


def _svg(width: float, height: float, parts: Iterable[str]) -> str:
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    ground = f'<rect width="{width:.0f}" height="{height:.0f}" fill="#fff"/>'
    font = 'font-family="sans-serif" font-size="12"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>{ground}{"".join(parts)}</svg>\n'


def _text(x: float, y: float, text: object, anchor: str = "start", weight: str = "normal", fill: str = "#111") -> str:
    look = f'text-anchor="{anchor}" font-weight="{weight}" fill="{fill}"'
    return f'<text x="{x:.0f}" y="{y:.0f}" {look}>{escape(_printable(str(text)))}</text>'


def _box(x: float, y: float, width: float, height: float, fill: str, opacity: float = 1.0) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {place} fill="{fill}" fill-opacity="{opacity:.2f}"/>'


def _short(text: object, most: int) -> str:
    words = str(text)
    return words if len(words) <= most else f"{words[: most - 1]}…"


def _printable(text: str) -> str:
    """Without what XML does not take."""
    return "".join(one if one.isprintable() else "�" for one in text)


def _count(number: int) -> str:
    return f"{number}" if number < 1000 else f"{number / 1000:.3g}k" if number < 1e6 else f"{number / 1e6:.3g}M"


# --- photographs ------------------------------------------------------------------------------------------------------


def sheet(hp: Namespace, name: str, title: str, pictures: Sequence[tuple[Any, str]], said: str = "") -> None:
    """Pictures side by side, each with a line below it. pictures: (a Pillow image, its line)."""
    from PIL import Image, ImageDraw

    if not pictures:
        return
    columns, high = min(4, len(pictures)), SIDE + 18
    made = Image.new("RGB", (columns * (SIDE + 6), -(-len(pictures) // columns) * high), "white")
    draw = ImageDraw.Draw(made)
    for at, (picture, line) in enumerate(pictures):
        x, y = at % columns * (SIDE + 6) + 3, at // columns * high
        made.paste(picture.convert("RGB").resize((SIDE, SIDE)), (x, y))
        draw.text((x, y + SIDE + 3), _printable(line)[:24].encode("latin-1", "replace").decode("latin-1"), fill="black")
    file = io.BytesIO()
    made.quantize(128).save(file, "PNG", optimize=True)
    keep(hp, name, title, file.getvalue(), said)


def image_of(pixels: Any) -> Any:
    """A Pillow image of pixels (C, H, W): uint8, or numbers, which are stretched."""
    import numpy
    from PIL import Image

    array = numpy.moveaxis(numpy.asarray(pixels), 0, -1)
    if array.dtype != numpy.uint8:
        low, high = float(array.min()), float(array.max())
        array = ((array - low) * (255 / (high - low or 1))).astype(numpy.uint8)
    return Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array[..., :3]).convert("RGB")


def with_boxes(image: Any, boxes: Iterable[tuple[int, float, Sequence[float]]]) -> Any:
    """Boxes drawn on an image. boxes: (class, how sure, or -1 for one that is there; edges as parts of the sides)."""
    from PIL import ImageDraw

    large = image.resize((2 * SIDE, 2 * SIDE))
    draw = ImageDraw.Draw(large)
    for kind, score, edges in boxes:
        x0, y0, x1, y1 = (2 * SIDE * min(max(float(edge), 0.0), 1.0) for edge in edges)
        place = (min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1))
        draw.rectangle(
            place, outline=COLOURS[kind % len(COLOURS)] if score >= 0 else "#ffffff", width=4 if score >= 0 else 2
        )
    return large


def with_mask(image: Any, classes: Any) -> Any:
    """The classes of pixels [H, W] laid over an image in colours; class 0 stays as it is."""
    import numpy
    from PIL import Image, ImageColor

    palette = numpy.array([(0, 0, 0), *(ImageColor.getrgb(colour) for colour in COLOURS)], numpy.uint8)
    numbers = numpy.asarray(classes).astype(numpy.int64)
    painted = Image.fromarray(palette[numpy.where(numbers > 0, (numbers - 1) % len(COLOURS) + 1, 0)]).resize(image.size, 0)
    shape = Image.fromarray(numpy.where(numbers > 0, 140, 0).astype(numpy.uint8)).resize(image.size, 0)
    return Image.composite(painted, image.convert("RGB"), shape)
