"""ETags of S3 that are made of MD5s: of an object's bytes, or of the MD5s of the parts in which it was uploaded.

Source: "Checking object integrity" in Amazon S3's user guide. Objects encrypted with keys of KMS or of the customer
have others.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

_OF_BYTES = re.compile("[0-9a-f]{32}")
_OF_PARTS = re.compile("[0-9a-f]{32}-([1-9][0-9]{0,4})")
_BLOCK = 1 << 20  # bytes
SHA256 = "sha256 "  # begins the ETags of our own model store; the SHA-256 of all bytes follows, in hexadecimal


def is_md5(etag: str) -> bool:
    """Returns whether it looks like the MD5 of all bytes."""
    return _OF_BYTES.fullmatch(etag) is not None


def parts_in(etag: str) -> int:
    """How many parts it was made of; 0 for other ETags."""
    found = _OF_PARTS.fullmatch(etag)
    return int(found[1]) if found else 0


def is_sha256_of(path: str, etag: str) -> bool:
    """Returns whether a file has the SHA-256 that one of the model store's ETags names. Raises OSError."""
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            found.update(block)
    return etag == f"{SHA256}{found.hexdigest()}"


def etag_of(path: str, parts: Sequence[int], etag: str) -> str:
    """Computes what the ETag of a file would be, had it been uploaded in parts of these sizes, in the form that `etag` has.

    Raises:
        OSError: it cannot be read.
    """
    digests = []
    with open(path, "rb") as file:
        for size in parts:
            found = hashlib.md5(usedforsecurity=False)
            left = size
            while left and (block := file.read(min(left, _BLOCK))):
                found.update(block)
                left -= len(block)
            digests.append(found)
    if is_md5(etag):
        return digests[0].hexdigest()
    whole = hashlib.md5(b"".join(one.digest() for one in digests), usedforsecurity=False)
    return f"{whole.hexdigest()}-{len(digests)}"
