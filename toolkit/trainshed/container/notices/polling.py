"""Polls the platforms' metadata services, one daemon thread each; stops polling one that cannot be reached.

A thread owns its source, and hands what it finds to `announce`, which has to be safe to call from any thread.
"""

from __future__ import annotations

import threading
import time

from . import azure, ec2, gce

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Announce = Callable[[str, str, bool, "float | None"], None]

SOURCES = {"ec2": ec2.Ec2, "gce": gce.Gce, "azure": azure.Azure}
PATIENCE = 3  # failures in a row after which a service is out of reach (IMDS behind a hop limit, a firewall)


def start(names: list[str], environ: Mapping[str, str], announce: Announce) -> None:
    """Starts a thread for each platform. The threads end with the process.

    Args:
        names: some of `ec2`, `gce`, `azure`.
        announce: takes (source, reason, whether to stop, deadline in seconds since the epoch or None).
    """
    for name in names:
        source = SOURCES[name](environ)
        threading.Thread(target=follow, args=(source, announce), name=f"notices-{name}", daemon=True).start()


def follow(source: ec2.Ec2 | gce.Gce | azure.Azure, announce: Announce, pause: Callable[[float], None] = time.sleep) -> None:
    """Polls one source until it has announced the end, has nothing to watch, or cannot be reached."""
    failures = 0
    while failures < PATIENCE:
        try:
            announcements = source.poll(time.time())
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
        ):  # no service, or an unknown one
            failures += 1
            announcements = []
        else:
            failures = 0
        for source_name, reason, stop, deadline in announcements:
            announce(source_name, reason, stop, deadline)
            if stop:
                return
        if source.nothing_to_watch:
            return
        pause(source.seconds)
