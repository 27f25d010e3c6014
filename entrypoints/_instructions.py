"""Reads instructions and preferences: files of JSON lines, each line checked before anything is trained on it.

Imports the standard library alone, so that bad data is named before torch is loaded. The fields are those that TRL and
the hubs' data sets use: `messages`; `prompt` and `completion`; `text`; `prompt`, `chosen` and `rejected`.
"""

from __future__ import annotations

import difflib
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _common import Problem, folder

ENDINGS = (".jsonl", ".json")
ROLES = ("system", "user", "assistant", "tool")
OTHER_NAMES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant", "function": "tool"}
FIELDS = {"sft": "messages, prompt and completion, or text", "dpo": "prompt, chosen and rejected"}
SHOWN = 60  # characters of a value in a message

Message = dict[str, str]


@dataclass(frozen=True)
class Plain:
    """A text to go on with, and how: `prompt` may be empty."""

    prompt: str
    completion: str
    where: str


@dataclass(frozen=True)
class Chat:
    """A conversation. first: index of the first message whose text is learnt, if it is an assistant's."""

    messages: tuple[Message, ...]
    first: int
    where: str


Example = Plain | Chat


@dataclass(frozen=True)
class Pair:
    """Two answers to one prompt."""

    chosen: Example
    rejected: Example


class Bad(Exception):
    """What is wrong with one line."""


def load(path: str, what: str, objective: str, prompt_format: str) -> list[Any]:
    """The examples (for dpo: pairs) of all files of JSON lines below a folder, in order of files and lines.

    Raises:
        Problem: there is none, or a line is not what it must be; the first such is named, and how many there are.
    """
    root = folder(path, what)
    files = sorted(file for file in root.rglob("*") if file.suffix in ENDINGS and not _hidden(file, root))
    if not files:
        raise Problem(f"{what} {root} holds no file of JSON lines (*.jsonl, *.json)")
    found, bad = [], []
    for file in files:
        for where, line in _lines(file, file.relative_to(root).as_posix()):
            try:
                found.append(_example(line, where, objective, prompt_format))
            except Bad as error:
                bad.append(f"{where}: {error}")
    if bad:
        more = f" ({len(bad)} lines are wrong in all)" if len(bad) > 1 else ""
        raise Problem(f"{what} {root}: {bad[0]}{more}")
    if not found:
        raise Problem(f"{what} {root}: its files are empty")
    return found


def split(examples: Sequence[Any], fraction: float, seed: int) -> tuple[list[Any], list[Any]]:
    """Examples to train on and a random part that is held out, both in their order; one stays to train on."""
    count = min(round(len(examples) * fraction), len(examples) - 1)
    held_out = set(random.Random(seed).sample(range(len(examples)), count))
    parts: tuple[list[Any], list[Any]] = ([], [])
    for index, example in enumerate(examples):
        parts[index in held_out].append(example)
    return parts


def prompts(path: str, chat: bool) -> list[tuple[dict[str, Any], str | list[Message]]]:
    """The questions of a file to answer: each line's own object, and the prompt or messages in it. Raises Problem.

    chat: whether a prompt that is a string is a user's turn.
    """
    file = Path(path)
    if not file.is_file():
        raise Problem(f"predict: {path} is not a file; give one of JSON lines with prompt or messages")
    found = []
    for where, line in _lines(file, file.name):
        try:
            content = _object(line)
            given = content.get("messages", content.get("prompt"))
            if given is None:
                raise Bad(f"has neither prompt nor messages (its fields: {_names(content)})")
            name = "messages" if "messages" in content else "prompt"
            prompt = _text(given, name) if isinstance(given, str) else _question(_messages(given, name), name)
        except Bad as error:
            raise Problem(f"predict: {where}: {error}") from error
        found.append((content, [{"role": "user", "content": prompt}] if chat and isinstance(prompt, str) else prompt))
    if not found:
        raise Problem(f"predict: {path} is empty")
    return found


def _question(messages: tuple[Message, ...], name: str) -> list[Message]:
    """The messages without the answers that they end with."""
    kept = list(messages)
    while kept and kept[-1]["role"] == "assistant":
        kept.pop()
    if not kept:
        raise Bad(f"{name}: there is nothing to answer, only the assistant's turn")
    return kept


# --- lines ------------------------------------------------------------------------------------------------------------


