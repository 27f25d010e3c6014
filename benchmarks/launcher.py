"""What a launcher costs the training script it starts: trainshed beside bare exec, sagemaker-training and torchrun.

    python benchmarks/launcher.py                       # everything; some minutes on two cores
    python benchmarks/launcher.py --quick --no-torch    # a first look in under a minute
    python benchmarks/launcher.py --json out.json

All launchers run the same jobs in turn, round after round, so that whatever else the machine does meets them alike.
Compare CPU times and least values; medians show how busy the machine was. The peer is built from source into a virtual
environment of its own and needs a C compiler. Results are on stdout, progress on stderr.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from _claims import claim
from _measure import BenchError, Job, Launcher, descendants, peak_memory, run_job, summary
from _venvs import PEER, Venvs, say

OURS, BARE, TORCHRUN = "trainshed", "bare exec", "torchrun"
MIB = 1 << 20
# A line of launcher_jobs/log.py, whole; a launcher may put a tag in brackets before it.
LOG_LINE = re.compile(rb"^(?:\[[^\]\n]*\] ?)?bench step +(\d+) loss 0\.6931471805599453 accuracy 0\.9125 end$", re.M)

T = TypeVar("T")


@dataclass(frozen=True)
class Goal:
    """What trainshed promises of a row: `value`, worked out from it, is at most `limit`."""

    text: str
    value: float
    limit: float

    @property
    def met(self) -> bool:
        return self.value <= self.limit


@dataclass
class Row:
    """One line of the table: `values` maps a launcher's name to its least and median, or to a word instead."""

    name: str
    unit: str
    values: dict[str, dict[str, float] | str]
    goals: list[Goal] = field(default_factory=list)

    def least(self, launcher: str) -> float | None:
        numbers = self.values.get(launcher)
        return numbers["min"] if isinstance(numbers, dict) else None

    def expect(self, limit: float, text: str, times: str | None = None) -> Row:
        """Adds the goal that trainshed's least value, divided by that of the launcher `times`, is at most `limit`."""
        ours, base = self.least(OURS), 1.0 if times is None else self.least(times)
        if ours is not None and base:
            self.goals.append(Goal(text, ours / base, limit))
        elif ours is None and OURS in self.values:
            self.goals.append(Goal(text, float("inf"), limit))
        return self


@dataclass(frozen=True)
class Size:
    """How much work is done; `runs` are the samples of the short jobs."""

    runs: int
    log_runs: int
    lines: int
    short_lines: int
    gloo_runs: int


FULL = Size(runs=20, log_runs=3, lines=1_000_000, short_lines=100_000, gloo_runs=5)
QUICK = Size(runs=4, log_runs=1, lines=100_000, short_lines=10_000, gloo_runs=2)


def in_turn(launchers: Sequence[Launcher], runs: int, measure: Callable[[Launcher], T]) -> dict[str, list[T]]:
    """`runs` samples of each launcher, one launcher after the other; a round before them warms the caches."""
    samples: dict[str, list[T]] = {launcher.name: [] for launcher in launchers}
    for number in range(runs + 1):
        for launcher in launchers:
            sample = measure(launcher)
            if number:
                samples[launcher.name].append(sample)
    return samples


def row(name: str, unit: str, samples: dict[str, list[float]]) -> Row:
    return Row(name, unit, {launcher: summary(values) for launcher, values in samples.items()})


# --- the measurements: each yields rows ------------------------------------------------------------------------------


def noop(launchers: Sequence[Launcher], size: Size) -> list[Row]:
    """CPU seconds of a job that does nothing, launcher and script together."""
    kinds = (("empty.py", "empty script"), ("arguments.py", "script that reads its arguments"))
    return [noop_row(launchers, size, script, what) for script, what in kinds]


def noop_row(launchers: Sequence[Launcher], size: Size, script: str, what: str) -> Row:
    samples = in_turn(launchers, size.runs, lambda launcher: run_job(launcher, script).cpu / 1e9)
    cpu = row(f"CPU of a no-op job, {what}", "s", samples)
    return cpu.expect(0.05, "at most 0.05 s").expect(2.5, "at most 2.5 x bare exec", times=BARE)


def edges(launchers: Sequence[Launcher], size: Size) -> list[Row]:
    """The wall time before the script's first statement and after its last one."""
    samples = in_turn(launchers, size.runs, lambda launcher: run_job(launcher, "marks.py"))
    before = {name: [(job.marks["first"] - job.started) / 1e6 for job in jobs] for name, jobs in samples.items()}
    after = {name: [(job.ended - job.marks["last"]) / 1e6 for job in jobs] for name, jobs in samples.items()}
    return [
        row("start to the script's first statement", "ms", before),
        row("script's last statement to exit", "ms", after).expect(10, "at most 10 ms"),
    ]


