"""Checks whether a regular expression captures the number that the line shows, and finds one that would."""

from __future__ import annotations

import re

from trainshed.base.errors import shorten

from .formats import NUMBER, plain

LONGEST_REGEX = 500  # characters, by the platform's API
_NUMBER = re.compile(NUMBER)
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?$")
_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]{2,}")
_WIDTH = 40  # characters between a name and its number
_ANY_NUMBER = r"([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?|nan|inf)"


def number_in(match: re.Match[str]) -> tuple[float | None, str]:
    """The number that a match means, and what is wrong with what it captured, "" if nothing is.

    Returns:
        None for the number where there is none.
    """
    line, captured = match.string, match[1]
    if not captured:
        return None, f"its regular expression captures nothing in this line: {_shown(line)}"
    text = captured.strip().strip("'\"")
    start = match.start(1) + captured.index(text) if text else match.start(1)
    if _THOUSANDS.match(text):
        return float(text.replace(",", "")), f"{text!r} has commas, which are left out: {_shown(line)}"
    whole = _NUMBER.match(line, start)
    if whole is None:
        return None, f"its regular expression captures {shorten(text, 40)!r}, which is not a number: {_shown(line)}"
    value = float(whole[0])
    captures = f"its regular expression captures {shorten(captured, 40)!r}"
    try:
        if repr(float(captured)) == repr(value):  # NaN included
            return value, ""
    except ValueError:
        if whole.end() < start + len(text) or text != captured.strip():
            return value, f"{captures}, which is more than a number: {_shown(line)}"
    return value, f"{captures} of {whole[0]!r}: {_shown(line)}"


def words_of(name: str, pattern: re.Pattern[str]) -> tuple[str, ...]:
    """Names that a line has which a definition is meant for: the words in its expression, and its own name."""
    literal = re.sub(r"\\.|\[[^\]]*\]|\(\?[^)]*\)", " ", pattern.pattern)
    words = _WORD.findall(literal) or _WORD.findall(name)
    return tuple(sorted(dict.fromkeys(words), key=len, reverse=True))


def nearest(words: tuple[str, ...], line: str) -> bool:
    """Returns whether a definition with these words was probably meant for a line: it has them and a number after one."""
    return bool(words) and all(word in line for word in words) and _after(words, plain(line)) is not None


def suggestion(words: tuple[str, ...], line: str) -> str:
    """A regular expression that captures the number after these words in a line, "" where there is none."""
    line = plain(line)
    found = _after(words, line)
    if found is None:
        return ""
    word, start, number = found
    between = line[start + len(word) : number.start()]
    before = line[start - 1] if start and line[start - 1] in "'\"" else ""
    regex = re.escape(before + word + between).replace("\\ ", " ") + _ANY_NUMBER  # a space needs no backslash here
    match = re.search(regex, line)
    return regex if match and len(regex) <= LONGEST_REGEX and number_in(match)[1] == "" else ""


def _after(words: tuple[str, ...], line: str) -> tuple[str, int, re.Match[str]] | None:
    """The first of the words that a number follows, where it is, and the number."""
    for word in words:
        for place in re.finditer(rf"(?<![\w-]){re.escape(word)}(?![\w-])", line):
            number = _NUMBER.search(line, place.end(), place.end() + _WIDTH)
            if number is not None and not re.search(r"[A-Za-z,;]", line[place.end() : number.start()]):
                return word, place.start(), number
    return None


def _shown(line: str) -> str:
    return shorten(plain(line), 120)
