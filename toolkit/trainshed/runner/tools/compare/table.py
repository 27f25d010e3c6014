"""The comparison as rows: each with both values and what the second gains."""

from __future__ import annotations

from trainshed.base.record import Record

from .facts import Facts


class Row(Record):
    """One line. gain: of the second over the first, in words; "" where there is nothing to compare."""

    name: str
    first: str
    second: str
    gain: str = ""


def rows(first: Facts, second: Facts) -> list[Row]:
    """The four comparisons (throughput, loss, training time, billable seconds), and what the compiler did."""
    made = [
        Row("state", first.state, second.state),
        Row("compiler", first.compiler or "none", second.compiler or "none"),
        _throughput(first, second),
        *_loss(first, second),
        _seconds("training time, s", first.training, second.training),
        _seconds("billable, s", first.billable, second.billable),
    ]
    if first.compiled or second.compiled:
        made += [
            Row("graphs, breaks", _graphs(first), _graphs(second)),
            Row("cache hits, misses", _cache(first), _cache(second)),
        ]
    return made


def _throughput(first: Facts, second: Facts) -> Row:
    """What both scripts print; else steps a second of the whole training time, compilation included."""
    name, a, b = "steps per second", _steps_per_second(first), _steps_per_second(second)
    if first.rate and second.rate and first.rate[0] == second.rate[0]:
        name, a, b = first.rate[0].replace("_", " "), first.rate[1], second.rate[1]
    gain = f"{b / a:.2f}x" if a and b else ""
    return Row(f"throughput, {name}", _number(a), _number(b), gain)


def _steps_per_second(facts: Facts) -> float | None:
    steps = max((step for step, _ in facts.losses), default=0.0)
    return steps / facts.training if steps and facts.training else None


def _loss(first: Facts, second: Facts) -> list[Row]:
    if not first.losses or not second.losses:
        return [Row("loss", "not printed" if not first.losses else "", "not printed" if not second.losses else "")]
    a, b = dict(first.losses), dict(second.losses)
    common = sorted(a.keys() & b.keys())
    made = [Row("loss, last", f"{first.losses[-1][1]:.6g}", f"{second.losses[-1][1]:.6g}")]
    if common:
        step = max(common, key=lambda step: abs(a[step] - b[step]))
        apart = f"{abs(a[step] - b[step]):.3g} at most, at step {step:g}"
        made.append(Row(f"loss, difference over {len(common)} steps", "", "", apart))
    return made


def _seconds(name: str, first: float | None, second: float | None) -> Row:
    gain = ""
    if first and second:
        saved = (first - second) / first  # the formula of the closed compiler's example
        gain = f"{abs(saved):.1%} {'less' if saved >= 0 else 'more'}"
    return Row(name, _number(first), _number(second), gain)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _graphs(facts: Facts) -> str:
    held = facts.compiled
    return f"{held['graphs']}, {held.get('graph_breaks', 0)}" if "graphs" in held else ""


def _cache(facts: Facts) -> str:
    held = facts.compiled.get("fx_cache") or {}
    return f"{held.get('hit', 0)}, {held.get('miss', 0)}" if held else ""


def text_of(pair: tuple[Facts, Facts], made: list[Row]) -> str:
    """The table for a terminal."""
    cells = [["", pair[0].name, pair[1].name, ""], *([row.name, row.first, row.second, row.gain] for row in made)]
    widths = [max(len(line[column]) for line in cells) for column in range(4)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    return "\n".join(lines) + "\n"
