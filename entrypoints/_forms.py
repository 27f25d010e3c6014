"""Brings chat data, in the forms that people have, into messages: Alpaca, Dolly, ShareGPT, parts, calls of tools, thoughts.

The forms are those of OpenAI's, LLaMA-Factory's, TRL's and Databricks' data. Imports the standard library alone.
"""

from __future__ import annotations

import difflib
import json
from collections import Counter
from typing import Any

import _fields
from _jsonlines import Bad, kind_of, names_of, shortened, text_of

ROLES = ("system", "user", "assistant", "tool")
SPEAKERS = {  # other names of roles
    "developer": "system", "human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant",
    "function_call": "assistant", "tool_call": "assistant", "function": "tool", "observation": "tool",
}  # fmt: skip
THOUGHTS = ("reasoning_content", "reasoning", "thinking")  # of a message: what is thought before the answer
READ = ("role", "from", "content", "value", "tool_calls", "function_call", *THOUGHTS, *_fields.LEARNT)
TOOLS = ("tools", "functions")  # of a line

Message = dict[str, Any]


# --- lines ------------------------------------------------------------------------------------------------------------


def in_our_names(line: dict[str, Any]) -> dict[str, Any]:
    """The line with messages, prompt, chosen and rejected in place of other tools' fields. Raises Bad."""
    line = dict(line)
    for theirs, ours in (("conversations", "messages"), ("chosen_messages", "chosen"), ("rejected_messages", "rejected")):
        if isinstance(line.get(theirs), list) and ours not in line:
            line[ours] = line.pop(theirs)
    if "instruction" in line and not {"messages", "prompt"} & set(line):
        line["messages"] = _instructed(line)
    if "chosen" in line and "rejected" in line:
        _compare(line)
    _begin_with_system(line)
    return line


def _instructed(line: dict[str, Any]) -> list[Message]:
    """The messages of a line of Alpaca or Dolly, whose fields are taken out of it."""
    asked = text_of(line.pop("instruction"), "instruction")
    for name in ("input", "context"):
        more = line.pop(name, None)
        asked += f"\n{text_of(more, name)}" if more else ""
    turns = [*_history(line.pop("history", None)), {"role": "user", "content": asked}]
    answer = next((name for name in ("output", "response") if name in line), "")
    if answer:
        return [*turns, {"role": "assistant", "content": text_of(line.pop(answer), answer)}]
    if "chosen" not in line:
        raise Bad(f"has no output (its fields: {names_of({'instruction': asked, **line})})")
    return turns


def _history(given: Any) -> list[Message]:
    """Earlier turns, as pairs of a question and its answer."""
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in given or ()):
        raise Bad("history is not a list of pairs: [[question, answer], ...]")
    return [
        {"role": role, "content": text}
        for pair in given or ()
        for role, text in zip(("user", "assistant"), pair, strict=True)
    ]


def _compare(line: dict[str, Any]) -> None:
    """Gives two answers a prompt: what both begin with, or the messages beside them."""
    for name in ("chosen", "rejected"):
        if isinstance(line[name], dict):
            line[name] = [line[name]]
    if "messages" in line and "prompt" not in line:
        line["prompt"] = line.pop("messages")
    chosen, rejected, prompt = line["chosen"], line["rejected"], line.get("prompt")
    if isinstance(chosen, str) and isinstance(rejected, str) and isinstance(prompt, list):
        line |= {name: [{"role": "assistant", "content": line[name]}] for name in ("chosen", "rejected")}
    if not (isinstance(chosen, list) and isinstance(rejected, list) and chosen and rejected) or isinstance(prompt, list):
        return
    most = min(len(chosen), len(rejected)) - 1
    shared = next((at for at in range(most) if chosen[at] != rejected[at]), most)
    if shared:
        line |= {"prompt": chosen[:shared], "chosen": chosen[shared:], "rejected": rejected[shared:]}
    elif isinstance(prompt, str):
        line["prompt"] = [{"role": "user", "content": prompt}]


def _begin_with_system(line: dict[str, Any]) -> None:
    """Makes the field `system` of a line its first message."""
    name = next((name for name in ("messages", "prompt") if isinstance(line.get(name), list)), "")
    if name and "system" in line and (system := line.pop("system")):
        line[name] = [{"role": "system", "content": system}, *line[name]]