@dataclass(frozen=True)
class LogRun:
    launcher_cpu: float
    """Seconds; everything but the script's own."""
    seconds: float
    """The script's wall time for its lines."""
    torn: int
    """Lines that did not come out whole."""


def log_run(launcher: Launcher, style: str, lines: int) -> LogRun:
    environ = {"BENCH_LINES": str(lines), "BENCH_STYLE": style}
    if style == "words":
        environ["PYTHONUNBUFFERED"] = "1"
    with Job(launcher, "log.py", environ) as job:
        end = job.wait()
        whole = bytearray(lines)
        for match in LOG_LINE.finditer(job.stdout.read_bytes()):
            whole[int(match[1])] = 1
        return LogRun((end.cpu - end.marks["cpu"]) / 1e9, end.marks["elapsed"] / 1e9, lines - sum(whole))


def logs(launchers: Sequence[Launcher], size: Size) -> list[Row]:
    """What a line costs the launcher (the same job without lines taken off), and what becomes of it."""
    blocks = log_rows(launchers, size, "blocks", size.lines, "script with a buffer")
    blocks[0].expect(0.5, "at most 0.5 us")
    lines = log_rows(launchers, size, "lines", size.short_lines, "plain print")
    return blocks + lines + log_rows(launchers, size, "words", size.short_lines, "unbuffered print of 8 words")


def log_rows(launchers: Sequence[Launcher], size: Size, style: str, lines: int, what: str) -> list[Row]:
    say(f"  {lines:,} lines, {what}")
    idle = in_turn(launchers, max(5, size.log_runs), lambda launcher: log_run(launcher, style, 0).launcher_cpu)
    runs = in_turn(launchers, size.log_runs, lambda launcher: log_run(launcher, style, lines))
    cost, speed, torn = {}, {}, {}
    for name, jobs in runs.items():
        cost[name] = [max(0.0, job.launcher_cpu - min(idle[name])) / lines * 1e6 for job in jobs]
        speed[name] = [job.seconds / lines * 1e6 for job in jobs]
        torn[name] = [float(max(job.torn for job in jobs))]
    return [
        row(f"launcher's CPU a line, {what}", "us", cost),
        row(f"script's wall time a line, {what}", "us", speed),
        row(f"lines torn of {lines:,}, {what}", "lines", torn).expect(0, "none"),
    ]


def sigterm(launchers: Sequence[Launcher], size: Size) -> list[Row]:
    """From SIGTERM at the launcher to the first statement of the script's handler."""

    def latency(launcher: Launcher) -> float | None:
        with Job(launcher, "sigterm.py") as job:
            job.script_pid("ready")
            sent = time.monotonic_ns()
            os.kill(job.pid, signal.SIGTERM)
            if job.wait_for_mark("sigterm", 0) is None:
                # A launcher that has gone has no more to forward; half a second covers what was on its way.
                job.wait(20, check=False)
                job.wait_for_mark("sigterm", 0.5)
            handled = job.marks().get("sigterm")
            return None if handled is None else (handled - sent) / 1e6

    values: dict[str, dict[str, float] | str] = {}
    for launcher in launchers:
        seen = [latency(launcher) for _ in range(size.runs if launcher.name == OURS else min(size.runs, 3))]
        arrived = [value for value in seen if value is not None]
        values[launcher.name] = summary(arrived) if len(arrived) == len(seen) else "never"
    return [Row("SIGTERM to the script's handler", "ms", values).expect(5, "at most 5 ms")]


def memory(launchers: Sequence[Launcher], size: Size) -> list[Row]:
    """Peak resident memory of the launcher's processes, taken while the script is still there after many lines."""

    def peak(launcher: Launcher) -> float:
        environ = {"BENCH_LINES": str(size.short_lines), "BENCH_STYLE": "blocks", "BENCH_HOLD": "1"}
        with Job(launcher, "log.py", environ) as job:
            script = job.script_pid("holding")
            mine = {job.pid, *descendants(job.pid)} - {script, *descendants(script)}
            total = sum(peak_memory(pid) for pid in mine)
            job.release()
            job.wait()
            return total / MIB

    relaying = [launcher for launcher in launchers if launcher.relays]
    samples = in_turn(relaying, 2, peak)
    return [row("launcher's peak memory", "MiB", samples).expect(20, "at most 20 MiB")]


def gloo(launchers: Sequence[Launcher], size: Size) -> list[Row]:
    """Wall time of a job whose two ranks meet once: torchrun against trainshed's torch distribution."""
    two_ranks = {"sagemaker_torch_distributed_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2"}

    def wall(launcher: Launcher) -> float:
        return run_job(launcher, "gloo.py", hyperparameters=two_ranks).wall / 1e9

    samples = in_turn(launchers, size.gloo_runs, wall)
    return [row("2 ranks, gloo init and all_reduce", "s", samples).expect(0.6, "at most 0.6 x torchrun", times=TORCHRUN)]


