"""The program that Open MPI starts in place of a rank. Run by a bare interpreter, so it imports nothing of ours:
the name of the variable that holds the socket's path is its argument.

Asks `train` for the rank, which gets this process's environment and CPUs, and waits. `train` lets go when the ranks of
the whole job have ended; until then Open MPI's daemon serves them, whatever became of one of them. The exit status is
always 0 then: `train` knows the rank's own, and mpirun has nothing to add to it.
"""

import os
import socket
import sys


def main() -> int:
    """0 when `train` lets go; 1 when it is gone, so that mpirun ends the job on the other hosts."""
    path = os.environ.get(sys.argv[1], "")
    try:
        with socket.socket(socket.AF_UNIX) as door:
            door.connect(path)
            door.sendall(b'{"type": "rank"}\n')
            return 0 if door.recv(64) else 1
    except OSError as error:
        print(f"trainshed: train does not answer at {path!r}: {error.strerror}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
