"""Seeded damage to texts, JSON values and command lines."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

from unit.contract.mutations import ODD_VALUES

TOKENS = (
    *("", " ", "\n", "\t", "\0", "\x1b[2J\x1b]0;x\x07", "\u202e", "\u2028", "\ufeff", "\ud800", "é", "😀", "\r\n", "\x85"),
    *("&a", "*a", "<<: *a", "!!python/object/apply:os.system ['true']", "!!binary aaaa", "!x", "%YAML 1.2", "---", "..."),
    *("{", "}", "[", "]", "{{", "]]", ": ", "- ", "? ", "|", ">", "#", "'", '"', "`", "@", ",", "=", "--"),
    *("null", "~", "true", "yes", ".nan", ".inf", "-.inf", "1e400", "-1", "0x10", "0o7", "1_000", "²", "٣"),
    *("9" * 400, "9" * 5000),
    *("../..", "/dev/zero", "/proc/self/mem", "s3://", "s3://a/b", "file:///", "https://u:p@h/", "$(id)", "a;b"),
    *("-v", "*", "**"),
    *("[" * 200, "{a: " * 200, "x" * 2000, "a: &a [*a]", "(((", "(x+x+)+y", "[[a]", "a{9999999999}", "\\"),
)  # fmt: skip


def text(chance: random.Random, base: str) -> str:
    """The text with one to four places damaged."""
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(base) + 1)
        kind = chance.randrange(6)
        if kind == 0:  # a token instead of what follows on the line
            end = base.find("\n", at)
            base = base[:at] + chance.choice(TOKENS) + (base[end:] if end >= 0 else "")
        elif kind == 1:
            base = base[:at] + chance.choice(TOKENS) + base[at:]
        elif kind == 2:
            base = base[:at] + base[at + chance.randint(1, 20) :]
        elif kind == 3:
            lines = base.split("\n")
            lines.insert(chance.randrange(len(lines) + 1), chance.choice(lines))
            base = "\n".join(lines)
        elif kind == 4:
            words = base.split(" ")
            words[chance.randrange(len(words))] = chance.choice(TOKENS)
            base = " ".join(words)
        else:
            base = base[:at] + chr(chance.choice((chance.randrange(32), chance.randrange(0x110000)))) + base[at:]
    return base


def raw(chance: random.Random, data: bytes) -> bytes:
    """Bytes, flipped, cut or stuffed."""
    found = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(found) + 1)
        kind = chance.randrange(3)
        if kind == 0 and found:
            found[min(at, len(found) - 1)] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del found[at : at + chance.randint(1, 40)]
        else:
            found[at:at] = chance.choice((b"\0", b"\xff\xfe", b"\x1b[2J", b"\xed\xa0\x80", chance.randbytes(3)))
    return bytes(found)


def tree(chance: random.Random, value: Any) -> Any:
    """A JSON value with one to four of its places replaced, removed, renamed or wrapped."""
    value = json.loads(json.dumps(value))
    for _ in range(chance.randint(1, 4)):
        places = list(_places(value))
        if not places:
            return copy.deepcopy(chance.choice(ODD_VALUES))
        holder, key = chance.choice(places)
        kind = chance.randrange(8)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, dict):
            holder[str(copy.deepcopy(chance.choice(ODD_VALUES)))[:300]] = holder.pop(key)
        elif kind == 2:
            holder[key] = [holder[key]]
        elif kind == 3:
            holder[key] = {str(key): holder[key]}
        elif kind == 4:
            holder[key] = chance.choice(TOKENS)
        elif kind == 5:
            holder[key] = 10 ** chance.randint(1, 600) * chance.choice((1, -1))
        else:
            holder[key] = copy.deepcopy(chance.choice(ODD_VALUES))
    return value


def written(chance: random.Random, value: Any) -> bytes:
    """A mutated JSON value as bytes, which are damaged in turn in one of five cases."""
    data = json.dumps(tree(chance, value)).encode()
    return raw(chance, data) if chance.random() < 0.2 else data


def _places(value: Any) -> Any:
    items = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    for key, inner in items:
        yield value, key
        yield from _places(inner)
