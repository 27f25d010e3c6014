"""What a ledger comes to, as JSON values and as lines for people: the one place that all views take it from.

    {"Share": 0.972, "WallSeconds": 7380.0, "Seconds": {"steps": 7173.4, ...},
     "Losses": [{"Account": "again", "Words": "steps done again", "Seconds": 103.3, "Share": 0.014, "Remedy": "..."}, ...],
     "Hosts": {"algo-1": {"steps": 7170.2, ...}}, "Parts": [{"Kind": "start", "Begin": 1790000000.5, "Seconds": {...}}]}

`Share` is null where nothing tells the steps apart. `Price` (of a host's hour) and `Cost` are there where a price was given.
"""

from __future__ import annotations

import math

from trainshed.base.units import duration

from .ledger import ACCOUNTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from .ledger import Ledger

_MOST_HOSTS = 64  # that are told one by one
_MOST_PARTS = 200
_LEAST = 0.0005  # of the wall clock: a loss that is named


def told(ledger: Ledger, price: float = 0.0, hosts: int = 0) -> dict[str, Any]:
    """The ledger as JSON values.

    Args:
        price: of a host's hour, in any currency; 0 where nobody gave one.
        hosts: how many are paid for; 0 for those in the ledger.
    """
    wall, paid = ledger.wall, price * (hosts or len(ledger.hosts) or 1) / 3.6e9
    losses = [
        {
            "Account": name, "Words": ACCOUNTS[name].words, "Seconds": spent / 1e6, "Share": round(spent / wall, 6),
            "Remedy": ACCOUNTS[name].remedy, **({"Cost": round(spent * paid, 8)} if price else {}),
        }
        for name, spent in ledger.losses() if spent >= _LEAST * wall
    ]  # fmt: skip
    share = ledger.goodput
    return {
        "Share": None if share is None else round(share, 6),
        "WallSeconds": wall / 1e6,
        "Seconds": _seconds(ledger.accounts),
        "Losses": losses,
        "Hosts": {name: _seconds(sums) for name, sums in list(ledger.hosts.items())[:_MOST_HOSTS]},
        "Parts": [
            {"Kind": part.kind, "Begin": round(part.begin, 3), "Seconds": _seconds(part.accounts)}
            for part in ledger.parts[:_MOST_PARTS]
        ],
        **({"Price": price, "Cost": round(wall * paid, 8)} if price else {}),
    }


def share_of(goodput: object) -> float | None:
    """The share that JSON values as `told` makes them hold, 0 to 1; None for none, or for anything else."""
    share = _number(goodput.get("Share")) if isinstance(goodput, dict) else None
    return share if share is not None and 0 <= share <= 1 else None


def headline(goodput: Mapping[str, Any]) -> str:
    """`97.2 % of 2 h 03 min`, with its price where there is one; "" where the share is not known."""
    share, wall, cost = share_of(goodput), _number(goodput.get("WallSeconds")), _number(goodput.get("Cost"))
    if share is None or wall is None:
        return ""
    paid = f", {_money(cost * (1 - share))} of {_money(cost)} lost" if cost is not None else ""
    return f"{_per_cent(share)} of {duration(wall)}{paid}"


def losses(goodput: Mapping[str, Any]) -> list[str]:
    """The largest losses, a line each, with what would lower it."""
    given = goodput.get("Losses")
    return [line for one in given if (line := _loss(one))] if isinstance(given, list) else []


def rows(goodput: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Rows of a card: the headline and the losses; none where the share is not known."""
    said = headline(goodput) if goodput else ""
    return [("goodput", said), *(("", line) for line in losses(goodput or {}))] if said else []


def _loss(one: object) -> str:
    account = ACCOUNTS.get(str(one.get("Account"))) if isinstance(one, dict) else None
    if account is None or not isinstance(one, dict):
        return ""
    share, seconds, cost = (_number(one.get(name)) for name in ("Share", "Seconds", "Cost"))
    if share is None or seconds is None:
        return ""
    paid = f", {_money(cost)}" if cost is not None else ""
    return f"{account.words} {_per_cent(share)} ({duration(seconds)}{paid}): {account.remedy}"


def _money(amount: float) -> str:
    """Two decimals, or of less than one two digits that are not 0."""
    return f"{amount:.2f}" if amount >= 1 or not amount else f"{amount:.{max(2, 1 - math.floor(math.log10(amount)))}f}"


def _seconds(sums: Mapping[str, int]) -> dict[str, float]:
    return {name: spent / 1e6 for name, spent in sums.items()}


def _per_cent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _number(value: object) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) and value == value else None
