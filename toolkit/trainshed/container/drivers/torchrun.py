"""Wrapper of torch's `torchrun`: SDK v3's local mode makes NCCL use `ethwe`, an interface that no container has.

NCCL then finds no network, even on one host. Without SDK v3's torchrun driver this runs torch's program unchanged.
"""

from __future__ import annotations

import os
import sys

from .interfaces import DRIVER_VARIABLE, default, is_valid, list_interfaces, note

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


def corrected(
    environ: Mapping[str, str], *, interfaces: list[str], default: Callable[[], str]
) -> tuple[dict[str, str], list[str]]:
    """Returns the variables to set, and a message for each.

    Args:
        interfaces: the network interfaces that exist.
        default: returns the interface that leads to the other hosts, "" if there is none.
    """
    changed, notes = {}, []
    for name in VARIABLES:
        named = environ.get(name, "")
        if named and not is_valid(named, interfaces) and (right := default()):
            changed[name] = right
            notes.append(note(named, right))
    return changed, list(dict.fromkeys(notes))


def main() -> None:
    """Runs torch's own main."""
    if os.environ.get(DRIVER_VARIABLE):
        changed, notes = corrected(os.environ, interfaces=list_interfaces(), default=default)
        os.environ.update(changed)
        for line in notes:
            print(f"trainshed: torchrun: {line}", file=sys.stderr, flush=True)
    from torch.distributed.run import main as run

    sys.argv[0] = "torchrun"
    run()


if __name__ == "__main__":
    main()
