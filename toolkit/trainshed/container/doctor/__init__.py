"""`trainshed doctor`: checks that this place has what a job needs. Prints a line for each check; changes nothing.

Works in a container and on a laptop, with and without a job in /opt/ml.
"""

from __future__ import annotations

from trainshed.base.check import Check

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def examine(environ: Mapping[str, str]) -> list[Check]:
    """All checks, of the machine first, in a fixed order."""
    from . import job_checks, machine_checks

    return [*machine_checks.checks(environ), *job_checks.checks(environ)]
