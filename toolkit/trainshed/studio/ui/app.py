"""The application: which address does what. Everything below /api needs the token (`guard.py`)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from trainshed.base.errors import TrainshedError
from trainshed.metrics.media_reading import media_of
from trainshed.runner.control import operations
from trainshed.runner.state.outputs import attempts_of, outputs_of
from trainshed.runner.state.run_goodput import goodput_of
from trainshed.runner.state.stored import Stored
from trainshed.studio.catalogue.language import ExpressionError
from trainshed.studio.pages.facts import RunFacts, read_attempts
from trainshed.studio.pages.report import report

from . import album, browse, logbook
from .actions import Actions
from .catalog import Catalog, key_of, said
from .connection import mark_as_proven
from .details import details
from .guard import Guard
from .measured import Machines
from .plots import Plots
from .tickets import Tickets

STATIC = os.path.join(os.path.dirname(os.path.abspath(__file__)), "static")
FILES = {
    "app.js": "text/javascript", "media.js": "text/javascript", "uPlot.iife.min.js": "text/javascript",
    "style.css": "text/css", "uPlot.min.css": "text/css",
}  # fmt: skip
MOST_OVERLAID = 24
_BLOCK = 1 << 18
Answer = Callable[[Stored, dict[str, Any]], Any]


class _Refused(Exception):
    """A request that asks for something that is not there, or not in this form."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class Site:
    """The page's server.

    Args:
        token: what every request for data must hold.
        folders: further folders in which runs are looked for.
    """

    def __init__(self, environ: Mapping[str, str], token: str, folders: tuple[str, ...] = ()) -> None:
        self._catalog = Catalog(environ, folders)
        self._plots, self._machines = Plots(), Machines()
        self._tickets, self._actions = Tickets(), Actions(environ)
        by_run: dict[str, tuple[str, Answer]] = {
            "": ("GET", self._details),
            "/charts": ("POST", self._charts),
            "/machine": ("POST", self._machine),
            "/log": ("GET", self._log),
            "/media": ("GET", self._media),
            "/medium": ("GET", self._medium),
            "/search": ("GET", self._search),
            "/files": ("GET", self._files),
            "/clone": ("GET", self._clone),
            "/ticket": ("POST", self._ticket),
            "/stop": ("POST", self._stop),
            "/resume": ("POST", self._resume),
            "/again": ("POST", self._again),
        }
        routes = [
            Route("/", self._page),
            Route("/static/{name}", self._static),
            Route("/ticket/{word}/{name}", self._fetch),
            Route("/api/runs", self._runs),
            Route("/api/names", self._names),
            Route("/api/filter", self._filter, methods=["POST"]),
            Route("/api/overlay", self._overlay, methods=["POST"]),
            *(Route(f"/api/runs/{{key}}{path}", self._of_run(act), methods=[how]) for path, (how, act) in by_run.items()),
        ]
        self.app = Starlette(routes=routes, middleware=[Middleware(Guard, token=token)])

    # --- pages and files ----------------------------------------------------------------------------------------------

    async def _page(self, _request: Request) -> Response:
        return FileResponse(f"{STATIC}/index.html", media_type="text/html")

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in FILES:
            return JSONResponse({"error": "there is no such file"}, 404)
        return FileResponse(f"{STATIC}/{name}", media_type=FILES[name], headers={"Cache-Control": "no-cache"})

    async def _fetch(self, request: Request) -> Response:
        """What a ticket stands for. A report has its own policy; a file is only ever saved."""
        held = self._tickets.take(request.path_params["word"])
        run = self._catalog.find(held[0]) if held else None
        if held is None or run is None:
            return JSONResponse({"error": "this address was good once, for a minute"}, 404)
        mark_as_proven(request.scope)
        if not held[1]:
            page = await run_in_threadpool(self._report, run)
            policy = (
                "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
            )
            return HTMLResponse(page, headers={"Content-Security-Policy": policy})
        try:
            fd, size = browse.opened(run.folder, held[1])
        except browse.NoFile as error:
            return JSONResponse({"error": error.message}, 404)
        headers = {"Content-Disposition": "attachment", "Content-Length": str(size), "Content-Security-Policy": "sandbox"}
        return StreamingResponse(_blocks(fd, size), media_type="application/octet-stream", headers=headers)

    def _report(self, run: Stored) -> str:
        curves, whole = self._plots.curves(run.folder, 10.0)
        spent = goodput_of(run) or {}
        told = (run.name, read_attempts(attempts_of(run.folder)), curves, run.status, whole, spent)
        return report(RunFacts(*told, media=media_of(outputs_of(run.folder))))

    # --- data ---------------------------------------------------------------------------------------------------------

    async def _runs(self, request: Request) -> Response:
        try:
            since = _whole(request.query_params.get("since"), 0)
        except _Refused as refused:
            return JSONResponse({"error": refused.why}, refused.status)
        wanted, had = request.query_params.get("columns", ""), request.query_params.get("had")
        return JSONResponse(await run_in_threadpool(self._catalog.changes, since, wanted, had))

    async def _names(self, _request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(self._catalog.names))

    async def _filter(self, request: Request) -> Response:
        """The runs that fit; a clear word where the text cannot be read."""
        try:
            text = str((await _body(request)).get("text", ""))
            return JSONResponse({"keys": await run_in_threadpool(self._catalog.fitting, text)})
        except _Refused as refused:
            return JSONResponse({"error": refused.why}, refused.status)
        except ExpressionError as error:
            return JSONResponse({"problem": said(error)})

    async def _overlay(self, request: Request) -> Response:
        try:
            asked = await _body(request)
            keys = asked.get("runs")
            if not isinstance(keys, list) or not 0 < len(keys) <= MOST_OVERLAID:
                raise _Refused(400, f"name 1 to {MOST_OVERLAID} runs")
            return JSONResponse(await run_in_threadpool(self._overlaid, keys, asked))
        except _Refused as refused:
            return JSONResponse({"error": refused.why}, refused.status)

    def _overlaid(self, keys: list[Any], asked: dict[str, Any]) -> dict[str, Any]:
        found = [(str(key), run) for key in dict.fromkeys(map(str, keys)) if (run := self._catalog.find(key)) is not None]
        names = [run.name for _, run in found]
        runs = [(run.name if names.count(run.name) == 1 else f"{run.name} ({key[:6]})", run.folder) for key, run in found]
        answer = self._plots.charts(runs, asked) if runs else {"charts": [], "titles": [], "whole": True}
        return {**answer, "runs": [[key, name] for (key, _), (name, _) in zip(found, runs, strict=True)]}

    def _of_run(self, act: Answer) -> Callable[[Request], Any]:
        """The endpoint for something about one run."""

        async def answer(request: Request) -> Response:
            try:
                asked = dict(request.query_params) if request.method == "GET" else await _body(request)
                run = await run_in_threadpool(self._catalog.find, request.path_params["key"])
                if run is None:
                    raise _Refused(404, "there is no such run (any more)")
                found = await run_in_threadpool(act, run, asked)
                return JSONResponse(found, 409 if isinstance(found, dict) and "error" in found else 200)
            except _Refused as refused:
                return JSONResponse({"error": refused.why}, refused.status)
            except TrainshedError as error:
                return JSONResponse({"error": error.message}, 404)

        return answer

    def _details(self, run: Stored, _asked: dict[str, Any]) -> Any:
        return {**details(run), "busy": self._actions.busy(run), "words": self._actions.words(run)[-3:]}

    def _charts(self, run: Stored, asked: dict[str, Any]) -> Any:
        return self._plots.charts([(run.name, run.folder)], asked)

    def _machine(self, run: Stored, asked: dict[str, Any]) -> Any:
        return self._machines.charts(run.folder, asked)

    def _log(self, run: Stored, asked: dict[str, Any]) -> Any:
        place = _whole(asked.get("place"), -1)
        return logbook.piece(_log_of(run, asked), place, back=asked.get("back") == "1")

    def _media(self, run: Stored, asked: dict[str, Any]) -> Any:
        return album.listed(run.folder, str(asked.get("had", "")))

    def _medium(self, run: Stored, asked: dict[str, Any]) -> Any:
        return album.one(run.folder, str(asked.get("file", "")), str(asked.get("kind", "")))

    def _search(self, run: Stored, asked: dict[str, Any]) -> Any:
        return logbook.search(_log_of(run, asked), str(asked.get("text", "")), _whole(asked.get("place"), 0))

    def _files(self, run: Stored, asked: dict[str, Any]) -> Any:
        return browse.listed(run.folder, str(asked.get("path", "")))

    def _clone(self, run: Stored, _asked: dict[str, Any]) -> Any:
        return {"text": operations.clone(run)}

    def _ticket(self, run: Stored, asked: dict[str, Any]) -> Any:
        """An address for one download, or for the report."""
        path = asked.get("path", "")
        if not isinstance(path, str):
            raise _Refused(400, "the path is not a text")
        if path:
            fd, _ = browse.opened(run.folder, path)  # refused now, in words
            os.close(fd)
        return {"word": self._tickets.give(key_of(run.folder), path)}

    def _stop(self, run: Stored, asked: dict[str, Any]) -> Any:
        return self._acted(self._actions.stop(run, kill=asked.get("kill") is True))

    def _resume(self, run: Stored, _asked: dict[str, Any]) -> Any:
        return self._acted(self._actions.resume(run))

    def _again(self, run: Stored, _asked: dict[str, Any]) -> Any:
        return self._acted(self._actions.again(run))

    def _acted(self, answer: dict[str, Any]) -> dict[str, Any]:
        self._catalog.look_again()
        return answer


def _log_of(run: Stored, asked: dict[str, Any]) -> str:
    """The path of a log by its name. Raises _Refused: the run has no such log."""
    path = logbook.logs_of(run.folder).get(str(asked.get("log", "")))
    if path is None:
        raise _Refused(404, "this run has no such log")
    return path


async def _body(request: Request) -> dict[str, Any]:
    """The object that a request holds. Raises _Refused for anything else."""
    try:
        value = json.loads(await request.body())
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise _Refused(400, "the request is not an object in JSON")
    return value


def _whole(text: object, default: int) -> int:
    """A whole number from a request. Raises _Refused for anything else."""
    if text is None:
        return default
    word = str(text)
    if not (word.lstrip("-").isascii() and word.lstrip("-").isdecimal() and len(word) < 18):
        raise _Refused(400, "a place is a whole number")
    return int(word)


def _blocks(fd: int, size: int) -> Iterator[bytes]:
    """As much of an open file as it had: it may grow."""
    with os.fdopen(fd, "rb") as file:
        while size > 0 and (block := file.read(min(_BLOCK, size))):
            size -= len(block)
            yield block
