"""Reads instructions and preferences: files of JSON lines, each line checked before anything is trained on it.

Imports the standard library alone, so that bad data is named before torch is loaded. The fields are those that TRL and
the hubs' data sets use: `messages`; `prompt` and `completion`; `text`; `prompt`, `chosen` and `rejected`.
"""

from __future__ import annotations

import difflib
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import _fields
import _told
from _common import Problem
from _jsonlines import Bad, examples_below, kind_of, lines, names_of, object_of, shortened, text_of
from _predicting import Answers, files_to_predict

ROLES = ("system", "user", "assistant", "tool")
SAME_AS = {"developer": "system"}  # OpenAI's newer name
OTHER_NAMES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant", "function": "tool"}
FIELDS = {"sft": "messages, prompt and completion, or text", "dpo": "prompt, chosen and rejected"}

Message = dict[str, str]


@dataclass(frozen=True)
class Plain:
    """A text to go on with, and how: `prompt` may be empty."""

    prompt: str
    completion: str
    where: str


@dataclass(frozen=True)
class Chat:
    """A conversation. first: index of the first message whose text is learnt, if it is an assistant's.

    left_out: indices of those that are not learnt, as the data says.
    """

    messages: tuple[Message, ...]
    first: int
    where: str
    left_out: tuple[int, ...] = ()


Example = Plain | Chat


@dataclass(frozen=True)
class Pair:
    """Two answers to one prompt."""

    chosen: Example
    rejected: Example


def load(path: str, what: str, objective: str, prompt_format: str) -> list[Any]:
    """The examples (for dpo: pairs) of all files of JSON lines below a folder, in order of files and lines.

    Raises:
        Problem: there is none, or a line is not what it must be; the first such is named, and how many there are.
    """
    kinds = {"file of JSON lines": (".jsonl", ".json")}
    unread: Counter[str] = Counter()
    read = Reader(objective, prompt_format, unread)
    found = examples_below(path, what, kinds, lines, read.example)
    _fields.note_unread(unread, what)
    return found


def fields_of(examples: Sequence[Any]) -> list[_told.Field]:
    """What examples hold, and what of it is learnt."""
    if examples and isinstance(examples[0], Pair):
        sides = {"chosen": [one.chosen for one in examples], "rejected": [one.rejected for one in examples]}
        becomes = {"chosen": "preferred", "rejected": "not preferred"}
        return [_told.texts(name, [_text(one) for one in side], becomes[name]) for name, side in sides.items()]
    plain = [one for one in examples if isinstance(one, Plain)]
    made = []
    for name in ("prompt", "completion") if plain else ():
        learns = "learnt" if name == "completion" else "read, not learnt"
        made.append(_told.texts(name, [getattr(one, name) for one in plain], learns))
    turns: dict[tuple[str, bool], list[str]] = {}
    for chat in (one for one in examples if isinstance(one, Chat)):
        for at, message in enumerate(chat.messages):
            learnt = message["role"] == "assistant" and at >= chat.first and at not in chat.left_out
            turns.setdefault((message["role"], learnt), []).append(message["content"])
    said = {True: "learnt", False: "read, not learnt"}
    return made + [_told.texts(f"turns of {role}", texts, said[learnt]) for (role, learnt), texts in turns.items()]


def _text(example: Example) -> str:
    if isinstance(example, Plain):
        return example.completion
    return "\n".join(message["content"] for message in example.messages[example.first :])


def split(examples: Sequence[Any], fraction: float, seed: int) -> tuple[list[Any], list[Any]]:
    """Examples to train on and a random part that is held out, both in their order; one stays to train on."""
    count = min(round(len(examples) * fraction), len(examples) - 1)
    held_out = set(random.Random(seed).sample(range(len(examples)), count))
    parts: tuple[list[Any], list[Any]] = ([], [])
    for index, example in enumerate(examples):
        parts[index in held_out].append(example)
    return parts


def prompts(path: str, chat: bool, answers: Answers) -> list[tuple[str, dict[str, Any], str | list[Message]]]:
    """(where, line, prompt) of a file or folder of JSON lines. answers: is told which lines have none. Raises Problem."""
    found = []
    for file, name in files_to_predict(path, "one of JSON lines with prompt or messages, or a folder of them"):
        for where, line in lines(file, name):
            try:
                content = object_of(line)
                prompt = _prompt_of(content)
            except Bad as error:
                answers.refuse({}, f"{where}: {error}", {"where": where})
                continue
            asked = [{"role": "user", "content": prompt}] if chat and isinstance(prompt, str) else prompt
            found.append((where, content, asked))
    if not found and not answers.refused:
        raise Problem(f"predict: {path} is empty")
    return found


def _prompt_of(content: dict[str, Any]) -> str | list[Message]:
    given = content.get("messages", content.get("prompt"))
    if given is None:
        raise Bad(f"has neither prompt nor messages (its fields: {names_of(content)})")
    name = "messages" if "messages" in content else "prompt"
    return text_of(given, name) if isinstance(given, str) else _question(_messages(given, name, Counter())[0], name)


def _question(messages: tuple[Message, ...], name: str) -> list[Message]:
    """The messages without the answers that they end with."""
    kept = list(messages)
    while kept and kept[-1]["role"] == "assistant":
        kept.pop()
    if not kept:
        raise Bad(f"{name}: there is nothing to answer, only the assistant's turn")
    return kept


