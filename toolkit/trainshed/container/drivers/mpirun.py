"""`mpirun` in front of the real one: corrects what SDK v3's MPI driver says, says so, and turns into the real program.

    -mca btl_tcp_if_include ethwe      local mode names an interface that no container has: the one of the default route
    -x NCCL_SOCKET_IFNAME=ethwe        likewise
    --host a:2,b:2 -np 2               the driver gives the ranks of one host as the number of all (half the slots idle)

Everything else, and everybody else's command line, passes as it is. Options cannot do this: Open MPI refuses an option
that is repeated with another value.
"""

from __future__ import annotations

import os
import sys

from .interfaces import DRIVER_VARIABLE, default, list_interfaces, note, there

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_MCA = ("-mca", "--mca", "-gmca", "--gmca")
_INTERFACES = ("btl_tcp_if_include", "oob_tcp_if_include")
_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
_COUNTS = ("-np", "--np", "-n", "--n", "-c")


def corrected(
    arguments: list[str],
    environ: Mapping[str, str],
    *,
    interfaces: list[str],
    default: Callable[[], str],
) -> tuple[list[str], list[str]]:
    """The command line to be run, and a line about each thing that was changed.

    Args:
        arguments: without the program's name.
        interfaces: the network interfaces that there are.
        default: names the one that leads to the other hosts, "" where none does.
    """
    made, notes = list(arguments), []
    for place in range(len(made) - 1):
        option, value = made[place], made[place + 1]
        name, given, text = value.partition("=")
        if option in _MCA and value in _INTERFACES and place + 2 < len(made):
            if not there(made[place + 2], interfaces) and (right := default()):
                notes.append(note(made[place + 2], right))
                made[place + 2] = right
        elif (
            option in ("-x", "--x") and name in _VARIABLES and given and not there(text, interfaces) and (right := default())
        ):
            notes.append(note(text, right))
            made[place + 1] = f"{name}={right}"
    if environ.get(DRIVER_VARIABLE):
        notes += _count_all(made)
    return made, list(dict.fromkeys(notes))


def _count_all(made: list[str]) -> list[str]:
    """Puts the number of all slots where the driver gives those of one host; what there is to say about it."""
    for place in range(len(made) - 1):
        if made[place] in ("--host", "-host", "-H"):
            slots = [
                int(slots) if slots.isdigit() else 1 for slots in (h.partition(":")[2] for h in made[place + 1].split(","))
            ]
            break
    else:
        return []
    for place in range(len(made) - 1):
        if made[place] in _COUNTS and len(slots) > 1 and made[place + 1] == str(slots[0]):
            made[place + 1] = str(sum(slots))
            return [
                f"{sum(slots)} ranks on {len(slots)} hosts: the driver asks for {slots[0]}, which is the number of one host"
            ]
    return []


def real(name: str, path: str, own: str) -> str:
    """The first program called `name` on `path` that is not in the folder `own`; "" where there is none."""
    for folder in path.split(os.pathsep):
        program = f"{folder or '.'}/{name}"
        if os.path.realpath(folder or ".") != os.path.realpath(own) and os.access(program, os.X_OK):
            return program
    return ""


def main() -> None:
    """Turns into the real mpirun."""
    program = real("mpirun", os.environ.get("PATH", os.defpath), os.path.dirname(sys.executable))
    if not program:
        sys.exit("trainshed: there is no mpirun in this image: it was built with WITH_MPI=0")
    arguments, notes = corrected(sys.argv[1:], os.environ, interfaces=list_interfaces(), default=default)
    for line in notes:
        print(f"trainshed: mpirun: {line}", file=sys.stderr, flush=True)
    os.execv(program, ["mpirun", *arguments])  # by its bare name: a whole path would have it set a prefix of its own


if __name__ == "__main__":
    main()
