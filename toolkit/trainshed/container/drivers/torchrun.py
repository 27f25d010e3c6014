"""`torchrun` in front of torch's: in SDK v3's local mode NCCL is told to use `ethwe`, an interface that no container has.

NCCL then finds no network at all, on one host, too. Outside SDK v3's torchrun driver this is torch's program as it is.
"""

from __future__ import annotations

import os
import sys

from .interfaces import DRIVER_VARIABLE, default, list_interfaces, note, there

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


def corrected(
    environ: Mapping[str, str], *, interfaces: list[str], default: Callable[[], str]
) -> tuple[dict[str, str], list[str]]:
    """The variables to be set, and a line about each.

    Args:
        interfaces: the network interfaces that there are.
        default: names the one that leads to the other hosts, "" where none does.
    """
    changed, notes = {}, []
    for name in VARIABLES:
        named = environ.get(name, "")
        if named and not there(named, interfaces) and (right := default()):
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
