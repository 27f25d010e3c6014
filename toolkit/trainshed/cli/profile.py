"""`trainshed profile`: what a running job's steps consist of, operator by operator."""

from __future__ import annotations

import os
from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS, TrainshedError, visible

from .parser import Parser
from .which import run_of, run_or_none

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.observe.traces import TraceResult

MOST_SHOWN = 15


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.description = (
        "Records some steps of one rank of a running job with torch.profiler: prints the operators that take most time, and "
        "leaves a trace for Perfetto. The job must have been started with `profile: auto` (docs/profiler.md)."
    )
    parser.epilog = "RUN may also be a job folder (/opt/ml) in which `train` runs."
    parser.add_run(acts=True)
    parser.add_argument("--json", action="store_true", help="print JSON: all operators that were recorded, in seconds")
    parser.add_argument("--steps", type=int, default=5, metavar="N", help="how many steps (default: 5)")
    parser.add_argument("--rank", type=int, default=0, metavar="N", help="whose (default: 0)")
    parser.add_argument("--timeout", type=float, default=300.0, metavar="SECONDS", help="how long to wait (default: 300)")


def run(options: Namespace) -> int:
    """Asks, waits and prints; returns the exit status. Raises TrainshedError."""
    import time

    from trainshed.observe.place import profiler_folder
    from trainshed.observe.traces import MOST_STEPS, TraceRequest
    from trainshed.runner.tools.profile_request import folders_of, is_over, look

    if not 0 < options.steps <= MOST_STEPS or options.rank < 0 or options.timeout <= 0:
        raise TrainshedError(f"--steps must be from 1 to {MOST_STEPS}, --rank at least 0, --timeout more than 0")
    now = time.time()
    request = TraceRequest(id=int(now * 1000), steps=options.steps, rank=options.rank, until=now + options.timeout)
    stored = run_or_none(options.run, _is_job_folder) if options.run else run_of(options)
    if stored is None:
        found, trace = look([profiler_folder(os.path.abspath(f"{options.run}/output"))], request, options.timeout)
    else:
        found, trace = look(folders_of(stored), request, options.timeout, lambda: is_over(stored))
    if options.json:
        from trainshed.base.plain_json import as_json

        operators = [one.plain() for one in found.operators]
        told = {"steps": request.steps, "seconds": found.seconds, "busy": found.busy, "trace": trace}
        print(as_json({**told, "operators": operators}), end="")
        return EXIT_SUCCESS
    print(visible(table(found, request.steps)))
    print(visible(f"trace: {trace} (open it at https://ui.perfetto.dev)"))
    return EXIT_SUCCESS


def _is_job_folder(path: str) -> bool:
    """Whether it is an /opt/ml; `train` makes `output` when it starts."""
    return any(os.path.isdir(f"{path}/{name}") for name in ("output", "input/config"))


def table(found: TraceResult, steps: int) -> str:
    """The operators as lines of text."""
    each = 1000 / steps
    device = any(one.device > 0 for one in found.operators)
    lines = [f"{steps} steps in {found.seconds:.3g} s, {each * found.seconds:.3g} ms each"]
    if found.busy is not None:
        where = "the device is at work in" if device else "operators run in"
        rest = "the host" if device else "Python, data or other ranks"
        lines.append(f"{where} {100 * found.busy:.0f} % of this time; the rest is waiting for {rest}")
    lines.append("")
    lines.append(f"{'ms a step':>10} {'share':>6} {'calls':>7}  {'on the device' if device else 'on the CPU'}")
    for one in found.operators[:MOST_SHOWN]:
        spent = one.device if device else one.cpu
        share = spent / found.seconds if found.seconds > 0 else 0.0
        lines.append(f"{each * spent:>10.3f} {100 * share:>5.1f}% {one.calls / steps:>7.4g}  {one.name[:80]}")
    return "\n".join(lines)
