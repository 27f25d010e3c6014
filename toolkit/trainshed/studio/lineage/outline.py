"""A lineage as a tree of text."""

from __future__ import annotations

from typing import Any

from trainshed.base.errors import one_line, some
from trainshed.base.units import size

MOST_NAMED = 5  # other runs that a line names
_KINDS = {"model": "went on from the model of", "rerun": "makes again"}
_CHILDREN = {"model": "its model went into", "rerun": "was made again by"}
_HOW = {"hashes": "known by the hashes of the model", "folder": "", "id": "", "gone": "which is gone"}


def outline(told: dict[str, Any]) -> str:
    """The tree of what `ancestry` tells."""
    lines = [_title(told)]
    _branches(told, "", lines)
    return "\n".join(lines) + "\n"


def facts(told: dict[str, Any]) -> list[tuple[str, str]]:
    """(what, in words) of a run's own facts, for the tree and the picture."""
    rows = [("code", _code(told["code"])), ("git", _git(told["git"])), ("image", _image(told["image"]))]
    environment = told["environment"]
    if environment.get("python"):
        rows.append(("python", f"{environment['python']}, {told['packages']} packages, {environment.get('platform', '')}"))
    for one in told["tuning"]:
        rows.append(("trial of", f"{one['name']}, in {one['folder']}"))
    for channel, data in told["data"].items():
        rows.append((f"data {channel}", "; ".join(data["fingerprints"])))
        if data["also_in"]:
            rows.append(("", f"also seen by {some(data['also_in'], MOST_NAMED)}"))
    model = told["model"]
    if model.get("digest"):
        rows.append(("model", f"{model['digest']} ({_files(model)}, {size(model.get('bytes', 0))})"))
    return [(name, one_line(words)) for name, words in rows if words]


def _branches(told: dict[str, Any], indent: str, lines: list[str]) -> None:
    if told.get("again"):
        return
    rows: list[tuple[str, dict[str, Any] | None]] = [(f"{name:<10} {words}", None) for name, words in facts(told)]
    rows += [(_parent(one), one["of"]) for one in told.get("parents", ())]
    rows += [(f"{_CHILDREN[one['kind']]} {_title(one['of'])}{_found(one)}", one["of"]) for one in told.get("children", ())]
    for number, (words, below) in enumerate(rows):
        last = number == len(rows) - 1
        lines.append(f"{indent}{'└── ' if last else '├── '}{words}")
        if below is not None:
            _branches(below, indent + ("    " if last else "│   "), lines)


def _title(told: dict[str, Any]) -> str:
    name = one_line(str(told["run"]))
    return (
        f"{name} (see above)"
        if told.get("again")
        else f"{name} ({told['status']}, {told['started'][:19].replace('T', ' ')})"
    )


def _parent(one: dict[str, Any]) -> str:
    title = _title(one["of"]) if one["of"] is not None else f"{one_line(one['run'])} in {one_line(one['folder'])}"
    twins = f"; {some(one['also_made_by'], MOST_NAMED)} made the very same" if one.get("also_made_by") else ""
    return f"{_KINDS[one['kind']]} {title}{_found(one)}{twins}"


def _found(one: dict[str, Any]) -> str:
    how = _HOW[one["found_by"]]
    return f", {how}" if how else ""


def _code(code: dict[str, Any]) -> str:
    if not code.get("digest"):
        return str(code.get("note", ""))
    words = f"{code['digest']} ({_files(code)}, {size(code.get('bytes', 0))}) of {code.get('source', '')}"
    return words + ("; earlier attempts ran other code" if code.get("earlier") else "")


def _files(counted: dict[str, Any]) -> str:
    number = counted.get("files", 0)
    return "1 file" if number == 1 else f"{number} files"


def _git(git: dict[str, Any]) -> str:
    if not git.get("commit"):
        return str(git.get("note", ""))
    changes = git.get("changes", 0)
    branch = f" on {git['branch']}" if git.get("branch") else ""
    state = f", {changes} changed file{'s' if changes != 1 else ''}" if git.get("dirty") else ", no changes"
    return f"{str(git['commit'])[:12]}{branch}{state}" + (f", {git['remote']}" if git.get("remote") else "")


def _image(image: dict[str, Any]) -> str:
    known = image.get("digest") or image.get("id") or ""
    return " ".join(part for part in (str(image.get("name", "")), str(known)) if part)
