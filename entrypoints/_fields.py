"""What lines and messages of chat data hold beside prompts, roles and texts: each field is honoured, refused, or named once.

The fields are those of OpenAI's, Mistral's, Fireworks', Axolotl's and TRL's data. Imports the standard library alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from _common import note
from _jsonlines import Bad, shortened

LEARNT = ("weight", "train", "training", "loss_weight")  # of a message: whether it is learnt
PICTURES = "pictures, sounds and videos are not served: take their lines out"
_TOOLS = "tools and their calls are of messages: write the line as messages"
REFUSED = {  # field -> what to do; of a line and of a message
    "tools": _TOOLS, "functions": _TOOLS, "tool_calls": _TOOLS, "function_call": _TOOLS,
    "image": PICTURES, "images": PICTURES, "audio": PICTURES, "audios": PICTURES, "video": PICTURES, "videos": PICTURES,
    "train_detail": "parts of a message cannot be left out: train and weight are of whole messages",
    "training_detail": "parts of a message cannot be left out: train and weight are of whole messages",
    "chat_template_kwargs": "templates are given messages alone: write what it asks for into them",
    "system": "write it as the first message, with the role system",
    "history": "write the line as messages, or as instruction and output",
}  # fmt: skip
SHOWN = 8  # fields in the note about those that are not read


def is_learnt(message: dict[str, Any], at: str) -> bool:
    """Whether a message is learnt, by its marks. Raises Bad for marks between 0 and 1."""
    marks = {name: message[name] for name in LEARNT if message.get(name) is not None}
    for name, mark in marks.items():
        if mark not in (0, 1):  # true and false are, too
            raise Bad(f"{at}.{name} is {shortened(mark)}, neither 0 nor 1: a message is learnt or it is not")
    return all(marks.values())


def check(content: dict[str, Any], read: Collection[str], at: str, unread: Counter[str]) -> None:
    """Counts fields that have a value and are not read. Raises Bad for those without which the rest means something else.

    at: of a message, its place, "" for a line.
    """
    for name, value in content.items():
        if name in read or value in (None, "", [], {}):
            continue
        if name in REFUSED:
            raise Bad(f"{at}{'.' * bool(at)}{name}: {REFUSED[name]}")
        unread[f"{at.partition('[')[0]}[].{name}" if at else name] += 1


def check_line(content: dict[str, Any], read: Collection[str], unread: Counter[str]) -> None:
    """As `check`, of a line, whose own marks must let it be learnt as a good one."""
    if "label" not in read and content.get("label") in (0, 1):
        raise Bad(
            f"label is {shortened(content['label'])}, as KTO has it: set objective to kto, or keep the lines whose label is "
            "true, without this field"
        )
    for name in LEARNT:
        if content.get(name, 1) not in (1, None):
            raise Bad(f"{name} is {shortened(content[name])}: lines have no weights here: leave it out, or the line")
    check(content, (*read, *LEARNT), "", unread)


def note_unread(unread: Counter[str], what: str) -> None:
    """Names the fields that nobody reads, once."""
    if unread:
        named = ", ".join(f"{name} ({count} times)" for name, count in unread.most_common(SHOWN))
        note(f"{what}: fields that are not read: {named}{' ...' * (len(unread) > SHOWN)}")
