"""The process that writes a job's report when the job is over, so that the job itself waits for nothing and loses nothing.

    python -m trainshed.studio.pages OUTPUT DATA SECONDS

OUTPUT is the job's output folder, DATA the folder in it where the report goes. Standard input holds the secrets that are
masked, as a list in JSON. It ends by itself after SECONDS.
"""

from __future__ import annotations

import json
import signal
import sys

from trainshed.base.files import write_atomic

from .facts import gather
from .markup import is_ours
from .report import report


def main(output: str, data: str, seconds: float) -> int:
    """Writes the report; returns the exit status. Its path, or what is wrong, goes to standard output, in one line."""
    signal.setitimer(signal.ITIMER_REAL, seconds)  # its default action ends this process
    secrets = tuple(word for word in json.load(sys.stdin) if isinstance(word, str))
    run = gather("", [[(output, data)]], {}, secrets, seconds / 2)
    path = f"{data}/report.html"
    if not is_ours(path):  # the script's own
        path = f"{data}/trainshed-report.html"
    try:
        write_atomic(path, report(run))
    except OSError as error:
        print(f"{path}: {error.strerror}")
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
