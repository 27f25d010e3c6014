"""`trainshed check-image`: checks a container image from outside."""

from __future__ import annotations

import os
from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS, EXIT_USER

from . import say
from .parser import Parser


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.description = (
        "Checks whether a container image can train: its configuration, `train`, Python, and `trainshed doctor` inside it."
    )
    parser.epilog = (
        "Exit status: 0, or 1 if a check failed; 69 if Docker (or Podman) cannot be used. DOCKER names another command."
    )
    parser.add_argument("image", metavar="IMAGE", help="the image, by name")
    parser.add_argument("--json", action="store_true", help="print the checks as JSON")


def run(options: Namespace) -> int:
    """Prints one line a check; returns 1 if a check failed."""
    from trainshed.base.check import as_json, as_lines
    from trainshed.places.check_image.check import examine
    from trainshed.places.container_engine import find_engine

    checks = examine(options.image, find_engine(os.environ), say)
    print(as_json(checks) if options.json else as_lines(checks))
    return EXIT_USER if any(check.level == "fail" for check in checks) else EXIT_SUCCESS
