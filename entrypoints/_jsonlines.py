"""Reads files of JSON lines, of JSON lists and of Parquet, and says what is wrong with one: row, field, value.

Imports the standard library alone, and pyarrow where there is Parquet.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from _common import Problem, folder

Row = TypeVar("Row")
Made = TypeVar("Made")
SHOWN = 60  # characters of a value in a message


class Bad(Exception):
    """What is wrong with one line."""


def files_below(path: str, what: str, kinds: Mapping[str, tuple[str, ...]]) -> tuple[Path, list[Path]]:
    """A folder and its files of these kinds, by their endings, in order of their names. Raises Problem if there is none."""
    root = folder(path, what)
    endings = tuple(ending for each in kinds.values() for ending in each)
    files = sorted(file for file in root.rglob("*") if file.name.endswith(endings) and not _hidden(file, root))
    if not files:
        wanted = ", or ".join(f"{kind} ({', '.join(f'*{ending}' for ending in each)})" for kind, each in kinds.items())
        raise Problem(f"{what} {root} holds no {wanted}")
    return root, files


def examples_below(
    path: str,
    what: str,
    kinds: Mapping[str, tuple[str, ...]],
    rows: Callable[[Path, str], Iterable[tuple[str, Row]]],
    example: Callable[[Row, str], Made],
) -> list[Made]:
    """What all files of these kinds below a folder hold, in order of files and lines.

    rows: of (a file, its name below the folder) gives (where, row) of each. example: makes one of (row, where); raises Bad.

    Raises:
        Problem: there is none, or one is not what it must be; the first such is named, and how many there are.
    """
    root, files = files_below(path, what, kinds)
    found, bad = [], []
    for file in files:
        for where, row in rows(file, file.relative_to(root).as_posix()):
            try:
                found.append(example(row, where))
            except Bad as error:
                bad.append(f"{where}: {error}")
    if bad:
        more = f" ({len(bad)} lines are wrong in all)" if len(bad) > 1 else ""
        raise Problem(f"{what} {root}: {bad[0]}{more}")
    if not found:
        raise Problem(f"{what} {root}: its files are empty")
    return found


def _hidden(file: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(root).parts) or not file.is_file()


def lines(file: Path, name: str) -> Iterator[tuple[str, bytes]]:
    """(`name:number`, content) of the lines that are not blank."""
    try:
        with file.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                if line.strip():
                    yield f"{name}:{number}", line
    except OSError as error:
        raise Problem(f"{file} cannot be read: {error.strerror}") from error


ROWS = {"file of JSON lines, or of a JSON list": (".jsonl", ".json"), "of Parquet": (".parquet",)}


def rows(file: Path, name: str) -> Iterator[tuple[str, bytes | dict[str, Any]]]:
    """(where, row) of the lines of a file, of the elements of its JSON list, or of its rows of Parquet. Raises Problem."""
    if file.suffix == ".parquet":
        yield from _parquet(file, name)
    elif _begins(file) == b"[":
        yield from _elements(file, name)
    else:
        yield from lines(file, name)


def _begins(file: Path) -> bytes:
    line = next((line for _, line in lines(file, "")), b"")
    return b"" if line.strip() == b"[]" else line.lstrip()[:1]


def _elements(file: Path, name: str) -> Iterator[tuple[str, Any]]:
    try:
        content = json.loads(file.read_bytes().decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise Problem(f"{file} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    except (OSError, RecursionError, ValueError) as error:
        raise Problem(f"{file} cannot be read as JSON: {error}") from error
    yield from ((f"{name}: element {number}", element) for number, element in enumerate(content, 1))


def _parquet(file: Path, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise Problem(f"{file}: Parquet needs pyarrow, not installed here: pip install 'trainshed[data]'") from error
    number = 0
    try:
        for batch in ParquetFile(file).iter_batches():
            for row in batch.to_pylist():
                number += 1
                yield f"{name}: row {number}", _without_nothing(row)
    except (OSError, ArrowException) as error:
        raise Problem(f"{file} cannot be read as Parquet: {error}") from error


def _without_nothing(value: Any) -> Any:
    """Without the fields that a column of objects gives each object of it, as some of them have these."""
    if isinstance(value, list):
        return [_without_nothing(one) for one in value]
    if isinstance(value, dict):
        return {name: _without_nothing(one) for name, one in value.items() if one is not None}
    return value


def object_of(line: Any) -> dict[str, Any]:
    """The object of a line, or a row that is read already. Raises Bad."""
    if isinstance(line, dict):
        return line
    if not isinstance(line, bytes):
        raise Bad(f"is {kind_of(line)}, not an object like {{...}}")
    try:
        content = json.loads(line.rstrip(b"\r\n").decode("utf-8"))
    except UnicodeDecodeError as error:
        raise Bad(f"is not UTF-8 (byte {error.start + 1} of the line)") from error
    except json.JSONDecodeError as error:
        whole = line.strip() in (b"{", b"[") or line.lstrip()[:1] == b"["
        hint = "; each line must be a whole object, not a part of a larger text" if whole else ""
        raise Bad(f"is not JSON: {error.msg} at column {error.colno}{hint}") from error
    except (RecursionError, ValueError) as error:
        raise Bad("is nested too deeply, or has a number that is too long") from error
    if not isinstance(content, dict):
        hint = "; a JSON list is written one element a line here" if isinstance(content, list) else ""
        raise Bad(f"is {kind_of(content)}, not an object like {{...}}{hint}")
    return content


def text_of(given: Any, name: str) -> str:
    if not isinstance(given, str):
        raise Bad(f"{name} is {kind_of(given)}, not a string")
    if not given.strip():
        raise Bad(f"{name} is empty")
    try:
        given.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Bad(f"{name} has half a character (a lone surrogate) at position {error.start}") from error
    return given


def kind_of(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def names_of(content: dict[str, Any]) -> str:
    return shortened(", ".join(content))[1:].rstrip("'\"") or "none"
