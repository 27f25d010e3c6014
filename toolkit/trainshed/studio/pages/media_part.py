"""Pictures, tables and the like in a report: the latest of each name, and a few before it, as far as there is room."""

from __future__ import annotations

import io

from .engine import figure
from .markup import bounded, more, section, table, text
from .media_view import PICTURES, Shown, shown, words_of_place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainshed.metrics.media_reading import Medium

STEPS = 4  # of a name
_LARGEST_PICTURE = 24_000  # bytes, beyond which it is made smaller
_MOST_PIXELS = 40_000_000  # that are read to make a smaller one
_SIDE = 320  # pixels of a smaller one
_MOST_ROWS = 20
_LONGEST_TEXT = 2000


def draw_media(media: Mapping[str, Sequence[Medium]], largest: int) -> str:
    """The part of a page; "" where nothing was logged. largest: characters that it may have."""
    chosen = {name: _spread(found) for name, found in media.items() if found}
    room, drawn, left_out = largest, dict[str, str](), 0
    for turn in range(STEPS):  # first the latest of all names
        for name, found in chosen.items():
            if turn < len(found):
                part = _one(found[-1 - turn], media[name])
                room -= len(part)
                if room >= 0:
                    drawn[name] = part + drawn.get(name, "")
                else:
                    room += len(part)
                    left_out += 1
    figures, beyond = bounded(
        (f"<figure><h3>{text(name)}</h3>{parts}</figure>" for name, parts in drawn.items()), largest=2 * largest
    )
    note = "the latest of each, and some before it: `trainshed metrics show` and the page have all"
    body = f'<div class="grid media">{figures}</div>{more(left_out + beyond)}' if chosen else ""
    return section("Pictures and tables", body, note)


def _spread(found: Sequence[Medium]) -> list[Medium]:
    """A few of them: of the latest call, and one each of earlier ones, the first among those."""
    calls = {(one.path.rpartition("/")[0], one.call): one for one in reversed(found)}  # the first file of each, latest first
    last = [one for one in found if (one.path.rpartition("/")[0], one.call) == next(iter(calls))][:STEPS]
    before = [*calls.values()][:0:-1]
    count = min(STEPS - len(last), len(before))
    return [before[round(number * (len(before) - 1) / max(1, count - 1))] for number in range(count)] + last


def _one(medium: Medium, all_of_name: Sequence[Medium]) -> str:
    kept = len({one.call for one in all_of_name})
    where = words_of_place(medium.step, medium.epoch, kept, all_of_name[-1].call)
    try:
        told = _small(medium)
    except (OSError, ValueError):
        told = Shown(said="its file is gone")
    said = ", ".join(filter(None, (where, medium.caption, told.said, f"without {medium.cut}" if medium.cut else "")))
    body = f'<img src="{told.source}" alt="{text(medium.caption or medium.name)}">' if told.source else ""
    body += figure(told.figure) if told.figure else ""
    body += f"<pre>{text(told.text, _LONGEST_TEXT)}</pre>" if told.text else ""
    body += table(told.rows[:_MOST_ROWS], told.columns) + more(len(told.rows[_MOST_ROWS:]))
    return f'<p class="note">{text(said)}</p>{body}'


def _small(medium: Medium) -> Shown:
    """What a page has room for; pictures are made smaller where PIL is installed."""
    data, ending = medium.read(), medium.path.rpartition(".")[2]
    if medium.kind == "audio":
        return Shown(said="a sound: listen to it on the page, `trainshed ui`")
    if ending not in PICTURES or len(data) <= _LARGEST_PICTURE:
        return shown(medium.kind, ending, data)
    try:
        from PIL import Image
    except ImportError:
        return Shown(said="too large for this page without pillow")
    try:
        with Image.open(io.BytesIO(data)) as picture:
            if picture.width * picture.height > _MOST_PIXELS:
                return Shown(said="too large for this page")
            small = picture.convert("RGB")
    except Exception:  # whatever somebody's file makes of it
        return Shown(said="this file cannot be shown")
    small.thumbnail((_SIDE, _SIDE))
    file = io.BytesIO()
    small.save(file, "JPEG", quality=70)
    return shown(medium.kind, "jpg", file.getvalue())
