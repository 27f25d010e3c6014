"""Wrapper of `mpirun`: corrects the options of SDK v3's MPI driver, with a message, and executes the real program.

    -mca btl_tcp_if_include ethwe      local mode names an interface that no container has: the one of the default route
    -x NCCL_SOCKET_IFNAME=ethwe        the same
    --host a:2,b:2 -np 2               the driver gives the ranks of one host as the number of all (half the slots idle)

Everything else, and any other caller's command line, is passed unchanged. Additional options cannot correct this: Open MPI
rejects an option that is repeated with another value.
"""

from __future__ import annotations

import os
import sys
from itertools import pairwise

from trainshed.base.numerals import whole

from .interfaces import DRIVER_VARIABLE, default, is_valid, list_interfaces, note

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
    """Returns the command line to run, and a message for each change.

    Args:
        arguments: without the program's name.
        interfaces: the network interfaces that exist.
        default: returns the interface that leads to the other hosts, "" if there is none.
    """
    command, notes = list(arguments), []
    for index in range(len(command) - 1):
        option, value = command[index], command[index + 1]
        name, given, text = value.partition("=")
        if option in _MCA and value in _INTERFACES and index + 2 < len(command):
            if not is_valid(command[index + 2], interfaces) and (right := default()):
                notes.append(note(command[index + 2], right))
                command[index + 2] = right
        elif option not in ("-x", "--x") or name not in _VARIABLES or not given:
            continue
        elif not is_valid(text, interfaces) and (right := default()):
            notes.append(note(text, right))
            command[index + 1] = f"{name}={right}"
    if environ.get(DRIVER_VARIABLE):
        notes += _correct_count(command)
    return command, list(dict.fromkeys(notes))


def _correct_count(command: list[str]) -> list[str]:
    """Replaces the number of one host's slots by that of all; returns the message about it."""
    hosts = next((value for option, value in pairwise(command) if option in ("--host", "-host", "-H")), "")
    slots = [
        1 if whole(number) is None else int(number) for _, _, number in (host.partition(":") for host in hosts.split(","))
    ]
    for index, (option, value) in enumerate(pairwise(command)):
        if option in _COUNTS and len(slots) > 1 and value == str(slots[0]):
            command[index + 1] = str(sum(slots))
            return [
                f"{sum(slots)} ranks on {len(slots)} hosts: the driver asks for {slots[0]}, which is the number of one host"
            ]
    return []


def real(name: str, path: str, own: str) -> str:
    """The first program called `name` on `path` that is not in the folder `own`; "" if there is none."""
    for folder in path.split(os.pathsep):
        program = f"{folder or '.'}/{name}"
        if os.path.realpath(folder or ".") != os.path.realpath(own) and os.access(program, os.X_OK):
            return program
    return ""


def main() -> None:
    """Executes the real mpirun."""
    program = real("mpirun", os.environ.get("PATH", os.defpath), os.path.dirname(sys.executable))
    if not program:
        sys.exit("trainshed: mpirun is missing: the image was built with WITH_MPI=0")
    arguments, notes = corrected(sys.argv[1:], os.environ, interfaces=list_interfaces(), default=default)
    for line in notes:
        print(f"trainshed: mpirun: {line}", file=sys.stderr, flush=True)
    os.execv(program, ["mpirun", *arguments])  # by its bare name: with a whole path it sets a prefix


if __name__ == "__main__":
    main()
