"""Makes tokens of instructions: the chat template, which tokens are learnt, what is too long, and packing.

A token is learnt if it begins in a text that the model is to write. Tokens are those of the whole text, so that training
sees what the tokenizer makes of it later, whatever it merges; a token that begins in the prompt belongs to the prompt.
"""

from __future__ import annotations

import bisect
import contextlib
import datetime
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy
import torch
from _common import Problem, note
from _forms import Message
from _instructions import Chat, Example
from jinja2 import TemplateError
from torch.utils.data import Dataset

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IGNORED = -100  # label of a token that is not learnt
UNCLEAR = "the tokenizer's chat template writes a turn otherwise once others follow"
TODAY = datetime.date(2024, 7, 26)  # what templates take for today, as Llama's do without a calendar
AT_ONCE = 512  # texts given to the tokenizer together

OUR_TEMPLATE = (
    "{{ bos_token if FIRST else '' }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\n' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
"""For tokenizers without a template: it needs no tokens but the end of a text. FIRST: whether texts begin with bos_token."""


Form = Callable[[Message], dict[str, Any]]


def _in_parts(message: Message) -> dict[str, Any]:
    """As templates of models that see pictures want it."""
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


def _with_texts(message: Message) -> dict[str, Any]:
    """With the arguments of calls as JSON, which DeepSeek's templates want."""
    calls = []
    for call in message.get("tool_calls", ()):
        text = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        calls.append({**call, "function": {**call["function"], "arguments": text}})
    return {**message, "tool_calls": calls} if calls else message


FORMS: tuple[Form, ...] = (dict, _in_parts, _with_texts)  # in which a template may want messages


@dataclass(frozen=True)
class Row:
    """One example's tokens, int32 of shape (T), and which of them are learnt, bool of shape (T).

    good: whether the answer is one to give.
    """

    tokens: numpy.ndarray
    learnt: numpy.ndarray
    good: bool = True

    def __len__(self) -> int:
        return len(self.tokens)


class Encoder:
    """Makes rows of examples. Gives a tokenizer without a chat template ours when the first conversation needs one.

    A template that writes today's date writes one date here: else no training could be repeated.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, loss_on: str) -> None:
        if not tokenizer.is_fast:
            raise Problem(
                f"the tokenizer ({type(tokenizer).__name__}) does not say where its tokens lie in the text: give a fast one"
            )
        if tokenizer.eos_token is None:
            raise Problem("the tokenizer names no eos_token: the model could not learn where an answer ends")
        self.tokenizer, self.loss_on, self.template = tokenizer, loss_on, tokenizer.chat_template
        tokenizer.chat_template = _dated(self.template)
        self.saw_chat, self.said = False, set[str]()
        self.forms: dict[bool, Form] = {}  # by whether there are calls of tools

    def restore(self) -> None:
        """Gives the tokenizer its own template back, which writes the day's date."""
        if self.template is not None:
            self.tokenizer.chat_template = self.template

    def rows(self, examples: Sequence[Example]) -> Iterator[Row]:
        """The rows of the examples, in their order; raises Problem."""
        for start in range(0, len(examples), AT_ONCE):
            some = examples[start : start + AT_ONCE]
            chats = [isinstance(example, Chat) for example in some]
            texts, spans = zip(*map(self._text, some), strict=True)
            encoded: dict[int, tuple[Any, int]] = {}
            for kind in set(chats):  # a template writes the special tokens itself
                chosen = [index for index, chat in enumerate(chats) if chat == kind]
                made = self.tokenizer(
                    [texts[index] for index in chosen],
                    add_special_tokens=not kind,
                    return_offsets_mapping=True,
                    return_special_tokens_mask=True,
                    return_attention_mask=False,
                    verbose=False,
                )
                encoded |= {index: (made, place) for place, index in enumerate(chosen)}
            for index in range(len(some)):
                made, place = encoded[index]
                offsets = numpy.asarray(made["offset_mapping"][place], numpy.int64).reshape(-1, 2)
                learnt = numpy.zeros(len(offsets), bool)
                for begin, end in spans[index]:
                    learnt |= (offsets[:, 0] >= begin) & (offsets[:, 0] < end)
                learnt &= offsets[:, 1] > offsets[:, 0]  # not what the tokenizer adds of its own
                learnt[:1] = False  # nothing comes before it
                yield Row(numpy.asarray(made["input_ids"][place], numpy.int32), learnt, some[index].good)

    def _text(self, example: Example) -> tuple[str, list[tuple[int, int]]]:
        """The text of an example and the parts of it, from character to character, that are learnt."""
        if not isinstance(example, Chat):
            text = example.prompt + example.completion
            text += "" if text.endswith(self.tokenizer.eos_token) else self.tokenizer.eos_token
            return text, [(0 if self.loss_on == "all" else len(example.prompt), len(text))]
        self.saw_chat = True
        text, marked = self._written(example)
        self._require_whole(example, text)
        self._note_gaps(example, text)
        if self.loss_on == "all":
            if example.left_out:
                raise Problem(
                    f"{example.where}: loss_on is all, and the data leaves turns out (weight, train): drop one of them"
                )
            return text, [(0, len(text))]
        turns = [index for index, message in enumerate(example.messages) if message["role"] == "assistant"]
        wanted = [index for index in turns if index >= example.first and index not in example.left_out]
        if len(marked) == len(turns):
            return text, [marked[turns.index(index)] for index in wanted]
        found = {index: self._span(example, index, text) for index in wanted}
        spans = [span for span in found.values() if span]
        if not spans:
            raise Problem(f"{example.where}: {UNCLEAR}: no turn of the assistant can be told from its prompt")
        if len(spans) < len(found):
            self._once(f"{UNCLEAR} ({example.where}): such turns are context, and not learnt")
        return text, spans

    def _once(self, said: str) -> None:
        if said.partition(" (")[0] not in self.said:
            self.said.add(said.partition(" (")[0])
            note(said)

    def _require_whole(self, chat: Chat, text: str) -> None:
        """Raises Problem where the template has written nothing of a message, as those do that want a list of parts."""
        at = 0
        for index, message in enumerate(chat.messages):
            found = -1 if message["role"] != "system" else text.find(message["content"].strip())
            for content in _as_written(message["content"]) if found < 0 else ():
                found = text.find(content, at)
                if found >= 0:
                    at = found + len(content)
                    break
            calls = message.get("tool_calls", ())
            if found < 0 or not all(call["function"]["name"] in text[min(at, found) :] for call in calls):
                what = " the calls of" if found >= 0 else ""
                raise Problem(
                    f"{chat.where}: the tokenizer's chat template writes nothing of{what} message {index} "
                    f"({message['role']}), or rewrites it: the model would not see what is in the data"
                )
        if not all(tool["function"]["name"] in text for tool in chat.tools):
            raise Problem(
                f"{chat.where}: the tokenizer's chat template writes nothing of the tools: take a model that knows tools, "
                "or leave them out"
            )

    def _note_gaps(self, chat: Chat, text: str) -> None:
        """Says once what the template leaves out, though a model would need it."""
        last = chat.messages[-1]
        if last["role"] == "assistant" and (content := last["content"].strip()) and text.endswith(content):
            self._once("the chat template writes no end of a turn: the model does not learn where its answer ends")
        if "thinking" in last and last["thinking"].strip() not in text:
            self._once("the chat template leaves thoughts out: they are not learnt")

    def _span(self, chat: Chat, index: int, text: str) -> tuple[int, int] | None:
        """Where an assistant's turn lies, with what ends it; None where the template writes it otherwise there."""
        begin = self._before(chat, index, text)
        return None if begin is None or (end := self._after(chat, index, text, begin)) is None else (begin, end)

    def _before(self, chat: Chat, index: int, text: str) -> int | None:
        """Where the text of an assistant's turn begins: behind the prompt that it answers."""
        if index == 0:
            return 0
        asked, before = (self._render(chat, index, generation) for generation in (True, False))
        if text.startswith(asked):
            return len(asked)
        # Some open a thought in the prompt that they do not write into a finished turn.
        return max(len(before), self._shared(asked, text)) if text.startswith(before) else None

    def _after(self, chat: Chat, index: int, text: str, begin: int) -> int | None:
        """Where the text of an assistant's turn ends, with what the template ends it with."""
        messages = chat.messages
        if index == len(messages) - 1:
            return len(text)
        until = self._render(chat, index + 1, False)
        if text.startswith(until):
            return len(until)
        # Some write the last turn otherwise (with a thought, or an end of the text): what follows the content in both is
        # the end of a turn.
        content = messages[index]["content"] or messages[index]["tool_calls"][-1]["function"]["name"]
        for written in (content, content.strip()):
            _, found, end = until.rpartition(written)
            place = text.find(written, begin) + len(written)
            if found and place >= begin + len(written):
                return place + self._shared(end, text[place:])
        return None

    def _shared(self, one: str, other: str) -> int:
        """Characters with which both begin, without a part of a special token."""
        both = enumerate(zip(one, other, strict=False))
        size = next((at for at, (mine, theirs) in both if mine != theirs), min(len(one), len(other)))
        added = {str(token) for token in self.tokenizer.added_tokens_decoder.values()}
        for token in {*self.tokenizer.all_special_tokens, *added}:
            for text in (one, other):
                at = text.find(token, max(0, size - len(token) + 1))
                if 0 <= at < size < at + len(token):
                    size = at
        return size

    def stops(self, eos: int | list[int] | None) -> list[int]:
        """Tokens at which an answer ends: the tokenizer's, the model's (`eos`), and what ends a turn of the template."""
        found = {self.tokenizer.eos_token_id, *([eos] if isinstance(eos, int) else eos or [])}
        if self.saw_chat:
            content = "x"
            messages = [{"role": "user", "content": content}, {"role": "assistant", "content": content}]
            end = self.render(messages, False, "a turn's end").rpartition(content)[2]
            first = self.tokenizer(end, add_special_tokens=False)["input_ids"][:1]
            found |= set(first) & set(self.tokenizer.added_tokens_decoder)
        return sorted(found)

    def render(self, messages: Sequence[Message], generation: bool, where: str, tools: Sequence[Any] = ()) -> str:
        """What the chat template writes; raises Problem if it refuses."""
        self._require_template()
        return self._apply(self._form_for(messages), messages, generation, where, tools)

    def _apply(self, form: Form, messages: Sequence[Message], generation: bool, where: str, tools: Sequence[Any]) -> str:
        with _said(where):
            written = self.tokenizer.apply_chat_template(
                [form(one) for one in messages], tools=list(tools) or None, tokenize=False, add_generation_prompt=generation
            )
        return str(written)

    def _form_for(self, messages: Sequence[Message]) -> Form:
        """How this template takes messages: the first form of which it writes everything, else as they are."""
        calls = any("tool_calls" in one for one in messages)
        if calls not in self.forms:
            asked = {"role": "user", "content": "a question"}
            function = {"name": "a_call", "arguments": {"a": "b"}}
            called = {"tool_calls": [{"type": "function", "id": "call00000", "function": function}]}
            answer = {"role": "assistant", "content": "" if calls else "an answer", **(called if calls else {})}
            chat = Chat((asked, answer), 0, "the chat template")
            self.forms[calls] = next((form for form in FORMS if self._writes(form, chat)), FORMS[0])
        return self.forms[calls]

    def _writes(self, form: Form, chat: Chat) -> bool:
        try:
            self._require_whole(chat, self._apply(form, chat.messages, False, chat.where, ()))
        except Problem:
            return False
        return True

    def _render(self, chat: Chat, count: int, generation: bool) -> str:
        """The first messages of a conversation."""
        return self.render(chat.messages[:count], generation, chat.where, chat.tools)

    def _written(self, chat: Chat) -> tuple[str, list[tuple[int, int]]]:
        """What the chat template writes, and the parts of it that it marks as generated, if it marks any."""
        self._require_template()
        template = self.tokenizer.chat_template
        if not isinstance(template, str) or not re.search(r"\{%-?\s*generation\s*-?%\}", template):
            return self._render(chat, len(chat.messages), False), []
        from transformers.utils.chat_template_utils import render_jinja_template

        form = self._form_for(chat.messages)
        special: dict[str, Any] = dict(self.tokenizer.special_tokens_map)
        with _said(chat.where):
            found: Any = render_jinja_template(
                [[form(one) for one in chat.messages]], tools=list(chat.tools) or None, chat_template=template,
                return_assistant_tokens_mask=True, **special,
            )  # fmt: skip
        texts, marks = found
        return texts[0], [(start, end) for start, end in marks[0]]

    def _require_template(self) -> None:
        if self.tokenizer.chat_template != self.template and self.template is not None:
            self._once(f"the chat template writes today's date: it is taken to be {TODAY}, in training and in predict")
        if self.tokenizer.chat_template is None:
            begins = bool(self.tokenizer.bos_token) and self.tokenizer("a")["input_ids"][:1] == [self.tokenizer.bos_token_id]
            self.tokenizer.chat_template = OUR_TEMPLATE.replace("FIRST", str(begins).lower())


def _dated(template: Any) -> Any:
    """A chat template, or several by name, with one date in place of today's."""
    if isinstance(template, dict):
        return {name: _dated(one) for name, one in template.items()}
    if not isinstance(template, str):
        return template
    return re.sub(
        r"strftime_now\(\s*(['\"])(.*?)\1\s*\)", lambda found: repr(TODAY.strftime(found[2])), template, flags=re.DOTALL
    )


@contextlib.contextmanager
def _said(where: str) -> Iterator[None]:
    """A template's own errors as a Problem."""
    try:
        yield
    except (TemplateError, ValueError, TypeError, KeyError) as error:
        raise Problem(f"{where}: the tokenizer's chat template refuses these messages: {first_line(error)}") from error


def _as_written(content: str) -> list[str]:
    """A message's text as templates write it: as it is, without blanks around it, without thoughts, or as JSON."""
    plain = content.strip()
    as_json = (json.dumps(plain, ensure_ascii=ascii)[1:-1] for ascii in (True, False))
    return [plain, plain.rpartition("</think>")[2].strip(), *as_json]


def first_line(error: BaseException) -> str:
    """The first line of an error's words, else its name."""
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


# --- length -----------------------------------------------------------------------------------------------------------


@dataclass
class Fitted:
    """Rows of at most so many tokens. all: how many there were.

    cut, split, skipped, empty: how many of these were shortened, made several, left out, had nothing left to learn.
    """

    rows: list[Any]
    all: int = 0
    cut: int = 0
    split: int = 0
    skipped: int = 0
    empty: int = 0

    def words(self, what: str, length: int) -> str:
        """What was done to long examples, "" if there were none."""
        done = {
            "were cut": self.cut,
            "were split": self.split,
            "were left out": self.skipped,
            "had nothing left to learn and were left out": self.empty,
        }
        if not any(done.values()):
            return ""
        facts = ", ".join(f"{count} {words}" for words, count in done.items() if count)
        return f"{what}: {sum(done.values())} of {self.all} examples have more than max_length ({length}) tokens: {facts}"


def parted(row: Row, part: slice) -> Row:
    """A part of a row; nothing comes before its first token, which is not learnt."""
    learnt = row.learnt[part].copy()
    learnt[:1] = False
    return Row(row.tokens[part], learnt, row.good)


def fit(rows: Iterable[Any], wheres: Sequence[str], length: int, too_long: str, what: str) -> Fitted:
    """Rows (or pairs of rows) of at most `length` tokens; `wheres` names them in errors. Raises Problem."""
    fitted = Fitted([])
    for row, where in zip(rows, wheres, strict=True):
        fitted.all += 1
        sides = row if isinstance(row, tuple) else (row,)
        longest = max(map(len, sides))
        if longest > length:
            if too_long == "refuse":
                raise Problem(f"{what}: {where}: has {longest} tokens, more than max_length ({length})")
            if too_long == "skip":
                fitted.skipped += 1
                continue
            if too_long == "split":
                parts = [parted(row, slice(start, start + length)) for start in range(0, len(row), length)]
                parts = [part for part in parts if part.learnt.any()]
                fitted.rows += parts
                fitted.split += bool(parts)
                fitted.empty += not parts
                continue
            sides = tuple(parted(side, slice(length)) for side in sides)
        alike = len(sides) == 2 and numpy.array_equal(*(side.tokens for side in sides))
        if alike or not all(side.learnt.any() for side in sides):
            if longest <= length:
                none = "the same tokens of chosen and rejected" if alike else "no token of what is to be learnt"
                raise Problem(f"{what}: {where}: the tokenizer makes {none}")
            fitted.empty += 1
            continue
        fitted.cut += longest > length
        fitted.rows.append(sides if isinstance(row, tuple) else sides[0])
    if not fitted.rows:
        raise Problem(f"{fitted.words(what, length)}; nothing is left to train on: raise max_length")
    return fitted


def pack(rows: Sequence[Row], length: int) -> list[tuple[Row, ...]]:
    """Rows in groups of at most `length` tokens, as few as the best-fit-decreasing rule makes; in order of first rows."""
    order = sorted(range(len(rows)), key=lambda index: -len(rows[index]))
    groups: list[list[int]] = []
    free: list[tuple[int, int]] = []  # (tokens left, group), sorted
    for index in order:
        size = len(rows[index])
        place = bisect.bisect_left(free, (size, -1))
        if place < len(free):
            left, group = free.pop(place)
        else:
            left, group = length, len(groups)
            groups.append([])
        groups[group].append(index)
        bisect.insort(free, (left - size, group))
    return [tuple(rows[index] for index in sorted(group)) for group in sorted(groups, key=min)]


# --- batches ----------------------------------------------------------------------------------------------------------


class Rows(Dataset):
    """What the Trainer draws from: rows, packed groups of them, or pairs."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, position: int) -> Any:
        return self.rows[position]

    def tokens(self) -> int:
        """Tokens of all rows."""
        return sum(len(part) for row in self.rows for part in (row if isinstance(row, tuple) else (row,)))

    def learnt(self) -> int:
        """Tokens that are learnt."""
        return sum(int(part.learnt.sum()) for row in self.rows for part in (row if isinstance(row, tuple) else (row,)))

    def said(self) -> str:
        """What is learnt, in words."""
        return f"{self.learnt()} of {self.tokens()} tokens are learnt"


def collate(rows: Sequence[Row | tuple[Row, ...]]) -> dict[str, torch.Tensor]:
    """A batch of rows, or of packed groups, padded behind: input_ids, labels, and what keeps its parts apart, (B, T) each.

    Packed groups come without an attention mask: where positions begin anew, Transformers masks what came before.
    """
    packed = isinstance(rows[0], tuple)
    groups = [row if isinstance(row, tuple) else (row,) for row in rows]
    width = max(sum(map(len, group)) for group in groups)
    tokens = torch.zeros(len(rows), width, dtype=torch.int64)
    labels = torch.full((len(rows), width), IGNORED)
    positions = torch.zeros_like(tokens)
    mask = torch.zeros_like(tokens)
    for line, group in enumerate(groups):
        at = 0
        for row in group:
            here = slice(at, at + len(row))
            tokens[line, here] = torch.from_numpy(row.tokens.astype(numpy.int64))
            labels[line, here] = torch.where(torch.from_numpy(row.learnt), tokens[line, here], IGNORED)
            positions[line, here] = torch.arange(len(row))
            at = here.stop
        mask[line, :at] = 1
    return {"input_ids": tokens, "labels": labels} | ({"position_ids": positions} if packed else {"attention_mask": mask})
