"""The application: which address does what. Everything below /api needs the token (`guard.py`)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

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
from trainshed.studio.compare.together import together
from trainshed.studio.pages import engine
from trainshed.studio.pages.events import events_of
from trainshed.studio.pages.facts import RunFacts, read_attempts
from trainshed.studio.pages.markup import drawing, source_of
from trainshed.studio.pages.report import report

from . import album, browse, logbook
from .actions import Actions
from .catalog import Catalog, key_of, said
from .connection import mark_as_proven
from .details import details
from .entry import Access
from .guard import Guard
from .labelling import relabelled
from .measured import Machines
from .plots import MOST_KEPT, Plots, one_chart
from .tickets import Tickets
from .views.every import Views
from .views.known import Known

STATIC = os.path.join(os.path.dirname(os.path.abspath(__file__)), "static")
FILES = {  # of the page, and of the engine of charts
    **dict.fromkeys(("app.js", "pages.js", "media.js", "grouping.js", "style.css"), STATIC),
    **dict.fromkeys(("charts.js", "curves.js", "many.js", "charts.css"), engine.STATIC),
}
KINDS = {".js": "text/javascript", ".css": "text/css"}
_BLOCK = 1 << 18
Answer = Callable[[Stored, dict[str, Any]], Any]
Found = TypeVar("Found")


class _Refused(Exception):
    """A request that asks for something that is not there, or not in this form."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class Site:
    """The page's server.

    Args:
        entry: what every request for data must hold, and under which addresses.
        folders: further folders in which runs are looked for.
    """

    def __init__(self, environ: Mapping[str, str], entry: Access, folders: tuple[str, ...] = ()) -> None:
        self._catalog = Catalog(environ, folders)
        self._environ = environ
        self._views = Views(Known(self._catalog.folders, key_of), environ)
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
        }
        acts: dict[str, Answer] = {
            "/stop": self._stop,
            "/resume": self._resume,
            "/again": self._again,
            "/remove": self._remove,
            "/labels": self._label,
        }
        routes = [
            Route("/", self._page),
            Route("/static/{name}", self._static),
            Route("/ticket/{word}/{name}", self._fetch),
            Route("/api/runs", self._runs),
            Route("/api/names", self._names),
            Route("/api/filter", self._filter, methods=["POST"]),
            Route("/api/overlay", self._of_many(self._overlaid), methods=["POST"]),
            Route("/api/together", self._of_many(self._together), methods=["POST"]),
            *(Route(f"/api/runs/{{key}}{path}", self._of_run(act), methods=[how]) for path, (how, act) in by_run.items()),
            *(
                Route(f"/api/runs/{{key}}{path}", self._of_run(act, acts=True), methods=["POST"])
                for path, act in acts.items()
            ),
            Route("/api/page/{kind}", self._view),
            Route("/api/page/{kind}/{key}", self._view),
            Route("/api/page/{kind}/{key}/charts", self._view_charts, methods=["POST"]),
            Route("/api/page/{kind}/{key}/stop", self._view_stop, methods=["POST"]),
        ]
        self.app = Starlette(routes=routes, middleware=[Middleware(Guard, entry=entry)])

    def choose(self, keys: Iterable[str]) -> None:
        """Has further pages tell of these runs alone."""
        self._views = Views(Known(self._catalog.folders, key_of, keys), self._environ)

    def pages(self) -> list[tuple[str, str]]:
        """(kind, key) of every further page that there is."""
        return self._views.addresses()

    # --- pages and files ----------------------------------------------------------------------------------------------

    async def _page(self, _request: Request) -> Response:
        return FileResponse(f"{STATIC}/index.html", media_type="text/html")

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in FILES:
            return JSONResponse({"error": "there is no such file"}, 404)
        kind = KINDS[os.path.splitext(name)[1]]
        return FileResponse(f"{FILES[name]}/{name}", media_type=kind, headers={"Cache-Control": "no-cache"})

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
                f"sandbox allow-scripts; default-src 'none'; script-src {source_of(drawing())}; style-src 'unsafe-inline'"
            )
            return HTMLResponse(
                page, headers={"Content-Security-Policy": f"{policy}; img-src data:; base-uri 'none'; form-action 'none'"}
            )
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
        return report(RunFacts(*told, checkpoints=run.checkpoints, media=media_of(outputs_of(run.folder))))

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

    def _of_many(self, act: Callable[[list[tuple[str, str, Stored]], dict[str, Any]], Any]) -> Callable[[Request], Any]:
        """The endpoint for something about several runs: (key, name that tells it from the others, run) of each."""

        async def answer(request: Request) -> Response:
            def told(asked: dict[str, Any]) -> Any:
                keys = asked.get("runs")
                if not isinstance(keys, list) or not 0 < len(keys) <= MOST_KEPT:
                    raise _Refused(400, f"name 1 to {MOST_KEPT} runs")
                return act(self._several(keys), asked)

            return await _answer(request, told)

        return answer

    def _several(self, keys: list[Any]) -> list[tuple[str, str, Stored]]:
        found = [(key, run) for key in dict.fromkeys(map(str, keys)) if (run := self._catalog.find(key)) is not None]
        names = [run.name for _, run in found]
        return [(key, run.name if names.count(run.name) == 1 else f"{run.name} ({key[:6]})", run) for key, run in found]

    def _together(self, runs: list[tuple[str, str, Stored]], _asked: dict[str, Any]) -> Any:
        return together(runs)

    def _overlaid(self, runs: list[tuple[str, str, Stored]], asked: dict[str, Any]) -> Any:
        if not runs:
            return {"charts": [], "titles": [], "whole": True}
        return self._plots.charts([(name, run.folder) for _, name, run in runs], asked)

    def _of_run(self, act: Answer, *, acts: bool = False) -> Callable[[Request], Any]:
        """The endpoint for something about one run. acts: not for who may only look."""

        async def answer(request: Request) -> Response:
            def told(asked: dict[str, Any]) -> Any:
                run = self._catalog.find(request.path_params["key"])
                if run is None:
                    raise _Refused(404, "there is no such run (any more)")
                return act(run, asked)

            return await _answer(request, told, acts=acts)

        return answer

    async def _view(self, request: Request) -> Response:
        kind, key = request.path_params["kind"], request.path_params.get("key", "")
        return await _answer(request, lambda _: _there(self._views.get(kind, key)))

    async def _view_charts(self, request: Request) -> Response:
        kind, key = request.path_params["kind"], request.path_params["key"]
        return await _answer(request, lambda asked: one_chart(_there(self._views.chart(kind, key)), asked))

    async def _view_stop(self, request: Request) -> Response:
        kind, key = request.path_params["kind"], request.path_params["key"]
        return await _answer(
            request, lambda _: self._acted(self._actions.end(*_there(self._views.end(kind, key)))), acts=True
        )

    def _details(self, run: Stored, _asked: dict[str, Any]) -> Any:
        return {**details(run), "busy": self._actions.busy(run), "words": self._actions.words(run)[-3:]}

    def _charts(self, run: Stored, asked: dict[str, Any]) -> Any:
        facts = RunFacts(run.name, read_attempts(attempts_of(run.folder)), {}, run.status)
        return self._plots.charts([(run.name, run.folder)], asked, events_of(facts, run.checkpoints))

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

    def _remove(self, run: Stored, _asked: dict[str, Any]) -> Any:
        return self._acted(self._actions.remove(run))

    def _label(self, run: Stored, asked: dict[str, Any]) -> Any:
        return self._acted(relabelled(run, asked))

    def _acted(self, answer: dict[str, Any]) -> dict[str, Any]:
        self._catalog.look_again()
        return answer


async def _answer(request: Request, told: Callable[[dict[str, Any]], Any], *, acts: bool = False) -> Response:
    """What is told of what a request holds; refusals in words. acts: not for who may only look."""
    looks = not request.scope["state"]["acts"]
    try:
        if acts and looks:
            raise _Refused(403, "this address may look, and do nothing")
        asked = dict(request.query_params) if request.method == "GET" else await _body(request)
        found = await run_in_threadpool(told, asked)
        if looks and "can" in found:
            found["can"] = dict.fromkeys(found["can"], False)
        return JSONResponse(found, 409 if "error" in found else 200)
    except _Refused as refused:
        return JSONResponse({"error": refused.why}, refused.status)
    except TrainshedError as error:
        return JSONResponse({"error": error.message}, 404)


def _there(found: Found | None) -> Found:
    """Raises _Refused for what is not there."""
    if found is None:
        raise _Refused(404, "there is no such page (any more)")
    return found


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
