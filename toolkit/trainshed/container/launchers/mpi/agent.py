"""The program that mpirun calls as its ssh: `agent VARIABLE HOST COMMAND...`. Its bare interpreter imports nothing of
ours: the variable that holds the socket's path is named by its first argument.

Hands the command to `train`, which has it run on that host, and ends; Open MPI's daemon reports to mpirun by itself.
"""

import json
import os
import socket
import sys


def main() -> int:
    """The exit status for mpirun: whether the command was taken."""
    variable, host, *command = sys.argv[1:]
    path = os.environ.get(variable, "")
    try:
        with socket.socket(socket.AF_UNIX) as door:
            door.connect(path)
            request = {"type": "agent", "host": host, "command": command}
            door.sendall(json.dumps(request).encode() + b"\n")
            return 0 if door.recv(64) else 1
    except OSError as error:
        print(f"trainshed: train does not answer at {path!r}: {error.strerror}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
