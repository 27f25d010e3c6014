"""Files at http:// and https:// as items: in ranges where the server gives them, else from their beginning to their end.

Ranges, If-Range and validators: RFC 9110, sections 13 and 14. Logins are those of ~/.netrc for the
host; proxies those of the environment.
"""

from __future__ import annotations

import http.client
import json
import netrc
import re
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from email.message import Message
from typing import IO, Any
from urllib.parse import quote, unquote, urlsplit

from trainshed import __version__
from trainshed.base.errors import TrainshedError, shorten

from .items import Item, ItemChanged, Passing

SECONDS = 30  # of silence
LARGEST_MANIFEST = 64 << 20  # bytes
BLOCK = 1 << 20  # bytes
_BUSY = (408, 425, 429)
_STRONG = ('"', "Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")  # validators that are good for If-Range: tags, dates
_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")
_BROKEN = (http.client.HTTPException, ConnectionError, urllib.error.URLError)


class Web:
    """The source."""

    def __init__(self) -> None:
        self._opener = urllib.request.build_opener(_Redirects)
        try:
            self._logins: netrc.netrc | None = netrc.netrc()
        except (OSError, netrc.NetrcParseError):
            self._logins = None
        self._ranged: dict[str, bool] = {}  # by URL, where it is known

    def items(self, url: str, *, manifest: bool) -> list[Item]:
        """Lists what a URL means, by name: one file; or a manifest's, `[{"prefix": "https://host/folder/"}, "a", "b/c"]`.

        Raises:
            TrainshedError: it cannot be had, or is no manifest. Passing.
        """
        if not manifest:
            return [self.known(Item(unquote(urlsplit(url).path.rpartition("/")[2]), url))]
        with self._asked(url, {}) as answer:
            text = answer.read(LARGEST_MANIFEST + 1)
        try:
            first, *names = json.loads(text)
            prefix = first["prefix"]
            if not prefix.startswith(("http://", "https://")) or not all(isinstance(name, str) for name in names):
                raise ValueError
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise TrainshedError(
                f"{url} is not a manifest", hint='it must be JSON like [{"prefix": "https://host/folder/"}, "a", "b"]'
            ) from None
        return sorted((Item(name, f"{prefix}{quote(name)}") for name in dict.fromkeys(names)), key=lambda item: item.name)

    def known(self, item: Item) -> Item:
        """By a GET of its first byte, which tells more than a HEAD: whether ranges are given."""
        try:
            with self._asked(item.url, {"Range": "bytes=0-0"}) as answer:
                whole = answer.status != 206
                size = _number(answer.headers.get("Content-Length")) if whole else _total(answer.headers)
                validator = _validator(answer.headers)
        except _Unsatisfiable as error:  # it is empty
            whole, size, validator = False, error.total, _validator(error.headers)
        self._ranged[item.url] = not whole and size >= 0
        return Item(item.name, item.url, size, validator)

    def read(self, item: Item, start: int, end: int) -> bytes:
        """By GET with Range, and with If-Range where the item has a validator that is good for that."""
        words = {"Range": f"bytes={start}-{end - 1}"}
        if item.etag.startswith(_STRONG):
            words["If-Range"] = item.etag
        try:
            with self._asked(item.url, words) as answer:
                if answer.status != 206 or _total(answer.headers) != item.size:
                    raise ItemChanged("the server has another content by now")
                data: bytes = _read(answer, end - start)
        except _Unsatisfiable:
            raise ItemChanged("it is shorter by now") from None
        if len(data) != end - start:
            raise Passing(f"{len(data)} of {end - start} bytes came")
        return data

    def at_once(self, item: Item) -> Iterator[bytes] | None:
        """Reads all at once, where the server gives no ranges."""
        return None if self._ranged.get(item.url, True) else self._stream(item)

    def parts(self, item: Item) -> list[int]:
        """Servers make ETags as they like."""
        return []

    def _stream(self, item: Item) -> Iterator[bytes]:
        with self._asked(item.url, {}) as answer:
            came = 0
            while block := _read(answer, BLOCK):
                came += len(block)
                yield block
        if item.size >= 0 and came != item.size:
            raise Passing(f"{came} of {item.size} bytes came")

    def _asked(self, url: str, words: dict[str, str]) -> Any:
        """The answer. Raises Passing, TrainshedError, _Unsatisfiable."""
        headers = {"User-Agent": f"trainshed/{__version__}", "Accept-Encoding": "identity", **words, **self._login(url)}
        try:
            return self._opener.open(urllib.request.Request(url, headers=headers), timeout=SECONDS)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416:
                raise _Unsatisfiable(error.headers) from None
            said = f"{error.code} {shorten(str(error.reason), 100)}"
            if error.code >= 500 or error.code in _BUSY:
                raise Passing(said) from None
            hint = "a login may stand in ~/.netrc" if error.code in (401, 403) else ""
            raise TrainshedError(f"{url}: {said}", hint=hint) from None
        except (*_BROKEN, OSError) as error:
            raise Passing(_reason(error)) from None

    def _login(self, url: str) -> dict[str, str]:
        found = self._logins.hosts.get(urlsplit(url).hostname or "") if self._logins else None
        if not found:
            return {}
        return {"Authorization": f"Basic {b64encode(f'{found[0]}:{found[2]}'.encode()).decode()}"}


class _Unsatisfiable(Exception):
    """416: there is no such range."""

    def __init__(self, headers: Message) -> None:
        self.headers = headers
        self.total = _total(headers)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """A login is for the host that it was written down for."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        """The request that follows."""
        if not newurl.startswith(("http://", "https://")):
            raise urllib.error.HTTPError(newurl, code, "leads to another kind of address", headers, fp)  # type: ignore[arg-type]
        made = super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]
        if made is not None and _origin(newurl) != _origin(req.full_url):
            made.remove_header("Authorization")
        return made


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port


def _read(answer: IO[bytes], count: int) -> bytes:
    try:
        return answer.read(count)
    except (*_BROKEN, OSError) as error:
        raise Passing(_reason(error)) from None


def _reason(error: BaseException) -> str:
    inner = getattr(error, "reason", None)
    if isinstance(error, TimeoutError) or isinstance(inner, TimeoutError):
        return f"nothing came for {SECONDS} s"
    return shorten(f"{type(error).__name__}: {inner or error}", 150)


def _validator(headers: Message) -> str:
    return str(headers.get("ETag") or headers.get("Last-Modified") or "")


def _total(headers: Message) -> int:
    """Bytes of the whole, -1 where it is not said."""
    found = _RANGE.fullmatch(str(headers.get("Content-Range", "")))
    return int(found[3]) if found and found[3] != "*" else -1


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else -1
