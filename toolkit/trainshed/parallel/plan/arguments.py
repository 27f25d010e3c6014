"""The command line of `trainshed plan`: read before the package is imported that does the work, which takes torch along."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def read_plan_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of `add_arguments`.

    Raises:
        SystemExit: help was asked for, or the command line cannot be read.
    """
    import argparse

    parser = argparse.ArgumentParser(prog="python -m trainshed.parallel.plan")
    add_arguments(parser)
    return parser.parse_args(argv)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """stages, tensor, virtual, microbatches, pipeline, memory_limit (MiB, 0 for none), ranks, ranks_per_host, gbits,
    gbits_host, cores, tflops, count, settings (JSON), output, emit, script, arguments."""
    parser.description = "Profiles a script's first step and writes a plan."
    add = parser.add_argument
    add("--stages", type=int, default=2, metavar="N", help="pipeline ranks (default: 2)")
    add("--tensor", type=int, default=1, metavar="N", help="ranks that divide each stage's modules (default: 1)")
    add(
        "--virtual",
        type=int,
        metavar="N",
        help="stages on each rank (default: 1; 2 with a V-shaped schedule)",
    )
    add("--microbatches", type=int, default=4, metavar="N", help="of each step (default: 4)")
    add(
        "--pipeline",
        default="interleaved",
        metavar="SCHEDULE",
        help="simple, interleaved (default), interleaved1f1b, interleavedzerobubble, zbvzerobubble or dualpipev",
    )
    add("--memory-limit", type=int, default=0, metavar="MIB", help="memory limit of a stage")
    add(
        "--ranks",
        type=int,
        default=0,
        metavar="N",
        help="choose stages, tensor ranks and replicas for N ranks, instead of --stages and --tensor",
    )
    add("--ranks-per-host", type=int, default=0, metavar="N", help="tensor groups then stay within a host")
    add("--gbits", type=float, default=16.0, metavar="N", help="Gbit/s between ranks, or hosts (default: 16)")
    add("--gbits-host", type=float, default=0.0, metavar="N", help="Gbit/s between ranks of one host (default: as --gbits)")
    add("--cores", type=float, default=0.0, metavar="N", help="of a host, where its ranks have less than one each")
    add(
        "--count",
        action="store_true",
        help="count operations instead of timing them: for a model that is larger than this machine",
    )
    add("--tflops", type=float, default=10.0, metavar="N", help="of a device, where operations are counted (default: 10)")
    add("--settings", default="{}", metavar="JSON", help='others of the job, such as {"bf16": true, "master_weights": true}')
    add("-o", "--output", default="plan.json", metavar="FILE", help="default: plan.json")
    add("--emit", default="", metavar="FILE", help="also write the plan as plain torch, for scripts without trainshed")
    add("script", metavar="SCRIPT", help="the training script")
    add("arguments", nargs="...", metavar="ARGUMENT", help="the script's arguments")
