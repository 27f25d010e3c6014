"""The program of a rank, and of the one process: `python -m trainshed.parallel.verify.rank ROLE FOLDER STEPS SCRIPT ...`."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from pathlib import Path

from .play import as_one, as_rank
from .script_hooks import Enough


def main(arguments: list[str]) -> int:
    """Runs the script until enough has been seen; returns the exit status."""
    role, folder, steps, script, *rest = arguments
    sys.argv = [script, *rest]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    context = as_rank if role == "rank" else as_one
    try:
        with context(Path(folder), int(steps)):
            runpy.run_path(script, run_name="__main__")
    except Enough:
        return 0
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # process groups are not taken apart: other ranks may have gone
