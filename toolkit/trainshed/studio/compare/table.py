"""The comparison as rows: each with the value of every run, and what the others gain over the first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trainshed.base.errors import one_line, shorten
from trainshed.base.record import Record

from .facts import LOSSES, Facts


class ComparisonRow(Record):
    """One line.

    values: one for each run.
    gains: of each run after the first over the first, in words; "" where there is nothing to compare.
    """

    name: str
    values: tuple[str, ...]
    gains: tuple[str, ...] = ()


def rows(*runs: Facts) -> list[ComparisonRow]:
    """Throughput, loss, training time, billable seconds, all other metrics, the data, and what the compiler did."""
    made = [
        _row("state", [run.state for run in runs]),
        _row("compiler", [run.compiler or "none" for run in runs]),
        _throughput(runs),
        *_loss(runs),
        _seconds("training time, s", [run.training for run in runs]),
        _seconds("billable, s", [run.billable for run in runs]),
    ]
    made += _others(runs)
    made += [_data(name, runs) for name in sorted(set().union(*(run.data for run in runs)))]
    if any(run.compiled for run in runs):
        made += [_row("graphs, breaks", map(_graphs, runs)), _row("cache hits, misses", map(_cache, runs))]
    return made


def _row(name: str, values: Iterable[str], gains: Iterable[str] = ()) -> ComparisonRow:
    values = tuple(values)
    return ComparisonRow(name, values, tuple(gains) or ("",) * (len(values) - 1))


def _throughput(runs: Sequence[Facts]) -> ComparisonRow:
    """What all scripts print; else steps a second of the whole training time, compilation included."""
    named = {run.rate[0] for run in runs if run.rate}
    printed = [run.rate[1] for run in runs if run.rate]
    if len(named) == 1 and len(printed) == len(runs):
        name, values = named.pop().replace("_", " "), [*printed]
        return _gained(f"throughput, {name}", values)
    return _gained("throughput, steps per second", [_steps_per_second(run) for run in runs])


def _gained(name: str, values: Sequence[float | None]) -> ComparisonRow:
    first = values[0]
    gains = [f"{value / first:.2f}x" if first and value else "" for value in values[1:]]
    return _row(name, map(_number, values), gains)


def _steps_per_second(facts: Facts) -> float | None:
    steps = max((step for step, _ in facts.losses), default=0.0)
    return steps / facts.training if steps and facts.training else None


def _loss(runs: Sequence[Facts]) -> list[ComparisonRow]:
    if not all(run.losses for run in runs):
        return [_row("loss", ["" if run.losses else "not measured" for run in runs])]
    made = [_row("loss, last", [f"{run.losses[-1][1]:.6g}" for run in runs])]
    a = dict(runs[0].losses)
    common = sorted(a.keys() & set.intersection(*(set(dict(run.losses)) for run in runs[1:])))
    if common:
        apart = []
        for run in runs[1:]:
            b = dict(run.losses)
            distance, step = max((abs(a[step] - b[step]), -step) for step in common)
            apart.append(f"{distance:.3g} at most, at step {-step:g}")
        made.append(_row(f"loss, difference over {len(common)} steps", [""] * len(runs), apart))
    return made


def _others(runs: Sequence[Facts]) -> list[ComparisonRow]:
    """The last value of each metric that no other row tells."""
    losses = {name for run in runs for name in run.metrics if name in LOSSES}
    rates = {run.rate[0] if run.rate else "" for run in runs}
    told = {*(losses if len(losses) == 1 and all(run.losses for run in runs) else ()), *(rates if len(rates) == 1 else ())}
    names = dict.fromkeys(name for run in runs for name in run.metrics if name not in told)
    return [_last(name, [run.metrics.get(name) for run in runs]) for name in names]


def _last(name: str, values: Sequence[float | None]) -> ComparisonRow:
    return _row(f"{shorten(one_line(name), 60)}, last", ["" if one is None else f"{one:.6g}" for one in values])


def _seconds(name: str, values: Sequence[float | None]) -> ComparisonRow:
    return _row(name, map(_number, values), [_saved(values[0], value) for value in values[1:]])


def _saved(first: float | None, second: float | None) -> str:
    if not (first and second):
        return ""
    saved = (first - second) / first  # the formula of the closed compiler's example
    return f"{abs(saved):.1%} {'less' if saved >= 0 else 'more'}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _data(channel: str, runs: Sequence[Facts]) -> ComparisonRow:
    """The digests of a channel's data; of several hosts with parts of their own the first, and how many more."""
    held = [run.data.get(channel, ()) for run in runs]
    values = [f"{one[0] or 'unknown'}{f' and {len(one) - 1} more' if one[1:] else ''}" if one else "" for one in held]
    return _row(f"data, {channel}", values, [_same_data(held[0], other) for other in held[1:]])


def _same_data(first: tuple[str, ...], second: tuple[str, ...]) -> str:
    """What two runs' digests say: those of one method alone can be compared (machine/fingerprint.py)."""
    if not first or not second:
        return ""
    methods = {one.partition(":")[0] for one in (*first, *second)}
    if methods & {"", "incomplete"} or len(methods) > 1:
        return "not comparable"
    return "the same" if first == second else "other data"


def _graphs(facts: Facts) -> str:
    held = facts.compiled
    return f"{held['graphs']}, {held.get('graph_breaks', 0)}" if "graphs" in held else ""


def _cache(facts: Facts) -> str:
    held = facts.compiled.get("fx_cache") or {}
    return f"{held.get('hit', 0)}, {held.get('miss', 0)}" if held else ""


def text_of(runs: Sequence[Facts], made: list[ComparisonRow]) -> str:
    """The table for a terminal: of two runs with the gain in a column of its own, else behind the values."""
    pair = len(runs) == 2
    cells = [["", *(run.name for run in runs), *([""] if pair else [])]]
    for row in made:
        cells.append([row.name, *(row.values if pair else with_gains(row)), *(row.gains if pair else ())])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    return "\n".join(lines) + "\n"


def with_gains(row: ComparisonRow) -> list[str]:
    """The values, each with what it gains over the first: `75 (25.0% less)`."""
    said = [
        f"{value} ({gain})" if value and gain else value or gain
        for value, gain in zip(row.values[1:], row.gains, strict=True)
    ]
    return [row.values[0], *said]