MEASUREMENTS: dict[str, Callable[[Sequence[Launcher], Size], list[Row]]] = {
    "noop": noop,
    "edges": edges,
    "log": logs,
    "sigterm": sigterm,
    "memory": memory,
    "gloo": gloo,
}

# --- the report ------------------------------------------------------------------------------------------------------


def cell(numbers: dict[str, float] | str | None) -> str:
    if numbers is None:
        return "-"
    if isinstance(numbers, str):
        return numbers
    least, median = (f"{numbers[key]:.3g}" if numbers[key] < 1000 else f"{numbers[key]:,.0f}" for key in numbers)
    return least if least == median else f"{least} / {median}"


def verdict(goal: Goal) -> str:
    return f"{'met' if goal.met else 'NOT MET'}: {goal.value:.3g}, {goal.text}"


def table(rows: Sequence[Row]) -> str:
    """The rows as aligned text: least / median of each launcher, then the goals, one a line."""
    names = list(dict.fromkeys(name for r in rows for name in r.values))
    lines = [["least / median", "", *names, "goal for trainshed"]]
    for r in rows:
        verdicts = [verdict(goal) for goal in r.goals] or [""]
        lines.append([r.name, r.unit, *(cell(r.values.get(name)) for name in names), verdicts[0]])
        lines += [["", "", *("" for _ in names), more] for more in verdicts[1:]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def claim_all(rows: Sequence[Row]) -> None:
    """Tells each goal of each row, and rows beside the peer that have none."""
    for each in rows:
        peer = next((name for name in ("sagemaker-training", TORCHRUN) if each.least(name) is not None), None)
        for goal in each.goals:
            claim(f"launcher: {each.name}: {goal.text}", goal.value, "", limit=goal.limit)
        if not each.goals and peer is not None and (ours := each.least(OURS)) is not None:
            claim(f"launcher: {each.name}", ours, each.unit, times=1.0, peer=each.least(peer), peer_name=peer)


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def as_json(rows: Sequence[Row], size: Size) -> dict[str, Any]:
    return {
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()},
        "peer": PEER,
        "size": vars(size),
        "rows": [
            {
                "name": r.name,
                "unit": r.unit,
                "values": r.values,
                "goals": [{"text": g.text, "value": finite(g.value), "limit": g.limit, "met": g.met} for g in r.goals],
            }
            for r in rows
        ],
    }


def arguments() -> argparse.Namespace:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "trainshed-benchmarks")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer runs and lines")
    parser.add_argument("--only", nargs="+", choices=MEASUREMENTS, metavar="ROWS", help=f"of {', '.join(MEASUREMENTS)}")
    parser.add_argument("--no-torch", action="store_true", help="leave out the gloo row")
    parser.add_argument("--no-peer", action="store_true", help="leave out sagemaker-training")
    parser.add_argument("--no-trainshed", action="store_true", help="measure the others alone")
    parser.add_argument("--python", default=sys.executable, help="makes the virtual environments (default: this one)")
    parser.add_argument("--torch-python", help="an interpreter that has torch, to borrow it from (default: --python)")
    parser.add_argument("--workdir", type=Path, default=cache, help="where they are kept (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers there")
    return parser.parse_args()


def measure_all(args: argparse.Namespace) -> list[Row]:
    size = QUICK if args.quick else FULL
    wanted = [name for name in args.only or MEASUREMENTS if not (args.no_torch and name == "gloo")]
    venvs = Venvs(args.workdir.resolve(), args.python)
    plain: list[Launcher] = []
    if set(wanted) - {"gloo"}:
        plain.append(venvs.bare())
        if not args.no_peer:
            plain += [venvs.peer(), venvs.peer_capturing()]
        if not args.no_trainshed:
            plain.append(venvs.trainshed())
    with_torch: list[Launcher] = []
    if "gloo" in wanted:
        torch_python = args.torch_python or args.python
        with_torch.append(venvs.torchrun(torch_python))
        if not args.no_trainshed:
            with_torch.append(venvs.trainshed_with_torch(torch_python))
    rows = []
    for name in wanted:
        say(f"measuring {name}")
        launchers = with_torch if name == "gloo" else plain
        rows += MEASUREMENTS[name](launchers, size)
    return rows


def main() -> int:
    args = arguments()
    try:
        rows = measure_all(args)
    except BenchError as error:
        print(f"launcher.py: {error}", file=sys.stderr)
        return 1
    print(table(rows))
    claim_all(rows)
    if args.json:
        args.json.write_text(json.dumps(as_json(rows, QUICK if args.quick else FULL), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