def _hidden(file: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(root).parts) or not file.is_file()


def _lines(file: Path, name: str) -> Iterator[tuple[str, bytes]]:
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


def _object(line: bytes) -> dict[str, Any]:
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
        raise Bad(f"is {_kind(content)}, not an object like {{...}}{hint}")
    return content


def _example(line: bytes, where: str, objective: str, prompt_format: str) -> Example | Pair:
    content = _object(line)
    if objective == "dpo":
        missing = [name for name in ("prompt", "chosen", "rejected") if name not in content]
        if missing:
            raise Bad(f"has no {missing[0]}; dpo needs {FIELDS['dpo']} (its fields: {_names(content)})")
        chosen, rejected = (_answer(content, name, where, prompt_format) for name in ("chosen", "rejected"))
        if chosen == rejected:
            raise Bad("chosen and rejected are the same")
        return Pair(chosen, rejected)
    if "messages" in content:
        messages = _messages(content["messages"], "messages")
        if not any(message["role"] == "assistant" for message in messages):
            raise Bad("messages: there is no assistant's turn to learn from")
        return Chat(messages, 0, where)
    if "completion" in content or ("prompt" in content and "text" not in content):
        missing = [name for name in ("prompt", "completion") if name not in content]
        if missing:
            hint = "; its chosen and rejected are for objective dpo" if "chosen" in content else ""
            raise Bad(f"has no {missing[0]} (its fields: {_names(content)}){hint}")
        return _answer(content, "completion", where, prompt_format)
    if "text" in content:
        return Plain("", _text(content["text"], "text"), where)
    raise Bad(f"has none of {FIELDS['sft']} (its fields: {_names(content)})")


def _answer(content: dict[str, Any], name: str, where: str, prompt_format: str) -> Example:
    """The prompt with the answer in the field `name`: two strings, or two lists of messages."""
    prompt, answer = content["prompt"], content[name]
    if isinstance(prompt, list) != isinstance(answer, list):
        raise Bad(f"prompt is {_kind(prompt)}, {name} is {_kind(answer)}: both must be strings, or both lists of messages")
    if isinstance(prompt, list):
        before, after = _messages(prompt, "prompt"), _messages(answer, name, turn=len(prompt))
        if after[0]["role"] != "assistant":
            raise Bad(f"{name}[0].role is {after[0]['role']!r}; an answer begins with the assistant's turn")
        return Chat(before + after, len(before), where)
    before, after = _text(prompt, "prompt"), _text(answer, name)
    if prompt_format == "chat":
        return Chat(({"role": "user", "content": before}, {"role": "assistant", "content": after}), 1, where)
    return Plain(before, after, where)


def _messages(given: Any, name: str, turn: int = 0) -> tuple[Message, ...]:
    """Checked messages. turn: how many came before them."""
    if not isinstance(given, list):
        raise Bad(f"{name} is {_kind(given)}, not a list of messages")
    if not given:
        raise Bad(f"{name} is empty")
    messages = []
    for index, message in enumerate(given):
        at = f"{name}[{index}]"
        if not isinstance(message, dict):
            raise Bad(f"{at} is {_kind(message)}, not an object with role and content")
        for field in ("role", "content"):
            if field not in message:
                hint = " (from and value are other names for role and content: rename them)" if "from" in message else ""
                raise Bad(f"{at} has no {field} (its fields: {_names(message)}){hint}")
        role = message["role"]
        if role not in ROLES:
            near = OTHER_NAMES.get(str(role).lower()) or next(iter(difflib.get_close_matches(str(role), ROLES, 1)), "")
            raise Bad(f"{at}.role is {_short(role)}, not one of {', '.join(ROLES)}" + (f"; write {near}" if near else ""))
        if role == "system" and index + turn:
            raise Bad(f"{at}.role is 'system', which only the first message may have")
        messages.append({"role": role, "content": _text(message["content"], f"{at}.content")})
    return tuple(messages)


def _text(given: Any, name: str) -> str:
    if not isinstance(given, str):
        raise Bad(f"{name} is {_kind(given)}, not a string")
    if not given.strip():
        raise Bad(f"{name} is empty")
    try:
        given.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Bad(f"{name} has half a character (a lone surrogate) at position {error.start}") from error
    return given


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _names(content: dict[str, Any]) -> str:
    return _short(", ".join(content))[1:].rstrip("'\"") or "none"
