"""Serves the page on this machine, until it is interrupted."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Mapping

from trainshed.base.errors import TrainshedError

ADDRESS = "127.0.0.1"
PORT = 8811  # the first that is tried
_TRIED = 20


def serve(environ: Mapping[str, str], folders: tuple[str, ...], port: int, say: Callable[[str], None]) -> None:
    """Serves until SIGINT or SIGTERM.

    Args:
        folders: in which runs are looked for, besides the user's own.
        port: to listen on; 0 for the first free one from `PORT` on.

    Raises:
        TrainshedError: the extra `ui` is not installed, a folder is not there, or the port is taken.
    """
    try:
        import uvicorn

        from .app import Site
        from .connection import BACKLOG, SECONDS, Connection
    except ImportError as error:
        raise TrainshedError(f"the page needs {error.name}", hint="pip install 'trainshed[ui]'") from error
    for folder in folders:
        if not os.path.isdir(folder):
            raise TrainshedError(f"{folder} is not a folder", hint="--runs names a folder with runs in it or below")
    token = secrets.token_hex(24)
    listening = _listen(port)
    site = Site(environ, token, folders)
    number = listening.getsockname()[1]
    config = uvicorn.Config(
        site.app,
        log_level="error",
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        proxy_headers=False,
        http=Connection,
        timeout_keep_alive=int(SECONDS),
        backlog=BACKLOG,
    )
    say(f"http://{ADDRESS}:{number}/#token={token}")
    say(f"for you alone; from another machine: ssh -L {number}:{ADDRESS}:{number} {socket.gethostname()}; Ctrl-C ends it")
    uvicorn.Server(config).run(sockets=[listening])


def _listen(port: int) -> socket.socket:
    """A socket on this machine's own address. Raises TrainshedError: the port is taken."""
    last: OSError | None = None
    for number in [port] if port else [*range(PORT, PORT + _TRIED), 0]:
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((ADDRESS, number))
            made.listen(128)
            return made
        except (OSError, OverflowError) as error:
            made.close()
            last = error if isinstance(error, OSError) else OSError(0, "there is no such port")
    raise TrainshedError(
        f"port {port} of {ADDRESS}: {last.strerror if last else 'is taken'}", hint="name another one with --port, or none"
    )