# --- lines ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reader:
    """Reads lines. unread: where fields that nobody reads are counted."""

    objective: str
    prompt_format: str
    unread: Counter[str]

    def example(self, line: bytes, where: str) -> Example | Pair:
        """The example of a line. Raises Bad."""
        content = object_of(line)
        if self.objective == "dpo":
            return self._pair(content, where)
        if "messages" in content:
            _fields.check_line(content, ("messages",), self.unread)
            messages, left_out = _messages(content["messages"], "messages", self.unread)
            return _to_learn(Chat(messages, 0, where, left_out), "messages")
        if "completion" in content or ("prompt" in content and "text" not in content):
            missing = [name for name in ("prompt", "completion") if name not in content]
            if missing:
                hint = "; its chosen and rejected are for objective dpo" if "chosen" in content else ""
                raise Bad(f"has no {missing[0]} (its fields: {names_of(content)}){hint}")
            _fields.check_line(content, ("prompt", "completion"), self.unread)
            return self._answer(content, "completion", where)
        if "text" in content:
            _fields.check_line(content, ("text",), self.unread)
            return Plain("", text_of(content["text"], "text"), where)
        raise Bad(f"has none of {FIELDS['sft']} (its fields: {names_of(content)})")

    def _pair(self, content: dict[str, Any], where: str) -> Pair:
        read = ("prompt", "chosen", "rejected")
        missing = [name for name in read if name not in content]
        if missing:
            raise Bad(f"has no {missing[0]}; dpo needs {FIELDS['dpo']} (its fields: {names_of(content)})")
        _fields.check_line(content, read, self.unread)
        chosen, rejected = (self._answer(content, name, where) for name in ("chosen", "rejected"))
        if chosen == rejected:
            raise Bad("chosen and rejected are the same")
        return Pair(chosen, rejected)

    def _answer(self, content: dict[str, Any], name: str, where: str) -> Example:
        """The prompt with the answer in the field `name`: two strings, or two lists of messages."""
        prompt, answer = content["prompt"], content[name]
        if isinstance(prompt, list) != isinstance(answer, list):
            raise Bad(
                f"prompt is {kind_of(prompt)}, {name} is {kind_of(answer)}: both must be strings, or both lists of messages"
            )
        if isinstance(prompt, list):
            (before, _), (after, left_out) = (_messages(content[one], one, self.unread) for one in ("prompt", name))
            if after[0]["role"] != "assistant":
                raise Bad(f"{name}[0].role is {after[0]['role']!r}; an answer begins with the assistant's turn")
            left_out = tuple(len(before) + index for index in left_out)
            return _to_learn(Chat(before + after, len(before), where, left_out), name)
        before, after = text_of(prompt, "prompt"), text_of(answer, name)
        if self.prompt_format == "chat":
            return Chat(({"role": "user", "content": before}, {"role": "assistant", "content": after}), 1, where)
        return Plain(before, after, where)


def _to_learn(chat: Chat, name: str) -> Chat:
    """The chat, which must have a turn to learn from. Raises Bad."""
    turns = [at for at, one in enumerate(chat.messages) if one["role"] == "assistant" and at >= chat.first]
    if not turns:
        raise Bad(f"{name}: there is no assistant's turn to learn from")
    if set(turns) <= set(chat.left_out):
        raise Bad(f"{name}: no assistant's turn is to be learnt, by their weight or train: leave the line out")
    return chat


def _messages(given: Any, name: str, unread: Counter[str]) -> tuple[tuple[Message, ...], tuple[int, ...]]:
    """Checked messages, and which of them are not to be learnt. Raises Bad."""
    if not isinstance(given, list):
        raise Bad(f"{name} is {kind_of(given)}, not a list of messages")
    messages: list[Message] = []
    left_out = []
    for index, message in enumerate(given):
        at = f"{name}[{index}]"
        role = _role(message, at)
        _fields.check(message, ("role", "content", *_fields.LEARNT), at, unread)
        if role == "system" and message["content"] in ("", None, []):
            continue
        if not _fields.is_learnt(message, at):
            left_out.append(len(messages))
        messages.append({"role": role, "content": _fields.text_in(message["content"], f"{at}.content")})
    if not messages:
        raise Bad(f"{name} is empty")
    return tuple(messages), tuple(left_out)


def _role(message: Any, at: str) -> str:
    if not isinstance(message, dict):
        raise Bad(f"{at} is {kind_of(message)}, not an object with role and content")
    for field in ("role", "content"):
        if field not in message:
            hint = " (from and value are other names for role and content: rename them)" if "from" in message else ""
            raise Bad(f"{at} has no {field} (its fields: {names_of(message)}){hint}")
    role = message["role"]
    if isinstance(role, str) and (role in ROLES or role in SAME_AS):
        return SAME_AS.get(role, role)
    near = OTHER_NAMES.get(str(role).lower()) or next(iter(difflib.get_close_matches(str(role), ROLES, 1)), "")
    raise Bad(f"{at}.role is {shortened(role)}, not one of {', '.join(ROLES)}" + (f"; write {near}" if near else ""))