def tools_of(line: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """The tools that a line offers, as chat templates take them. Raises Bad."""
    name = next((name for name in TOOLS if line.get(name)), "")
    given = _unfolded(line[name], name) if name else []
    if not isinstance(given, list):
        raise Bad(f"{name} is {kind_of(given)}, not a list of tools")
    return tuple(_wrapped(one, f"{name}[{at}]") for at, one in enumerate(given))


# --- messages ---------------------------------------------------------------------------------------------------------


def message_of(given: Any, at: str, unread: Counter[str]) -> Message:
    """A message with role and content, and perhaps tool_calls and thoughts. Raises Bad.

    at: its place, for errors. unread: where fields that nobody reads are counted.
    """
    role = _role(given, at)
    answers = ("name", "tool_call_id") if role == "tool" else ()
    _fields.check(given, (*READ, *answers), at, unread)
    text, thoughts, calls = _content(given, at, unfold=given.get("from") in ("function_call", "tool_call"))
    calls += _calls(given, at)
    thoughts += [text_of(given[name], f"{at}.{name}") for name in THOUGHTS if given.get(name)]
    if (calls or thoughts) and role != "assistant":
        raise Bad(f"{at}: calls of tools and thoughts are the assistant's, and this is the turn of {role}")
    if not (calls or (role == "system" and not text)):
        text_of(text, f"{at}.content")
    made: Message = {"role": role, "content": text or ""}
    made |= {name: given[name] for name in answers if given.get(name)}
    made |= {"tool_calls": calls} if calls else {}
    return made | {name: "\n".join(thoughts) for name in THOUGHTS if thoughts}


def _role(message: Any, at: str) -> str:
    if not isinstance(message, dict):
        raise Bad(f"{at} is {kind_of(message)}, not an object with role and content")
    role = message.get("role", message.get("from"))
    if role is None:
        raise Bad(f"{at} has no role (its fields: {names_of(message)})")
    if not {"content", "value", "tool_calls", "function_call"} & set(message):
        raise Bad(f"{at} has no content (its fields: {names_of(message)})")
    known = SPEAKERS.get(role, role) if isinstance(role, str) else ""
    if known in ROLES:
        return known
    near = next(iter(difflib.get_close_matches(str(role).lower(), (*ROLES, *SPEAKERS), 1)), "")
    raise Bad(f"{at}.role is {shortened(role)}, not one of {', '.join(ROLES)}" + (f"; write {near}" if near else ""))


def _content(message: dict[str, Any], at: str, unfold: bool) -> tuple[Any, list[str], list[dict[str, Any]]]:
    """Text, thoughts and calls in a message's content. unfold: whether it is a call, as JSON."""
    given = message.get("content", message.get("value"))
    if unfold:
        found = _unfolded(given, f"{at}.value")
        return "", [], [_call(one, at) for one in (found if isinstance(found, list) else [found])]
    if not isinstance(given, list):
        return given, [], []
    texts: list[str] = []
    thoughts: list[str] = []
    calls = []
    for index, part in enumerate(given):
        kind = part.get("type", "text") if isinstance(part, dict) else "text" if isinstance(part, str) else kind_of(part)
        value = part if isinstance(part, str) else part.get(kind, part.get("value")) if isinstance(part, dict) else None
        if kind not in ("text", "reasoning", "thinking", "tool_call"):
            raise Bad(f"{at}.content[{index}] is of type {shortened(kind)}: {_fields.PICTURES}")
        if kind == "tool_call":
            calls.append(_call(_unfolded(value, f"{at}.content[{index}]"), at))
        elif not isinstance(value, str):
            raise Bad(f"{at}.content: the text of a part is {kind_of(value)}, not a string")
        else:
            (texts if kind == "text" else thoughts).append(value)
    return "".join(texts), thoughts, calls


def _calls(message: dict[str, Any], at: str) -> list[dict[str, Any]]:
    given = _unfolded(message.get("tool_calls") or [], f"{at}.tool_calls")
    if not isinstance(given, list):
        raise Bad(f"{at}.tool_calls is {kind_of(given)}, not a list of calls")
    older = message.get("function_call")
    return [_call(one, at) for one in (*given, *([older] if older else ()))]


def _call(given: Any, at: str) -> dict[str, Any]:
    """A call with its arguments as an object, which is how templates write it."""
    made = _wrapped(given, f"{at}: a call")
    arguments = _unfolded(made["function"].get("arguments") or {}, f"{at}: the arguments of {made['function']['name']}")
    if not isinstance(arguments, dict):
        raise Bad(f"{at}: the arguments of {made['function']['name']} are {kind_of(arguments)}, not an object")
    return {**made, "function": {**made["function"], "arguments": arguments}}


def _wrapped(given: Any, at: str) -> dict[str, Any]:
    """{"type": "function", "function": {"name": ..., ...}}, which some leave unwrapped."""
    if isinstance(given, dict) and "function" not in given:
        given = {"function": given}
    inner = given.get("function") if isinstance(given, dict) else None
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str) or not inner["name"]:
        raise Bad(f"{at} is not an object with a name: {shortened(given)}")
    return {"type": "function", **given}


def _unfolded(given: Any, at: str) -> Any:
    """What a string holds as JSON; anything else as it is."""
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given)
    except (ValueError, RecursionError) as error:
        raise Bad(f"{at} is not JSON: {shortened(given)}") from error
