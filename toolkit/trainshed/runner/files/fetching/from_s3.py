"""Objects of S3 as items that are fetched."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from trainshed.base import s3
from trainshed.base.errors import TrainshedError, shorten

from .etag import parts_in
from .items import Item, ItemChanged, Passing
from .ranges import AT_ONCE

PATIENCE = {"connect_timeout": 10, "read_timeout": 30}  # seconds of silence
MOST_PARTS = 1000  # that S3 is asked about one by one
_BUSY = (408, 429)
_BUSY_CODES = ("SlowDown", "RequestTimeout", "Throttling", "ThrottlingException", "RequestTimeTooSkewed")


class Objects:
    """The source.

    Raises:
        TrainshedError: boto3 is missing, or cannot make a client.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        try:
            # We try again ourselves: botocore would not do so in the middle of a body.
            self.client: Any = s3.make_client(
                environ, retries={"total_max_attempts": 1}, max_pool_connections=2 * AT_ONCE, **PATIENCE
            )
        except ImportError:
            raise TrainshedError(s3.NOT_INSTALLED, hint=s3.INSTALL) from None
        except Exception as error:
            raise TrainshedError(s3.explain(error), hint=s3.CHECK) from None
        self._others: set[str] = set()  # URIs whose ETags are not made of MD5s
        self._lock = threading.Lock()

    def known(self, item: Item) -> Item:
        """By HEAD."""
        found = self._asked(item, self.client.head_object)
        return Item(item.name, item.url, found["ContentLength"], found.get("ETag", "").strip('"'))

    def read(self, item: Item, start: int, end: int) -> bytes:
        """By GET with Range and If-Match."""
        words = {"Range": f"bytes={start}-{end - 1}", **({"IfMatch": f'"{item.etag}"'} if item.etag else {})}
        answer = self._asked(item, self.client.get_object, **words)
        if answer.get("SSECustomerAlgorithm") or str(answer.get("ServerSideEncryption", "")).startswith("aws:kms"):
            with self._lock:
                self._others.add(item.url)
        with _Telling(item):
            data: bytes = answer["Body"].read()
        if len(data) != end - start:
            raise Passing(f"{len(data)} of {end - start} bytes came")
        return data

    def at_once(self, item: Item) -> None:
        """S3 gives ranges."""

    def parts(self, item: Item) -> list[int]:
        """One part, or what HEAD says of the parts of an upload."""
        count = parts_in(item.etag)
        with self._lock:
            if item.url in self._others:
                return []
        if not count:
            return [item.size]
        first, last = (self._part(item, number) for number in (1, count))
        if first <= 0 or last < 0:
            return []
        if last == item.size - (count - 1) * first:
            return [first] * (count - 1) + [last]
        sizes = [self._part(item, number) for number in range(1, count + 1)] if count <= MOST_PARTS else []
        return sizes if sum(sizes) == item.size else []

    def _part(self, item: Item, number: int) -> int:
        """Bytes of one part; -1 where the storage knows no parts."""
        found = self._asked(item, self.client.head_object, PartNumber=number)
        if str(found.get("ServerSideEncryption", "")).startswith("aws:kms"):
            return -1
        return int(found["ContentLength"]) if "PartsCount" in found else -1

    def _asked(self, item: Item, method: Any, **words: Any) -> Any:
        bucket, key = s3.split_uri(item.url)
        with _Telling(item):
            return method(Bucket=bucket, Key=key, **words)


class _Telling:
    """Within the block, errors of boto3 become ours."""

    def __init__(self, item: Item) -> None:
        self.item = item

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, (Passing, ItemChanged, TrainshedError)):
            return
        from botocore.exceptions import ClientError, ReadTimeoutError

        if isinstance(error, ReadTimeoutError):
            raise Passing(f"nothing came for {PATIENCE['read_timeout']} s") from None
        said = shorten(s3.explain(error), 200)
        if not isinstance(error, ClientError):
            if _is_of_the_network(error):
                raise Passing(said) from None
            raise TrainshedError(f"{self.item.url}: {said}", hint=s3.CHECK) from None
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        code = error.response.get("Error", {}).get("Code", "")
        if status == 412:
            raise ItemChanged(said) from None
        if status >= 500 or status in _BUSY or code in _BUSY_CODES:
            raise Passing(said) from None
        raise TrainshedError(f"{self.item.url}: {said}", hint=s3.CHECK) from None


def _is_of_the_network(error: Exception) -> bool:
    from botocore import exceptions

    broken = (exceptions.HTTPClientError, exceptions.IncompleteReadError)
    return isinstance(error, (*broken, OSError)) or type(error).__module__.startswith("urllib3")
