"""A copy of the page that opens without a server: the page's own files, and the answers that it would get, as scripts.

    FOLDER/index.html              the page; static/ is what it loads
    FOLDER/data/runs.js            the table of runs
    FOLDER/data/pages.js           tunings, pipelines, models, data
    FOLDER/data/run-<key>.js       a run: curves, machine, ends of its logs, lineage
    FOLDER/ticket/<key>/report.html

A browser lets a page from a file load scripts, and nothing else. Answers are those of the application itself, asked as one
who may only look.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from trainshed.base.errors import TrainshedError
from trainshed.base.files import write_atomic

from .app import FILES, STATIC, Site
from .entry import Access
from .plots import MOST_KEPT

COPY = "offline.js"
_PARTS = 600  # columns of a chart: it may be looked at more closely, and is not read again
_MOST_STEPS = 20  # of each name of pictures, tables and the like
_TRIES = 1000  # of reading a long history in pieces
_POLICY = (
    "default-src 'none'; script-src 'self' file:; style-src 'self' file:; img-src data:; base-uri 'none'; form-action 'none'"
)
Answers = dict[str, Any]


def export(environ: Mapping[str, str], folders: tuple[str, ...], target: str, where: str, say: Callable[[str], None]) -> str:
    """Writes a copy; the path of its page.

    Args:
        folders: in which runs are looked for, besides the user's own.
        target: a new folder, or that of an earlier copy, which is replaced.
        where: words or an expression that is true of the runs to be copied, "" for all.

    Raises:
        TrainshedError: the folder holds other things or cannot be written, or the expression cannot be read.
    """
    target = os.path.abspath(target)
    _refuse_other(target)
    entry = Access(looks=secrets.token_hex(24))
    site = Site(environ, entry, folders)
    asker = _Asker(site.app, entry.looks)
    keys = _chosen(asker, where)
    site.choose(keys)
    aside = f"{target}.{secrets.token_hex(4)}.tmp"
    try:
        os.makedirs(f"{aside}/data")
        for key in keys:
            _write(aside, f"run-{key}", _run(asker, key, aside))
        _write(aside, "pages", _pages(asker, site))
        _write(aside, "runs", _table(asker, keys))
        _page(aside)
        _put(aside, target)
    except OSError as error:
        raise TrainshedError(f"{target} cannot be written: {error.filename}: {error.strerror}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    say("1 run is in the copy" if len(keys) == 1 else f"{len(keys):,} runs are in the copy")
    return f"{target}/index.html"


class _Asker:
    """Asks the application, without a network."""

    def __init__(self, app: Any, token: str) -> None:
        self._app, self._token = app, token

    def get(self, path: str, body: object = None) -> Any:
        """What it answers; None where it refuses."""
        status, content = asyncio.run(self._sent(path, None if body is None else json.dumps(body).encode()))
        return json.loads(content) if status == 200 else None

    def page(self, path: str) -> str:
        """A page as it is; "" where it refuses."""
        status, content = asyncio.run(self._sent(path, None))
        return content.decode("utf-8", "replace") if status == 200 else ""

    async def _sent(self, path: str, body: bytes | None) -> tuple[int, bytes]:
        address, _, query = path.partition("?")
        kind = [(b"content-type", b"application/json"), (b"content-length", str(len(body or b"")).encode())]
        headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {self._token}".encode()), *(kind if body else ())]
        scope: dict[str, Any] = {
            "type": "http", "http_version": "1.1", "scheme": "http", "method": "POST" if body else "GET", "headers": headers,
            "path": f"/{address}", "raw_path": quote(f"/{address}").encode(), "query_string": query.encode(),
            "root_path": "", "state": {},
        }  # fmt: skip
        told: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body or b"", "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            told.append(message)

        await self._app(scope, receive, send)
        return int(told[0]["status"]), b"".join(one.get("body", b"") for one in told[1:])


def _chosen(asker: _Asker, where: str) -> list[str]:
    """The keys of the runs that are copied. Raises TrainshedError."""
    if not where.strip():
        return [row["key"] for row in asker.get("api/runs")["rows"]]
    told = asker.get("api/filter", {"text": where})
    if "problem" in told:
        raise TrainshedError(told["problem"].replace("filter:", "--where:"))
    return [str(key) for key in told["keys"]]


def _table(asker: _Asker, keys: list[str]) -> Answers:
    usual = [name for name, _ in asker.get("api/runs")["columns"]]
    names = asker.get("api/names")
    more = [name for kind in ("run", "hp", "metric", "tag") for name in names[kind] if name not in usual]
    told = asker.get("api/runs?" + urlencode({"columns": ",".join([*usual, *more])}))
    held = {name for name, _ in told["columns"]}
    chosen = {*keys}
    told["rows"] = [row for row in told["rows"] if row["key"] in chosen]
    shown = {kind: [name for name in found if name in held] for kind, found in names.items()}
    together = asker.get("api/together", {"runs": keys[:MOST_KEPT]}) if keys else None
    return {"api/runs": told, "api/names": shown, "usual": usual, "api/together": together}


def _run(asker: _Asker, key: str, aside: str) -> Answers:
    path = f"api/runs/{key}"
    told = {path: asker.get(path), f"{path}/clone": asker.get(f"{path}/clone")}
    for what in ("charts", "machine"):
        told[f"{path}/{what}"] = _whole(asker, f"{path}/{what}")
    for name in (told[path] or {}).get("logs", ()):
        told[f"{path}/log?{name}"] = asker.get(f"{path}/log?{urlencode({'log': name})}&back=1")
    told |= _media(asker, path)
    told[f"api/page/lineage/{key}"] = asker.get(f"api/page/lineage/{key}")
    word = asker.get(f"{path}/ticket", {"path": ""})
    if word and (page := asker.page(f"ticket/{word['word']}/report.html")):
        os.makedirs(f"{aside}/ticket/{key}")
        write_atomic(f"{aside}/ticket/{key}/report.html", page)
        told[f"{path}/ticket"] = {"word": key}
    return {address: answer for address, answer in told.items() if answer is not None}


def _media(asker: _Asker, path: str) -> Answers:
    """The latest steps of each name, with what there is to be seen of them."""
    told: Answers = {}
    listed = asker.get(f"{path}/media")
    for name in (listed or {}).get("names") or ():
        name["steps"] = name["steps"][-_MOST_STEPS:]
        for file, kind, _ in (one for step in name["steps"] for one in step[3]):
            told[f"{path}/medium?{file}"] = asker.get(f"{path}/medium?{urlencode({'file': file, 'kind': kind})}")
    return {f"{path}/media": listed, **told}


def _whole(asker: _Asker, path: str) -> Any:
    """Charts, once all of their values have been read."""
    for _ in range(_TRIES):
        told = asker.get(path, {"parts": _PARTS})
        if told is None or told["whole"]:
            return told
    return told


def _pages(asker: _Asker, site: Site) -> Answers:
    told: Answers = {}
    for kind, key in site.pages():
        if kind != "lineage":
            path = f"api/page/{kind}" + (f"/{key}" if key else "")
            told[path] = asker.get(path)
            if key and kind == "tunings":
                told[f"{path}/charts"] = _whole(asker, f"{path}/charts")
    return {address: answer for address, answer in told.items() if answer is not None}


def _write(aside: str, name: str, told: Answers) -> None:
    write_atomic(f"{aside}/data/{name}.js", f"trainshedTake({json.dumps(told, allow_nan=False)});\n")


def _page(aside: str) -> None:
    os.makedirs(f"{aside}/static")
    for name, folder in {**FILES, COPY: STATIC}.items():
        shutil.copyfile(f"{folder}/{name}", f"{aside}/static/{name}")
    with open(f"{STATIC}/index.html", encoding="utf-8") as file:
        page = file.read()
    first = f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n<script src="static/{COPY}" defer></script>\n'
    write_atomic(f"{aside}/index.html", page.replace('<link rel="icon"', f'{first}<link rel="icon"', 1))


def _refuse_other(target: str) -> None:
    """Raises TrainshedError where the folder holds what no copy of ours holds."""
    if os.path.islink(target):
        raise TrainshedError(f"{target} is a link", hint="name the folder itself")
    try:
        held = {*os.listdir(target)}
    except FileNotFoundError:
        return
    except OSError as error:
        raise TrainshedError(f"{target} cannot be used: {error.strerror}") from error
    if held and not (os.path.isfile(f"{target}/static/{COPY}") and held <= {"index.html", "data", "static", "ticket"}):
        raise TrainshedError(f"{target} holds other things", hint="name a new folder")


def _put(aside: str, target: str) -> None:
    old = f"{aside}.old"
    if os.path.lexists(target):
        os.rename(target, old)
    os.rename(aside, target)
    shutil.rmtree(old, ignore_errors=True)
