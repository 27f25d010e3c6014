"""Where the seconds of a job went, by the accounts of its ledger (`trainshed.observe.goodput`)."""

from __future__ import annotations

from trainshed.base.units import duration
from trainshed.observe.goodput import headline, losses
from trainshed.observe.ledger import ACCOUNTS

from .bars import BarRow, Span, draw
from .facts import mapping, number
from .markup import legend, section, table, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST_HOSTS = 16
_COLOURS = dict(zip(ACCOUNTS, map("k{}".format, (6, 1, 4, 9, 2, 5, 0, 3, 10, 14, 22, 12, 7)), strict=True))


def draw_spent(goodput: dict[str, Any], note: str = "") -> str:
    """The section; "" where the share of steps that counted is not known."""
    said = headline(goodput)
    if not said:
        return ""
    spent = mapping(goodput.get("Seconds"))
    seen = [name for name in ACCOUNTS if number(spent.get(name)) > 0]
    kinds = legend((_COLOURS[name], ACCOUNTS[name].words, duration(number(spent[name]))) for name in seen)
    hosts = list(mapping(goodput.get("Hosts")).items())
    rows = [_row("job", spent), *(_row(name, mapping(one)) for name, one in hosts[:_MOST_HOSTS] if len(hosts) > 1)]
    named = table([line.partition(": ")[::2] for line in losses(goodput)], ("lost", "what would lower it"))
    return section("Where the time of the job went", f"<p><b>goodput {text(said)}</b></p>{kinds}{draw(rows)}{named}", note)


def _row(name: str, spent: dict[str, Any]) -> BarRow:
    spans, at, whole = [], 0.0, sum(number(seconds) for seconds in spent.values())
    for account in ACCOUNTS:
        seconds = number(spent.get(account))
        if seconds > 0:
            share = f"{100 * seconds / whole:.1f} %"
            told = f"{ACCOUNTS[account].words}: {duration(seconds)}, {share}"
            spans.append(Span(at, at + seconds, _COLOURS[account], share, told))
            at += seconds
    return BarRow(name, tuple(spans))
