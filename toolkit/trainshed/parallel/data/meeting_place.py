"""The meeting place of hosts that come and go: `python -m trainshed.parallel.data.meeting_place --port 29600`.

A small store (torch's TCPStore) that holds words, and no model. It runs until it is ended, on a machine that outlives the
hosts, within a network that only those reach that may train: it asks nobody who they are.
"""

from __future__ import annotations

import argparse
import signal
import sys


def main() -> int:
    """Serves until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(
        prog="python -m trainshed.parallel.data.meeting_place", description="Where hosts that come and go find each other."
    )
    parser.add_argument("--port", type=int, default=29600, help="0: any that is free")
    port = parser.parse_args().port
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    import torch.distributed as dist

    try:
        store = dist.TCPStore("localhost", port, is_master=True, wait_for_workers=False)
    except RuntimeError as error:
        print(f"trainshed: port {port} cannot be served: {str(error).splitlines()[0]}", file=sys.stderr)
        return 1
    print(f"trainshed: hosts meet at port {store.port}", flush=True)
    signal.sigwait(signals)
    return 0


if __name__ == "__main__":
    sys.exit(main())
