"""HTML whose texts are other people's: what is put into a page goes through here, and the page itself."""

from __future__ import annotations

import base64
import hashlib
import html

from trainshed.base.errors import visible
from trainshed.base.secrets import mask_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LONGEST_TEXT = 20_000  # characters of one text
LARGEST_PART = 24_000  # characters of a table or of another list in a page
_MOST_CHIPS = 24
_MADE_BY = '<meta name="generator" content="trainshed">'


def text(value: object, limit: int = 300) -> str:
    """Somebody's text as HTML: masked, escaped, what cannot be seen spelled out, cut at `limit` characters."""
    shown = mask_text(str(value)[: min(limit, LONGEST_TEXT) + 1])
    shown = shown if len(shown) <= limit else f"{shown[:limit]}…"
    return html.escape(visible(shown), quote=True)


def section(title: str, body: str, note: str = "") -> str:
    """A part of a page with its heading; "" where there is nothing in it."""
    if not body:
        return ""
    said = f'<p class="note">{text(note, 600)}</p>' if note else ""
    return f"<section><h2>{text(title)}</h2>{said}{body}</section>"


def table(rows: Iterable[Sequence[object]], head: Sequence[object] = (), *, kind: str = "") -> str:
    """A table of texts; "" where it has no rows. Rows beyond `LARGEST_PART` are counted only."""
    drawn = bounded("<tr>" + "".join(f"<td>{text(cell, 500)}</td>" for cell in row) + "</tr>" for row in rows)
    if not drawn[0]:
        return ""
    heads = "<thead><tr>" + "".join(f"<th>{text(cell)}</th>" for cell in head) + "</tr></thead>" if head else ""
    return f'<div class="scroll"><table class="{kind}">{heads}<tbody>{drawn[0]}</tbody></table></div>{more(drawn[1])}'


def bounded(parts: Iterable[str], largest: int = LARGEST_PART) -> tuple[str, int]:
    """As many parts as fit into so many characters, one at least, and how many were left out."""
    kept: list[str] = []
    size = left_out = 0
    for part in parts:
        if kept and size + len(part) > largest:
            left_out += 1
            continue
        size += len(part)
        kept.append(part)
    return "".join(kept), left_out


def more(count: int) -> str:
    """A note about what was left out; "" for nothing."""
    return f'<p class="note left">{count} more are not shown</p>' if count else ""


def legend(entries: Iterable[tuple[str, str, str]]) -> str:
    """What the colours mean: (class of the colour, name, what more there is to say)."""
    chips = "".join(
        f'<span class="chip"><i class="{colour}"></i>{text(name, 80)}{f" <b>{text(more, 120)}</b>" if more else ""}</span>'
        for colour, name, more in list(entries)[:_MOST_CHIPS]
    )
    return f'<div class="legend">{chips}</div>' if chips else ""


def document(title: str, body: str, style: str) -> str:
    """A whole page: it may load nothing, run nothing, send nothing."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
        f'<meta name="referrer" content="no-referrer">{_MADE_BY}'
        f"<title>{text(title)}</title><style>{style}</style></head>\n<body>{body}</body></html>\n"
    )


def is_ours(path: str) -> bool:
    """Whether a page of ours may be written there: nothing is there yet, or a page that was made here."""
    try:
        with open(path, "rb") as file:
            return _MADE_BY.encode() in file.read(2000)
    except FileNotFoundError:
        return True
    except OSError:
        return False
