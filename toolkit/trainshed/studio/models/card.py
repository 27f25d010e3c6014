"""A version as a model card in Markdown: what it is, how it was made, of which data, how good it is, how to load it.

The head between `---` is metadata as the Hugging Face Hub reads it from a README.md.
Source: "Model Cards" in the Hub's documentation (fields license, license_name, tags, metrics).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainshed.base.errors import one_line
from trainshed.base.secrets import mask_text
from trainshed.base.units import size

from .version import Version

FILE = "README.md"
MOST_ROWS = 200  # of a table
MOST_FILES = 50
# Licences that the Hub knows by a name of its own; every other one is `other` with a `license_name`.
_KNOWN = frozenset(
    (
        *("apache-2.0", "mit", "bsd-2-clause", "bsd-3-clause", "isc", "bsl-1.0", "mpl-2.0", "unlicense", "openrail"),
        *("cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0", "gpl-2.0", "gpl-3.0", "lgpl-3.0", "agpl-3.0"),
    )
)
TYPE_CHECKING = False
if TYPE_CHECKING:
    from .store import ModelStore

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|])")


def plain(store: ModelStore, version: Version) -> dict[str, Any]:
    """A version as JSON values, with what may change of it: stages, tags, note."""
    stages = [stage for stage, number in store.stages(version.model).items() if number == version.number]
    return {**version.plain(), "stages": stages, "tags": store.tags(version), "note": store.note(version)}


def card_of(store: ModelStore, version: Version) -> str:
    """The card of a version in a store, as it is now."""
    found = plain(store, version)
    return card(version, stages=found["stages"], tags=found["tags"], note=found["note"])


def card(version: Version, *, stages: Iterable[str] = (), tags: Mapping[str, str] = {}, note: str = "") -> str:
    """The card of a version, as text.

    Args:
        stages: that point to it. tags, note: as they are now.
    """
    facts = version.facts
    lines = [*_head(version, tags), f"# {_plain(version.model)}, version {version.number}", ""]
    if note:
        lines += [_plain(line) for line in note.splitlines()] + [""]
    pointing = f" It is {', '.join(_plain(stage) for stage in stages)}." if stages else ""
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(version.created))
    files = "1 file" if len(version.files) == 1 else f"{len(version.files):,} files"
    lines += [f"Added {made}: {files}, {size(version.size)}, content `{version.content}`.{pointing}", ""]
    lines += _run(facts.run)
    lines += _section("Data", _data(facts.run))
    lines += _section("Hyperparameters", _table(("name", "value"), _mapping(facts.run.get("hyperparameters"))))
    metrics = {name: f"{value:.6g}" for name, value in facts.metrics.items()}
    lines += _section("Metrics", _table(("metric", "last value"), metrics))
    lines += _section("Tags", _table(("tag", "value"), tags))
    rows = [(f"`{one.name}`".replace("|", "\\|"), size(one.size), f"`{one.sha256}`") for one in version.files[:MOST_FILES]]
    more = len(version.files) - len(rows)
    rows += [(f"and {more:,} more", "", "")] if more > 0 else []
    lines += _section("Files", _rows(("file", "size", "SHA-256"), rows))
    lines += ["## How to load", "", f"    trainshed models get {version} FOLDER", ""]
    lines += ["copies these files and compares them with their hashes. A job gets them as a channel:", ""]
    lines += ["```yaml", f"channels: {{model: model://{version}}}", "```", ""]
    lines += ["## Licence", "", _plain(facts.licence) if facts.licence else "Not stated.", ""]
    return mask_text("\n".join(lines))


def _head(version: Version, tags: Mapping[str, str]) -> list[str]:
    licence = one_line(version.facts.licence)
    head: dict[str, Any] = {}
    if licence.lower() in _KNOWN:
        head["license"] = licence.lower()
    elif licence:
        head |= {"license": "other", "license_name": licence}
    head["tags"] = ["trainshed", *sorted(one_line(name) for name in tags)]
    if version.facts.metrics:
        head["metrics"] = sorted(one_line(name) for name in version.facts.metrics)
    return ["---", *(f"{name}: {json.dumps(value)}" for name, value in head.items()), "---", ""]  # JSON is YAML


def _run(run: Mapping[str, Any]) -> list[str]:
    if not run:
        return ["## How it was made", "", "From a folder; nothing is known of a run.", ""]
    rows = {}
    for name, title in (
        ("name", "run"), ("id", "run id"), ("status", "status"), ("created", "started"), ("program", "program"),
        ("image", "image"), ("code", "code"), ("commit", "git commit"),
        ("from_run", "went on from"), ("archive_sha256", "archive, SHA-256"),
    ):  # fmt: skip
        if isinstance(value := run.get(name), (str, int, float)) and value != "":
            rows[title] = str(value)
    return ["## How it was made", "", *_table(("", ""), rows), ""]


def _data(run: Mapping[str, Any]) -> list[str]:
    channels, data = _mapping(run.get("channels")), run.get("data")
    prints = data if isinstance(data, dict) else {}
    rows = []
    for name in dict.fromkeys((*channels, *prints)):
        hosts = prints.get(name)
        digests = {
            str(one.get("digest") or "unknown")
            for one in (hosts.values() if isinstance(hosts, dict) else ())
            if isinstance(one, dict)
        }
        rows.append((_plain(name), _plain(channels.get(name, "")), ", ".join(_plain(one) for one in sorted(digests))))
    return _rows(("channel", "from", "fingerprint"), rows)


def _section(title: str, lines: list[str]) -> list[str]:
    return [f"## {title}", "", *lines, ""] if lines else []


def _table(head: tuple[str, str], values: Mapping[str, str]) -> list[str]:
    return _rows(head, [(_plain(name), _plain(value)) for name, value in values.items()])


def _rows(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    if not rows:
        return []
    shown, more = rows[:MOST_ROWS], len(rows) - MOST_ROWS
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in shown)]
    return [*lines, *(["", f"and {more:,} more"] if more > 0 else [])]


def _mapping(value: Any) -> dict[str, str]:
    return {str(name): str(one) for name, one in value.items()} if isinstance(value, dict) else {}


def _plain(text: object) -> str:
    """Other people's text as text, on one line: neither markup nor a column of its own."""
    return _SPECIAL.sub(r"\\\1", one_line(mask_text(str(text))))
