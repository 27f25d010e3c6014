"""Serves the page on this machine, until it is interrupted."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from trainshed.base.errors import TrainshedError

ADDRESS = "127.0.0.1"
PORT = 8811  # the first that is tried
_TRIED = 20
_WHOSE = "for you alone; from another machine"
_USUAL_PORTS = {"http": ":80", "https": ":443"}  # which browsers leave out


def require(folders: tuple[str, ...]) -> None:
    """Raises TrainshedError where the extra `ui` is not installed, or a folder is not there."""
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise TrainshedError(f"the page needs {error.name}", hint="pip install 'trainshed[ui]'") from error
    for folder in folders:
        if not os.path.isdir(folder):
            raise TrainshedError(f"{folder} is not a folder", hint="--runs names a folder with runs in it or below")


def serve(
    environ: Mapping[str, str],
    folders: tuple[str, ...],
    port: int,
    say: Callable[[str], None],
    *,
    behind: str = "",
    read_only: bool = False,
) -> None:
    """Serves until SIGINT or SIGTERM.

    Args:
        folders: in which runs are looked for, besides the user's own.
        port: to listen on; 0 for the first free one from `PORT` on.
        behind: the address under which a reverse proxy shows the page, "" for none.
        read_only: nobody may act; else a proxy's other users may look alone.

    Raises:
        TrainshedError: the address is none, or the port is taken.
    """
    import uvicorn

    from .app import Site
    from .connection import BACKLOG, SECONDS, Connection
    from .entry import Access

    behind = _address(behind)
    entry = Access("" if read_only else secrets.token_hex(24), secrets.token_hex(24) if read_only or behind else "", behind)
    listening = _listen(port)
    site = Site(environ, entry, folders)
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
    address = behind or f"http://{ADDRESS}:{number}/"
    say(f"{address}#token={entry.token or entry.looks}")
    if entry.token and entry.looks:
        say(f"for others, who may only look: {address}#token={entry.looks}")
    reached = f"ssh -L {number}:{ADDRESS}:{number} {socket.gethostname()}"
    say(
        f"the proxy leads to http://{ADDRESS}:{number}/; Ctrl-C ends it"
        if behind
        else f"{_WHOSE}: {reached}; Ctrl-C ends it"
    )
    uvicorn.Server(config).run(sockets=[listening])


def _address(behind: str) -> str:
    """An address in the form that browsers give it. Raises TrainshedError where it is none."""
    if not behind:
        return ""
    try:
        scheme, netloc, path, *more = urlsplit(behind)
    except ValueError:
        scheme = netloc = path = ""
        more = []
    if scheme not in _USUAL_PORTS or not netloc or "@" in netloc or any(more):
        raise TrainshedError(f"--behind {behind}: is not an address", hint="like https://team.example/trainshed/")
    return f"{scheme}://{netloc.lower().removesuffix(_USUAL_PORTS[scheme])}{path.rstrip('/')}/"


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
