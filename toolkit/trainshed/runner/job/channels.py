"""The input channels of a job file: a folder, a file, a glob or an `s3://` URI each."""

from __future__ import annotations

import glob
import os
import re

from trainshed.contract.config import CHANNEL_NAME

from .checker import Checker, near_path, resolve
from .job import S3, Channel
from .nodes import Node

MOST_CHANNELS = 20  # the platform's limit
MOST_FILES = 100_000  # that a glob may find
MODES = ("File", "FastFile", "Pipe")
DISTRIBUTIONS = ("FullyReplicated", "ShardedByS3Key")
COMPRESSIONS = ("None", "Gzip")
WRAPPERS = ("None", "RecordIO")
S3_TYPES = ("S3Prefix", "ManifestFile")
CHANNEL_FIELDS = (
    "path", "input_mode", "content_type", "s3_type", "distribution", "compression", "record_wrapper", "shuffle_seed",
)  # fmt: skip
_S3_URI = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?", re.DOTALL)
_WILD = re.compile(r"[*?[]")


def read_channels(fields: Checker) -> tuple[Channel, ...]:
    """The channels, sorted by name; what is wrong is noted in `fields`."""
    nodes = fields.mapping("channels")
    if len(nodes) > MOST_CHANNELS:
        fields.problem("channels", f"there are {len(nodes)} channels; a job has at most {MOST_CHANNELS}")
    outer = Checker(nodes, fields.problems, "channels.")
    channels = []
    for name in sorted(nodes):
        if not re.fullmatch(CHANNEL_NAME, name) or name in (".", ".."):
            outer.problem(name, "is no channel name: up to 64 letters, digits, '.', '_' and '-'")
            continue
        channels.append(_channel(outer, name, nodes[name]))
    return tuple(channels)


def _channel(outer: Checker, name: str, node: Node) -> Channel:
    if isinstance(node.value, dict):
        inner = Checker(node.value, outer.problems, f"channels.{name}.")
        inner.unknown(CHANNEL_FIELDS)
        if inner.node("path") is None:
            outer.problem(name, "names no path")
        path, files = _path(inner, "path")
    else:
        inner = Checker({}, outer.problems)
        path, files = _path(outer, name)
        if node.value is None:
            outer.problem(name, "names no path")
    channel = Channel(
        name,
        path,
        inner.choice("input_mode", MODES, "File"),
        inner.text("content_type"),
        files,
        inner.choice("s3_type", S3_TYPES, "S3Prefix"),
        inner.choice("distribution", DISTRIBUTIONS, "FullyReplicated"),
        inner.choice("compression", COMPRESSIONS, "None"),
        inner.choice("record_wrapper", WRAPPERS, "None"),
        inner.whole("shuffle_seed", 0, 0, 2**63 - 1) if inner.node("shuffle_seed") is not None else None,
    )
    for field in ("compression", "record_wrapper", "shuffle_seed"):
        if inner.node(field) is not None and channel.input_mode != "Pipe" and inner.text(field) != "None":
            inner.problem(field, "is for Pipe mode alone", "set input_mode to Pipe")
    if channel.s3_type == "ManifestFile" and not channel.remote:
        inner.problem("s3_type", "a manifest of objects must lie on s3://")
    return channel


def _path(fields: Checker, name: str) -> tuple[str, tuple[str, ...]]:
    """(path or URI, files of a glob)."""
    text = fields.text(name)
    if text.startswith(S3):
        if not _S3_URI.fullmatch(text):
            fields.problem(name, "is no S3 URI", "it must look like s3://bucket/prefix")
        return text, ()
    path = resolve(text, fields.values[name].folder) if text else ""
    if not text or os.path.exists(path) or "://" in text.removeprefix("file://") or not _WILD.search(path):
        return fields.path(name, "file or folder"), ()
    files = []
    for found in glob.iglob(path, recursive=True):
        if os.path.isfile(found):
            files.append(os.path.abspath(found))
        if len(files) > MOST_FILES:
            fields.problem(name, f"finds more than {MOST_FILES:,} files", "name a folder")
            return path, ()
    if not files:
        fields.problem(name, "finds no file", near_path(_WILD.split(path, maxsplit=1)[0].rpartition("/")[0] or "/"))
    return path, tuple(sorted(files))


def glob_root(path: str) -> str:
    """The folder above a glob's first wildcard: names of its files start there."""
    return os.path.dirname(_WILD.split(path, maxsplit=1)[0])
