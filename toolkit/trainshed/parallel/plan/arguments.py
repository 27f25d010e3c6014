"""The command line of `trainshed plan`: read before the package is imported that does the work, which takes torch along."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def read_plan_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """stages, virtual, microbatches, pipeline, memory_limit (MiB, 0 for none), output, script, arguments.

    Raises:
        SystemExit: help was asked for, or the command line cannot be read.
    """
    import argparse

    parser = argparse.ArgumentParser(prog="trainshed plan", description="Profiles a script's first step and writes a plan.")
    parser.add_argument("--stages", type=int, default=2, help="pipeline ranks")
    parser.add_argument("--virtual", type=int, default=1, help="stages a rank")
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument(
        "--pipeline", default="interleaved", help="simple, interleaved, interleaved1f1b or interleavedzerobubble"
    )
    parser.add_argument("--memory-limit", type=int, default=0, help="MiB a stage may take")
    parser.add_argument("-o", "--output", default="plan.json")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser.parse_args(argv)
