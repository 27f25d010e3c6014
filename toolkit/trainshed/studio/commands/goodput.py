"""`trainshed goodput`: what to expect of a job that is interrupted, and what would raise it."""

from __future__ import annotations

from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS
from trainshed.cli.parser import Parser, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.studio.forecast import Case, Expected

_MOST = 1e9  # seconds
_MOST_PLAYED = 5000  # interruptions of one job


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.description = (
        "Computes the goodput to expect of a job that is interrupted, and what each measure would change. "
        "`trainshed status` shows the goodput that a run has had."
    )
    parser.epilog = "TIME is a number of seconds, or like 30s, 5m, 8h, 2d. docs/goodput.md has the formula."
    add = parser.add_argument
    add("--mtbf", default="", metavar="TIME", help="mean time between interruptions of the whole job")
    add("--host-mtbf", default="", metavar="TIME", help="the same of one host: the job's is this, divided by its hosts")
    add("--hosts", default="1", metavar="N", help="hosts of the job (default: 1)")
    add("--stall", default="5s", metavar="TIME", help="for which a checkpoint holds up the steps (default: 5s)")
    add("--restart", default="2m", metavar="TIME", help="from an interruption to the next step (default: 2m)")
    add("--every", default="", metavar="TIME", help="between checkpoints (default: the best interval)")
    add("--price", default="", metavar="NUMBER", help="of a host's hour: what is lost a day, in the same currency")
    add("--simulate", default="", metavar="TIME", help="play jobs that long: between which goodputs nine of ten lie")
    add("--json", action="store_true", help="print an object with the case and a list of measures")


def run(options: Namespace) -> int:
    """Prints the table; returns the exit status. Raises UsageError."""
    from trainshed.studio.forecast import expected, measures

    hosts, price = _hosts(options.hosts), _price(options.price)
    case = _case(options, hosts)
    lasting = _lasting(options.simulate, case)
    found = [(name, expected(one), _played(one, lasting)) for name, one in measures(case)]
    if options.json:
        import json

        told = [{"measure": name, **one.plain(), **_lost(one, hosts, price), **played} for name, one, played in found]
        print(json.dumps({"hosts": hosts, **case.plain(), "measures": told}))
        return EXIT_SUCCESS
    print(_table(case, hosts, price, found, lasting), end="")
    return EXIT_SUCCESS


def _lasting(text: str, case: Case) -> float:
    """Of a job that is played, in seconds; 0 for none."""
    seconds = _time("--simulate", text) if text else 0.0
    if seconds / case.between > _MOST_PLAYED:
        raise UsageError(f"--simulate {text} has more than {_MOST_PLAYED:,} interruptions: take a shorter job")
    return seconds


def _played(case: Case, lasting: float) -> dict[str, list[float]]:
    from trainshed.studio.simulation import Fleet, spread

    return {"simulated": [round(share, 6) for share in spread(Fleet(case), lasting)]} if lasting else {}


def _case(options: Namespace, hosts: int) -> Case:
    from trainshed.studio.forecast import Case

    if bool(options.mtbf) == bool(options.host_mtbf):
        raise UsageError("give either --mtbf, of the whole job, or --host-mtbf, of one host")
    between = _time("--mtbf", options.mtbf) if options.mtbf else _time("--host-mtbf", options.host_mtbf) / hosts
    every = _time("--every", options.every) if options.every else 0.0
    return Case(between, _time("--stall", options.stall), _time("--restart", options.restart), every)


def _time(flag: str, text: str) -> float:
    from trainshed.base.units import seconds_of

    seconds = seconds_of(text)
    if seconds is None or not 0 < seconds <= _MOST:
        raise UsageError(f"{flag} {text!r} is not a time like 30s, 5m, 8h or 2d")
    return seconds


def _hosts(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) <= 10_000_000):
        raise UsageError(f"--hosts {text!r} is not a number of hosts")
    return int(text[:9])


def _price(text: str) -> float:
    try:
        price = float(text or 0)
    except ValueError:
        price = -1.0
    if not 0 <= price < 1e9:
        raise UsageError(f"--price {text!r} is not a price")
    return price


def _lost(one: Expected, hosts: int, price: float) -> dict[str, float]:
    """A day's: hours of hosts, and what they cost."""
    hours = 24 * hosts * (1 - one.goodput)
    return {"lost_host_hours": round(hours, 3), **({"lost": round(hours * price, 2)} if price else {})}


def _table(
    case: Case, hosts: int, price: float, found: list[tuple[str, Expected, dict[str, list[float]]]], lasting: float
) -> str:
    from trainshed.base.units import duration
    from trainshed.runner.display.columns import in_columns

    head = (
        f"{hosts:,} host{'s' if hosts > 1 else ''}, interrupted every {duration(case.between)} on average; a checkpoint "
        f"stalls {duration(case.stall)}, starting again takes {duration(case.restart)}\n\n"
    )
    rows: list[tuple[str, ...]] = [
        ("MEASURE", "CHECKPOINT EVERY", "GOODPUT", "DONE AGAIN", "STALLS", "STARTING", "LOST A DAY")
        + ((f"9 OF 10 IN {duration(lasting)}",) if lasting else ())
    ]
    for name, one, played in found:
        lost = _lost(one, hosts, price)
        cost = f"{lost['lost']:,.2f}" if price else f"{lost['lost_host_hours']:,.1f} host hours"
        shares = (one.goodput, one.again, one.stalled, one.restarting)
        between = [" to ".join(f"{100 * share:.1f}" for share in each) + " %" for each in played.values()]
        rows.append((name, duration(one.interval), *(f"{100 * share:.2f} %" for share in shares), cost, *between))
    return head + in_columns(rows)
