"""Watches the platforms' metadata services, one thread each; a service that cannot be reached is given up quietly."""

from __future__ import annotations

import threading
import time

from . import azure, ec2, gce

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Announce = Callable[[str, str, bool, "float | None"], None]

SOURCES = {"ec2": ec2.Ec2, "gce": gce.Gce, "azure": azure.Azure}
PATIENCE = 3  # failures in a row after which a service counts as out of reach (IMDS behind a hop limit, a firewall)


def start(names: list[str], environ: Mapping[str, str], announce: Announce) -> None:
    """Starts a thread for each platform; they end with the process."""
    for name in names:
        source = SOURCES[name](environ)
        threading.Thread(target=follow, args=(source, announce), name=f"notices-{name}", daemon=True).start()


def follow(source: ec2.Ec2 | gce.Gce | azure.Azure, announce: Announce, pause: Callable[[float], None] = time.sleep) -> None:
    """Asks one source until it has announced the end, has nothing to watch, or cannot be reached."""
    failures = 0
    while failures < PATIENCE:
        try:
            found = source.poll(time.time())
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # no service, or no service that we know
            failures += 1
            found = []
        else:
            failures = 0
        for source_name, reason, stop, deadline in found:
            announce(source_name, reason, stop, deadline)
            if stop:
                return
        if source.nothing_to_watch:
            return
        pause(source.seconds)
