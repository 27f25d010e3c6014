"""The input channels of a job file: a folder, a file, a glob or an `s3://` URI each."""

from __future__ import annotations

import os
import re

from trainshed.base.errors import TrainshedError
from trainshed.contract.config import CHANNEL_NAME
from trainshed.machine.folders import match

from .addresses import is_elsewhere, without_secrets, wrong_with
from .checker import Checker, near_path, resolve
from .fields import CHANNEL, Field
from .job import S3, ChannelSpec
from .nodes import Node

MOST_FILES = 100_000  # that a glob may match
_WITH_MANIFESTS = (S3, "https://", "http://")
_WILD = re.compile(r"[*?[]")


def read_channels(fields: Checker, row: Field) -> tuple[ChannelSpec, ...]:
    """The channels, sorted by name; problems are noted in `fields`."""
    nodes = fields.mapping(row.name)
    if len(nodes) > row.most:
        fields.problem(row.name, f"there are {len(nodes)} channels; a job has at most {row.most}")
    outer = Checker(nodes, fields.problems, f"{row.name}.")
    channels = []
    for name in sorted(nodes):
        if not re.fullmatch(CHANNEL_NAME, name) or name in (".", ".."):
            outer.problem(name, "is not a valid channel name: up to 64 letters, digits, '.', '_' and '-'")
            continue
        channels.append(_channel(outer, name, nodes[name]))
    return tuple(channels)


def _channel(outer: Checker, name: str, node: Node) -> ChannelSpec:
    if isinstance(node.value, dict):
        inner = Checker(node.value, outer.problems, f"channels.{name}.")
        inner.unknown(row.name for row in CHANNEL)
        if inner.node("path") is None:
            outer.problem(name, "has no path")
        path, files = _path(inner, "path")
    else:
        inner = Checker({}, outer.problems)
        path, files = _path(outer, name)
        if node.value is None:
            outer.problem(name, "has no path")
    if node.value == "" or (isinstance(node.value, dict) and inner.node("path") is not None and not inner.text("path")):
        outer.problem(name, "has no path")
    rest = {row.name: inner.read(row) for row in CHANNEL if row.name != "path"}
    channel = ChannelSpec(name, path, files=files, **rest)
    for field in ("compression", "record_wrapper", "shuffle_seed"):
        given = inner.node(field) is not None and inner.text(field) != "None"
        if given and channel.input_mode != "Pipe":
            inner.problem(field, "is only for Pipe mode", "set input_mode to Pipe")
    if channel.s3_type == "ManifestFile" and not channel.path.startswith(_WITH_MANIFESTS):
        inner.problem("s3_type", "a manifest of objects must be on s3://, https:// or http://")
    if channel.access == "rw" and (channel.staged or channel.input_mode != "File" or not os.path.isdir(path or ".")):
        inner.problem("access", "rw is for a folder of this machine, in File mode")
    _check_augmented(inner, channel)
    return channel


def _check_augmented(fields: Checker, channel: ChannelSpec) -> None:
    if not channel.augmented:
        if channel.attributes:
            fields.problem("attributes", "are for augmented manifests", "set s3_type to AugmentedManifestFile", value="")
        return
    if not channel.attributes:
        fields.problem("s3_type", "an augmented manifest needs `attributes`, the names of those that are sent")
    if channel.input_mode != "Pipe":
        fields.problem("s3_type", "an augmented manifest is only for Pipe mode", "set input_mode to Pipe")
    elif channel.record_wrapper != "RecordIO":
        fields.problem(
            "s3_type", "nobody can tell the attributes of an augmented manifest apart", "set record_wrapper to RecordIO"
        )
    if channel.files or (not channel.remote and os.path.isdir(channel.path)):
        fields.problem("path", "an augmented manifest is one file")
    if channel.remote and not channel.path.startswith(S3):
        fields.problem("path", "an augmented manifest must be on this machine or on s3://")


def _path(fields: Checker, name: str) -> tuple[str, tuple[str, ...]]:
    """(path or URI, files of a glob)."""
    text = fields.text(name)
    if is_elsewhere(text):
        problem, hint = wrong_with(text)
        if problem:
            fields.problem(name, problem, hint, value=without_secrets(text))
        return text, ()
    path = resolve(text, fields.values[name].folder) if text else ""
    if not text or os.path.exists(path) or not _WILD.search(path):
        return fields.path(name, "file or folder"), ()
    files = []
    try:
        for found in match(path):
            files.append(found)
            if len(files) > MOST_FILES:
                fields.problem(name, f"matches more than {MOST_FILES:,} files", "name a folder")
                return path, ()
    except TrainshedError as error:
        fields.problem(name, error.message, error.hint)
        return path, ()
    if not files:
        fields.problem(name, "matches no files", near_path(_WILD.split(path, maxsplit=1)[0].rpartition("/")[0] or "/"))
    return path, tuple(sorted(files))


def glob_root(path: str) -> str:
    """The folder above a glob's first wildcard: names of its files start there."""
    return os.path.dirname(_WILD.split(path, maxsplit=1)[0])
