"""`trainshed doctor`: checks that this place has what a job needs. Prints a line for each check; changes nothing.

Works in a container and on a laptop, with and without a job in /opt/ml.
"""

from __future__ import annotations

import os
import sys

from trainshed.base.check import Check, as_json, as_lines
from trainshed.base.errors import EXIT_JOB, EXIT_SUCCESS, EXIT_USER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

USAGE = """\
usage: trainshed doctor [FOLDER] [--json] [--cluster]

Checks this machine or container, and the job in FOLDER (default: SAGEMAKER_BASE_DIR, else /opt/ml). Changes nothing.

  --cluster run this on every host of the job: names, ports, latency, bandwidth, clocks, the same image and code
            everywhere; the first host prints the table
  --json    print the checks as JSON
  --help    print this and exit

Exit status: 0, or 1 if a check failed. `trainshed check-image IMAGE` checks an image from outside.
"""


def main(arguments: list[str]) -> int:
    """The `trainshed doctor` command; returns its exit status."""
    if "--help" in arguments or "-h" in arguments:
        print(USAGE, end="")
        return EXIT_SUCCESS
    folders = [argument for argument in arguments if not argument.startswith("-")]
    unknown = [argument for argument in arguments if argument.startswith("-") and argument not in ("--json", "--cluster")]
    if unknown or len(folders) > 1:
        wrong = unknown[0] if unknown else folders[1]
        print(f"trainshed doctor does not take {wrong!r}; see `trainshed doctor --help`", file=sys.stderr)
        return EXIT_JOB
    environ = dict(os.environ)
    if folders:
        environ["SAGEMAKER_BASE_DIR"] = folders[0]
    if "--cluster" in arguments:
        from ..console import say
        from .cluster_checks import checks as examine_cluster

        checks = examine_cluster(environ, say)
    else:
        checks = examine(environ)
    print(as_json(checks) if "--json" in arguments else as_lines(checks))
    return EXIT_USER if any(check.level == "fail" for check in checks) else EXIT_SUCCESS


def examine(environ: Mapping[str, str]) -> list[Check]:
    """All checks, of the machine first, in a fixed order."""
    from . import job_checks, machine_checks

    return [*machine_checks.checks(environ), *job_checks.checks(environ)]
