"""Reads instructions and preferences: JSON or Parquet, each row checked before anything is trained on it.

Bad data is named before torch is loaded. The fields are those that TRL and the hubs' data sets use: `messages`; `prompt`
and `completion`; `text`; `prompt`, `chosen` and `rejected`; and what `_forms` brings into these.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import _fields
import _forms
import _told
from _common import Problem
from _forms import Message
from _jsonlines import ROWS, Bad, examples_below, kind_of, lines, names_of, object_of, rows, shortened, text_of
from _predicting import Answers, files_to_predict

FIELDS = "messages, prompt and completion, instruction and output, or text"
PAIRED = ("dpo", "orpo", "reward")  # objectives that learn from two answers to one prompt
OPINIONS = ("kto_tag", "label")  # of a line for kto: whether its answer is a good one
OWN = ("completion", "completions", "completion_ids", "prompts", "trainer_state", "log_extra", "log_metric", "environments")


@dataclass(frozen=True)
class Plain:
    """A text to go on with, and how: `prompt` may be empty. good: whether it is an answer to give."""

    prompt: str
    completion: str
    where: str
    good: bool = True


@dataclass(frozen=True)
class Chat:
    """A conversation. first: index of the first message whose text is learnt, if it is an assistant's.

    left_out: indices of those that are not learnt, as the data says. tools: that the assistant may call.
    """

    messages: tuple[Message, ...]
    first: int
    where: str
    left_out: tuple[int, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    good: bool = True


Example = Plain | Chat


@dataclass(frozen=True)
class Pair:
    """Two answers to one prompt."""

    chosen: Example
    rejected: Example


@dataclass(frozen=True)
class Prompt:
    """What is to be answered. columns: what else the line says, for those who judge the answer."""

    given: str | list[Message]
    columns: dict[str, Any]
    where: str


def load(path: str, what: str, objective: str, prompt_format: str) -> list[Any]:
    """The examples (pairs, or prompts) of all files of JSON and Parquet below a folder, in order of files and rows.

    Raises:
        Problem: there is none, or a row is not what it must be; the first such is named, and how many there are.
    """
    unread: Counter[str] = Counter()
    read = Reader(objective, prompt_format, unread)
    found = examples_below(path, what, ROWS, rows, read.example)
    _fields.note_unread(unread, what)
    return found


def fields_of(examples: Sequence[Any]) -> list[_told.Field]:
    """What examples hold, and what of it is learnt."""
    if examples and isinstance(examples[0], Pair):
        sides = {"chosen": [one.chosen for one in examples], "rejected": [one.rejected for one in examples]}
        becomes = {"chosen": "preferred", "rejected": "not preferred"}
        return [_told.texts(name, [_text(one) for one in side], becomes[name]) for name, side in sides.items()]
    if examples and isinstance(examples[0], Prompt):
        asked = [one.given if isinstance(one.given, str) else one.given[-1]["content"] for one in examples]
        others = Counter(name for one in examples for name in one.columns)
        read = (_told.Field(name, "any", count, -1, 0, "", "given to the rewards") for name, count in others.items())
        return [_told.texts("prompt", asked, "answered"), *read]
    plain = [one for one in examples if isinstance(one, Plain)]
    made = []
    if not all(one.good for one in examples):
        made.append(_told.labels("label", ["good" if one.good else "bad" for one in examples], "more or less of it"))
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


def mixed(examples: Sequence[Any], shares: dict[str, float], seed: int) -> list[Any]:
    """Examples, those of named files and folders so many times: 2 is twice, 0.5 a random half. Raises Problem."""
    draw, found, used = random.Random(seed), [], set()
    for one in examples:
        place = Path(getattr(one, "chosen", one).where.partition(":")[0])
        name = next((name for name in (place.parts[0], place.stem) if name in shares), "")
        share = shares.get(name, 1.0)
        used.add(name)
        found += [one] * (int(share) + (draw.random() < share % 1))
    if unknown := sorted(set(shares) - used):
        raise Problem(f"mixture: the channel train has no folder or file {unknown[0]}")
    if not found:
        raise Problem("mixture: it leaves nothing to train on")
    return found


def prompts(path: str, chat: bool, answers: Answers) -> list[tuple[str, dict[str, Any], str | list[Message]]]:
    """(where, line, prompt) of a file or folder of JSON lines. answers: is told which lines have none. Raises Problem."""

    def read(content: dict[str, Any], _: str) -> str | list[Message]:
        _forms.tools_of(content)  # they are looked at before the model is loaded
        prompt = _prompt_of(content)
        return [{"role": "user", "content": prompt}] if chat and isinstance(prompt, str) else prompt

    return _each(path, "one of JSON lines with prompt or messages, or a folder of them", answers, read)


def to_score(path: str, chat: bool, answers: Answers) -> list[tuple[str, dict[str, Any], Example]]:
    """As `prompts`, with the answers that are in the lines."""
    read = Reader("sft", "chat" if chat else "plain", Counter())
    return _each(
        path, "one of JSON lines with prompt and completion, or messages, or a folder of them", answers, read.example
    )


def _each(path: str, what: str, answers: Answers, read: Callable[[dict[str, Any], str], Any]) -> list[Any]:
    """(where, line, what `read` makes of it) of a file or folder of JSON lines. Raises Problem."""
    found = []
    for file, name in files_to_predict(path, what):
        for where, line in lines(file, name):
            try:
                content = object_of(line)
                found.append((where, content, read(content, where)))
            except Bad as error:
                answers.refuse({}, f"{where}: {error}", {"where": where})
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

    def example(self, row: bytes | dict[str, Any], where: str) -> Example | Pair | Prompt:
        """The example of a row. Raises Bad."""
        content = object_of(row)
        if self.objective == "grpo":
            return self._prompt(content, where)
        content = _forms.in_our_names(content)
        if self.objective in PAIRED:
            return self._pair(content, where)
        return self._opinion(content, where) if self.objective == "kto" else self._one(content, where)

    def _one(self, content: dict[str, Any], where: str) -> Example:
        if "messages" in content:
            _fields.check_line(content, ("messages", *_forms.TOOLS), self.unread)
            messages, left_out = _messages(content["messages"], "messages", self.unread)
            return _to_learn(Chat(messages, 0, where, left_out, _forms.tools_of(content)), "messages")
        if "completion" in content or ("prompt" in content and "text" not in content):
            missing = [name for name in ("prompt", "completion") if name not in content]
            if missing:
                hint = f"; its chosen and rejected are for objective {', '.join(PAIRED)}" if "chosen" in content else ""
                raise Bad(f"has no {missing[0]} (its fields: {names_of(content)}){hint}")
            _fields.check_line(content, _read(content, "completion"), self.unread)
            return self._answer(content, "completion", where)
        if "text" in content:
            _fields.check_line(content, ("text",), self.unread)
            return Plain("", text_of(content["text"], "text"), where)
        raise Bad(f"has none of {FIELDS} (its fields: {names_of(content)})")

    def _opinion(self, content: dict[str, Any], where: str) -> Example:
        """An answer, and whether it is a good one."""
        name = next((name for name in OPINIONS if name in content), "")
        if not name:
            raise Bad(f"has no label; kto needs {FIELDS}, with label: true or false (its fields: {names_of(content)})")
        label = content.pop(name)
        if label not in (0, 1):  # true and false are, too
            raise Bad(f"{name} is {shortened(label)}, neither true nor false")
        if content.get("label") in (0, 1) and content.pop("label") != label:  # another one is a field of its own
            raise Bad("label and kto_tag differ: leave one of them out")
        example = self._one(content, where)
        if isinstance(example, Plain) and not example.prompt:
            raise Bad("text has no prompt; kto judges an answer to one: write prompt and completion")
        if isinstance(example, Chat):
            if (last := example.messages[-1]["role"]) != "assistant":
                raise Bad(f"messages end with the turn of {last}; kto judges the assistant's last one")
            example = replace(example, first=example.first or len(example.messages) - 1)
        return replace(example, good=bool(label))

    def _prompt(self, content: dict[str, Any], where: str) -> Prompt:
        """A prompt to answer, and what the reward functions are given beside it."""
        given = _prompt_of(content)
        refused = {name: value for name, value in content.items() if name in _fields.REFUSED}
        _fields.check(refused, (), "", self.unread)
        columns = {name: value for name, value in content.items() if name not in ("prompt", "messages", *refused)}
        if taken := next((name for name in OWN if name in columns), ""):
            raise Bad(f"{taken}: reward functions are given something else under this name: call it answer, say")
        if isinstance(given, str) and self.prompt_format == "chat":
            given = [{"role": "user", "content": given}]
        return Prompt(given, columns, where)

    def _pair(self, content: dict[str, Any], where: str) -> Pair:
        read = ("prompt", "chosen", "rejected")
        missing = [name for name in read if name not in content]
        if missing:
            raise Bad(
                f"has no {missing[0]}; {self.objective} needs prompt, chosen and rejected (its fields: {names_of(content)})"
            )
        _fields.check_line(content, _read(content, *read), self.unread)
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
            chat = Chat(before + after, len(before), where, left_out, _forms.tools_of(content))
            return _to_learn(chat, name)
        asked, said = text_of(prompt, "prompt"), text_of(answer, name)
        if self.prompt_format == "chat":
            return Chat(({"role": "user", "content": asked}, {"role": "assistant", "content": said}), 1, where)
        return Plain(asked, said, where)


def _read(content: dict[str, Any], *names: str) -> tuple[str, ...]:
    """Fields that are read of a line with a prompt: lists of messages may come with tools."""
    return ("prompt", *names, *(_forms.TOOLS if isinstance(content["prompt"], list) else ()))


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
        made = _forms.message_of(message, at, unread)
        if made["role"] == "system" and not made["content"]:
            continue
        if not _fields.is_learnt(message, at):
            left_out.append(len(messages))
        messages.append(made)
    if not messages:
        raise Bad(f"{name} is empty")
    return tuple(messages), tuple(left_out)
