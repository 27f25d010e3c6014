"""Addresses of data that is elsewhere, as channels name them."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlsplit

from trainshed.base.entry_points import names
from trainshed.base.errors import did_you_mean
from trainshed.base.secrets import is_secret_name
from trainshed.contract.model_reference import reference_of

GROUP = "trainshed.sources"  # packages' schemes, each with what `fetching/sources.py` calls for it
SCHEMES = ("s3", "gs", "rclone", "http", "https", "hf", "model")
HUB = "hf://datasets/"
_DATASET = re.compile(re.escape(HUB) + r"[\w.-]+/[\w.-]+(@[^/@]+)?(/.*)?", re.DOTALL)
_SIGNED = ("x-amz-signature", "x-goog-signature", "signature", "sig")  # of addresses that are valid for a while
_S3_URI = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?", re.DOTALL)


def is_elsewhere(text: str) -> bool:
    """Returns whether it is an address, and not a path of this machine."""
    return "://" in text and not text.startswith(("/", "file://"))


def wrong_with(address: str) -> tuple[str, str]:
    """(what is wrong with an address, what to do); two times "" where it is good."""
    scheme, _, rest = address.partition("://")
    if scheme not in SCHEMES and scheme not in names(GROUP):
        schemes = (*SCHEMES, *names(GROUP))
        known = ", ".join(f"{one}://" for one in schemes)
        near = did_you_mean(scheme.lower(), schemes)
        return "cannot be fetched", f"{near} known are {known}".strip() if near else f"known are {known}"
    if scheme == "s3":
        return ("", "") if _S3_URI.fullmatch(address) else ("is not an S3 URI", "it must look like s3://bucket/prefix")
    if scheme == "model":
        try:
            reference_of(address)
        except ValueError as error:
            return f"does not name a model: {error}", "it must look like model://NAME@STAGE or model://NAME:VERSION"
        return "", ""
    if not rest.strip("/"):
        return "names nothing", f"it must look like {scheme}://{'host/file' if scheme[0] == 'h' else 'bucket/prefix'}"
    if scheme == "hf" and not _DATASET.fullmatch(address):
        return "does not name a dataset", f"it must look like {HUB}OWNER/NAME or {HUB}OWNER/NAME@REVISION/folder"
    if scheme in ("http", "https"):
        return _wrong_with_url(address)
    return "", ""


def without_secrets(address: str) -> str:
    """An address for a message, without a login and without what follows `?`, which may be a signature."""
    scheme, _, rest = address.partition("?")[0].partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def _wrong_with_url(address: str) -> tuple[str, str]:
    try:
        parts = urlsplit(address)
        parts.port  # noqa: B018  raises for what is not one
    except ValueError:
        return "is not a URL", "it must look like https://host/file"
    if parts.username is not None or parts.password is not None:
        return "holds a login, and addresses are written down", "keep it in ~/.netrc"
    names = {name.lower() for name, _ in parse_qsl(parts.query, keep_blank_values=True)}
    if any(name in _SIGNED or is_secret_name(name) for name in names):
        return "holds a signature or a secret, and addresses are written down", "use s3:// or gs:// with your own login"
    if not parts.path.rpartition("/")[2]:
        return "is a folder, which HTTP cannot list", "name a file, or a manifest with s3_type: ManifestFile"
    return "", ""
