"""rclone, which knows many storages: how it is told of one without a secret on a command line or in a file.

Everything about a remote goes through variables (`RCLONE_CONFIG_<NAME>_<OPTION>`, "Environment variables" in rclone's
manual), which only this user can see.
"""

from __future__ import annotations

import csv
import io
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .items import Item
from .s3 import Bucket

REMOTE, SHOWN = "TRAINSHEDSTORE", "TRAINSHEDSHOWN"  # names that no configuration of a user's has
# AWS's own SDK for Go finds and renews these, as boto3 does.
_FOUND_BY_ITSELF = ("iam-role", "container-role", "assume-role-with-web-identity")
_KEPT = ("RCLONE_CONFIG", "RCLONE_BWLIMIT")  # of the user's variables for rclone
_SPECIAL = re.compile(r"([*?\[\]{}\\])")
# rclone writes these in its own way: control characters and the letters that it stands them for (encoder, "Standard").
_REWRITTEN = re.compile("[\0-\x1f\x7f\u2400-\u2421\u201b\uff0f]")
_DOTS = (".", "..", "\uff0e", "\uff0e\uff0e")
_LONGEST = 255  # bytes of one name, NAME_MAX


@dataclass(frozen=True)
class Reach:
    """How rclone reaches a folder of a storage.

    root: `remote:path`. variables: with the credentials. obstacle: why it cannot, "" if it can.
    """

    root: str
    variables: dict[str, str] = field(default_factory=dict, repr=False)
    obstacle: str = ""


def program() -> str:
    """rclone's path, "" where it is not installed."""
    return shutil.which("rclone") or ""


def reach_s3(bucket: Bucket, items: Sequence[Item]) -> Reach:
    """The folder that a prefix on S3 is in, with boto3's endpoint, region and credentials.

    rclone compares what it has read with ETags, which are no checksums where KMS encrypts; it leaves that where it believes
    that it would encrypt so itself. The first and the last item stand for all.

    Raises:
        TrainshedError: an item cannot be asked about.
    """
    import boto3
    from botocore.credentials import RefreshableCredentials

    root = f"{REMOTE}:{bucket.bucket}/{bucket.parent}".rstrip("/")
    endpoint = bucket.client.meta.endpoint_url
    amazon = re.search(r"\.amazonaws\.com(\.cn)?$", endpoint) is not None
    options = {"type": "s3", "provider": "AWS" if amazon else "Other", "encoding": "None", "no_check_bucket": "true"}
    options["region"] = bucket.client.meta.region_name or ""
    if not amazon:
        options["endpoint"] = endpoint
    if any(bucket.is_kms(item) for item in (items[0], items[-1])):
        options["server_side_encryption"] = "aws:kms"
    session = boto3.DEFAULT_SESSION or boto3.Session()
    held = session.get_credentials()
    if held is None:
        return Reach(root, obstacle="boto3 has no credentials that rclone could be given")
    if isinstance(held, RefreshableCredentials):
        if held.method not in _FOUND_BY_ITSELF:
            return Reach(root, obstacle=f"its credentials ({held.method}) expire, and rclone cannot renew them")
        options["env_auth"] = "true"
    else:
        frozen = held.get_frozen_credentials()
        options |= {"access_key_id": frozen.access_key, "secret_access_key": frozen.secret_key}
        options["session_token"] = frozen.token or ""
    return Reach(root, configured(REMOTE, options))


def configured(remote: str, options: Mapping[str, str]) -> dict[str, str]:
    """The variables that make a remote."""
    return {f"RCLONE_CONFIG_{remote}_{name.upper()}": value for name, value in options.items() if value}


def one_folder(reach: Reach, name: str) -> dict[str, str]:
    """Variables that make the remote `SHOWN`, which has one folder: `name`, with what is at the reach's root."""
    text = io.StringIO()
    csv.writer(text, delimiter=" ", quoting=csv.QUOTE_ALL, lineterminator="").writerow([f"{name}={reach.root}"])
    return configured(SHOWN, {"type": "combine", "upstreams": text.getvalue()})


def environment(environ: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """rclone's environment: the caller's, without settings of rclone that are meant for other uses of it.

    A bundle of certificates for AWS's tools is handed on as rclone takes it: its S3 refuses to start with AWS's variable.
    """
    kept = {name: value for name, value in environ.items() if not name.startswith("RCLONE_") or name.startswith(_KEPT)}
    if bundle := kept.pop("AWS_CA_BUNDLE", ""):
        kept["RCLONE_CA_CERT"] = bundle
    return {**kept, **variables}


def only(folder: str, beginning: str) -> list[str]:
    """Arguments that leave of a folder ("": the root) only what begins with a text; "" leaves all."""
    if not beginning:
        return []
    place = f"/{folder}/" if folder else "/"
    return ["--filter", f"+ {place}{_escaped(beginning)}**", "--filter", "- *"]


def why_not_shown(names: list[str]) -> str:
    """Why a file system could not show objects of these names (paths with slashes) as they are; "" if it can."""
    folders: set[str] = set()
    for name in names:
        parts = name.split("/")
        for part in parts:
            if not part or part in _DOTS:
                return f"{name!r} cannot be the path of a file"
            if len(part.encode("utf-8", "surrogateescape")) > _LONGEST:
                return f"{name[:40]!r}... is too long for the name of a file"
        if _REWRITTEN.search(name):
            return f"rclone would show {name!r} under another name"
        for end in range(1, len(parts)):
            folders.add("/".join(parts[:end]))
    if twice := sorted(folders.intersection(names)):
        return f"{twice[0]!r} is an object and a folder"
    return ""


def _escaped(text: str) -> str:
    """As a pattern of rclone's that matches the text alone."""
    return _SPECIAL.sub(r"\\\1", text)
