"""Values behind words that name a secret: where they stand in a text, however the two are joined.

One reader for all notations. A stem (`pass`, `key`, `пароль`) leads to the whole name, and what follows is read by pieces:
 quotes in any spelling, a separator, a cast, a value. A form says how much a value must look like a secret there.
Each piece is bounded and begins where the one before it ended, so the time is in proportion to the text.
"""

from __future__ import annotations

import functools
import re

from .secret_looks import is_hard, is_harmless, is_password, lone_secrets
from .secret_words import STEMS, is_certain_name, is_key_name, is_secret_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    Span = tuple[int, int]

_HEAD = r"[\w.-]{0,100}"
_WIDE = "[\u0e00-\uffdc]"  # scripts that write words without spaces between them

# How tools spell a quote, a separator and a space: as they are, escaped, in an address, in HTML.
_Q = r"(?:\\{0,7}[\"'`]|\\{1,4}[ux](?:00)?2[27]|%(?:25){0,3}2[27]|&(?:quot|apos|\#0?3[49]);)"
_EQUALS = r"(?:=>|<-|->|\u2192|[:?+!]?={1,3}|[:\uff1a\uff1d](?!:)|\\{1,4}[ux](?:00)?3[ADad]|%(?:25){0,3}3[ADad]|&\#61;)"
_S = r"(?:[ \t]|\x1b\[[\d;]{0,9}m|%(?:25){0,3}20|\\\n)"
_CLOSE = rf"(?:{_Q}|\\|\]|\*\*|\[\d\]|%5D|</\w{{1,9}}>){{0,8}}"
_TYPE = r"(?::?[ ]?(?:Optional\[)?(?:str|string|String|bytes|Any|SecretStr)\]?(?:[ ]?\|[ ]?None)?[ ]?(?==))?"
# YAML's `!!str`, and `|` with a new line; SecretStr(; b, r and u of Python and $ of a shell before quotes.
_CAST = (
    rf"(?:!(?:![\w/:.-]{{0,40}}|vault)[ ]{{1,3}})?(?:[|>][+-]?[ ]{{0,3}}\n\s{{1,40}})?(?:[*&]?\[\]\w{{1,12}})?"
    rf"(?:(?:[A-Za-z]\w{{0,30}}\.){{0,3}}\w{{0,20}}(?:Secret|Secure|Sensitive|Some|Just|String|str|bytes|fromhex|decode)\w{{0,12}}(?=\())?"
    rf"(?:[\[({{]{{1,2}}(?=[bru]?{_Q}))?(?:[bruBRU$@]{{1,2}}(?=[\"']))?(?:(?:\"\"\"|\'\'\')\s{{0,40}})?"
)
_BARE = r"[^\s\"'\\,;&<>(){}\[\]`|\x1b\x00]"
# In an address it ends where %22, %26 and the like end it. A bare one is looked at by its beginning.
_BARE_ENCODED = r"(?:[^\s\"'\\&<>,;%]|%(?!(?:25){0,3}(?:2[267cC]|3[bB]|7[dD]))){1,300}"
_VALUE = (
    rf"(?P<quote>{_Q})(?P<quoted>(?:(?!(?P=quote))(?:\\.|[^\n])){{1,2000}})(?P=quote)|{_Q}*\\*(?P<bare>{_BARE}{{1,300}})"
)
_VALUE_ENCODED = rf"{_Q}?(?P<bare>{_BARE_ENCODED})"
_REST = f"{_BARE}*"
_CELL = r"[|\u2502\u2503]"
_FILLERS = (
    r"(?:(?:is|was|are|as|to|of|from|has|been|be|set|changed|reset|updated|now|using|value|the"
    r"|new|your|est|es|ist|lautet|é|è|är|это|是|为|は)"
    r"[ ]{0,3}[:=]?[ ]{1,3}){1,4}"
)

# How much a value must look like a secret.
_WRITTEN = "written"  # a password may be any word, a token is not that of a sentence or of a language model
_GIVEN = "given"  # nobody writes a word of a sentence there
_RANDOM = "random"  # words may stand there, too
_HARD = "hard"  # names with numbers may, too

# What stands before a name, what follows it up to its value, the value's evidence; what is tried first stands first.
_FORMS: tuple[tuple[str, str, str], ...] = (
    # name: API_KEY, value: ..., <add key="ApiKey" value="..."/>, <name>api.key</name><value>..., --value ..., default = ...
    ("", rf"{_CLOSE}(?:,\s{{0,40}}{_Q}\w{{1,20}}{_Q}:\s?{_Q}\w{{1,20}}{_Q})?"
         rf"(?:,\s{{0,40}}|\s{{1,40}}|[ ]?:\s?\{{\s?){_Q}{{0,2}}\w{{0,20}}[Vv]alue{_CLOSE}\s{{0,3}}[:=]\s{{0,3}}", _GIVEN),
    ("", rf"{_CLOSE}\s{{1,40}}(?:--?(?:[Vv]alue|plaintext)[ =]|\{{\s{{0,40}}default\s{{0,20}}=\s{{0,3}})", _GIVEN),
    ("", r"(?:</(?:name|key)>|\"[^<>\n]{0,100}>)\s{0,40}<(?:[Vv]alue|string)>", _GIVEN),
    # credentials: bob / ..., user/pass: bob/...
    ("", r"(?:(?<=[sS])|(?<=/pass)|(?<=/password))[ ]?[:=][ ]{0,3}[\w.@-]{1,64}[ ]?/[ ]?", _RANDOM),
    # api_key=..., "password": "...", password: str = "...", but not file.py::test
    ("", rf"{_CLOSE}{_S}{{0,20}}(?:(?<=[ ])\([^()\n]{{1,40}}\){_S}?)?{_TYPE}{_EQUALS}"
         rf"(?:\*\*)?{_S}{{0,20}}(?:\([\w ]{{1,30}}\)[ ]?->[ ]?)?{_CAST}", _WRITTEN),
    # TOKEN ?? "...", TOKEN or "..."
    ("", rf"{_CLOSE}[ ]?(?:\|\||\?\?|or)[ ]?(?={_Q})", _RANDOM),
    # --api-key ..., ['--api-key', '...']
    (r"(?:\A|[^\w-])--?\Z", rf"(?:{_S}{{1,20}}|{_Q}?\n[ ]{{0,20}}-[ ]|{_Q}?,\s{{0,40}}[bru]?(?={_Q}))"
     rf"(?!{_Q}?[\s-])", _GIVEN),
    # setenv("API_KEY", "..."), and ("api_key", "...")
    (rf"(?i)(?:set|put|add|env|header|prop|append|default|define|environ\.get)\w{{0,20}}[ ]?\({_Q}\Z",
     rf"{_Q},\s{{0,3}}{_CAST}(?={_Q})", _GIVEN),
    (rf"[(\[{{,][ ]?{_Q}?\Z", rf"{_Q}?,\s{{0,3}}{_CAST}(?={_Q})", _RANDOM),
    # <property name="db.password">...</property>
    (r"=[\"']\Z", r"[\"'][^<>\n]{0,100}>(?=[^<\n]{1,300}</)", _WRITTEN),
    # .password("..."), with_token("...")
    (r"(?i)(?:\.|set\w{0,9}|with\w{0,9})\Z", rf"\([ ]?[bru]?(?={_Q}[^\s\"']{{1,200}}{_Q}[ ]?[),])", _GIVEN),
    # <password>...</password>
    (r"<(?:\w{1,20}:)?\Z", r"(?:\s[^<>\n]{0,100})?>(?:<!\[CDATA\[)?(?=[^<\n]{1,300}</)", _WRITTEN),
    # ENV API_TOKEN ..., set -x API_TOKEN ...
    (r"(?:^|[^\w.-])(?:ENV|setenv|setx|SETX|set(?: -\w{1,3})?)[ \t]{1,4}\Z",
     r"[ \t]{1,4}(?=\S{1,2000}\s{0,9}(?:\n|\Z))", _GIVEN),
    # columns: | password | ... |
    (rf"(?:\n|^)[^|\u2502\u2503\n]{{0,40}}{_CELL}[ \t]{{0,60}}\Z",
     rf"[ \t]{{0,60}}{_CELL}[ \t]{{0,60}}(?=\S{{1,300}}[ \t]{{0,200}}{_CELL}\s{{0,20}}(?:\n|\Z))", _WRITTEN),
    ("", rf"[ \t]{{0,60}}{_CELL}[ \t]{{0,60}}(?=\S)", _RANDOM),
    # API key ..., Password for bob: ..., the access token is ...
    ("", rf"[ ]{{1,3}}(?:{_FILLERS}|(?:--?|/|~|\.{{3,40}})[ ])", _RANDOM),
    ("", r"[ ]for[ ][^\s:=]{1,80}[ ]?[:=][ ]{0,3}", _WRITTEN),
    ("", r"[ ]for[ ][^\s:=]{1,80}[ ](?:is|was)[ ]", _RANDOM),
    ("", rf"{_S}{{1,8}}", _RANDOM),
    # ... password ... user: (at the end of a line, or alone on the next)
    ("", r"[^\n:=\"']{1,80}:\s{1,60}(?=\S{1,200}\s{0,9}(?:\n|\Z))", _HARD),
    ("", rf"{_CLOSE}[ \t]?[:=]?[ \t]{{0,3}}(?:\n|\\n)\s{{0,40}}(?=\S{{1,200}}\s{{0,9}}(?:\n|\Z))", _HARD),
)  # fmt: skip
_OBJECT = r"(?i)(?:\w+[_-])?(?:secrets?|credentials?|auth)"  # of Kubernetes, and others that have a name
# What a language model has put out: the word before `token: 'Hello123World'`, or what follows in a table of probabilities.
_BEFORE_GENERATED = (
    r"(?i)(?:next|predicted|sampled|generated|decoded|last|first|top|best|current|previous|output|input|target)[ _-]$"
)
_AFTER_GENERATED = r"\s{0,3}[,|]\s{0,3}[\"']?(?:log_?)?(?:prob|score|id\b)"
# ... -> '...'
_CHANGED = rf"{_Q}?[ ]?(?:->|=>|\u2192)[ ]?(?P<quote>{_Q})(?P<quoted>[^\s\"']{{4,200}})(?P=quote)"
# A line of names, or the columns of an INSERT, and the lines or values below.
_DELIMITERS = "[,;|\t]"
_AROUND_CELL = " \"'`"
_HEADER = (
    r"(?m)^(?=[^\n]{0,300}(?i:passw|secret|api_?key))(?P<names>[ \t]{0,20}\|?[\w \"'`.-]{1,40}"
    r"(?:[,;|\t][\w \"'`.-]{0,40}){1,20}\|?)\r?\n"
    r"(?:[|:+ -]{3,300}\n)?(?P<rows>(?:[^\n]{1,600}[,;|\t][^\n]{1,600}\n?){1,200})"
    r"|(?i:INSERT\s+INTO\s[^\n(]{1,80})\((?P<columns>[^()\n]{1,400})\)\s*(?i:VALUES)\s*(?P<values>[^\n;]{1,2000})"
)
_OF_SECRETS = r"(?i)(?:secret|credential|cred)s?[\"'\\]{0,4}\s?[:=]\s?[\"']?\{(?P<data>[^{}]{1,1000})\}"
_OBJECT_DATA = (
    r"kind: Secret\b(?:(?!\n---)[^\x00]){0,600}?\n(?:string)?[dD]ata:\n(?P<data>(?:[ ]{1,12}[^\n]{1,4000}\n?){1,50})"
)
# {"value": "...", "name": "API_KEY"}
_VALUE_BEFORE = (
    r"[Vv]alue[\"']?\s?[:=]\s?[\"']?(?P<quoted>[^\s\"']{4,200})[\"']?,?\s{0,40}[\"']?name[\"']?\s?[:=]\s?[\"']?\Z"
)
# '...' is not a valid password
_SAID_BEFORE = (
    r"(?:\A|(?<=[\s(:]))(?P<quote>[\"'`])(?P<quoted>[^\s\"'`]{6,200})(?P=quote)"
    r"[ ](?:(?:is|as|was|for)[ ][a-z ]{0,24}|[=!]=[ ][\w.]{0,20}[\[(]?[\"']?)\Z"
)


def named_spans(text: str) -> list[Span]:
    """Where in a text the values of secret names stand."""
    spans: list[Span] = []
    done = looked = 0
    for name, start, end in _names(text):
        if start < done:
            continue
        if span := _value_of(text, name, start, end):
            spans.append(span)
            done = span[1]
            if changed := re.compile(_CHANGED).match(text, done):
                spans.append(changed.span("quoted"))
        elif start >= looked and is_certain_name(name):
            begin, looked = _line_of(text, start, end)
            spans += [(begin + one, begin + other) for one, other in lone_secrets(text[begin:looked])]
    return [*spans, *_below_header(text), *_in_object(text)] if done or looked else spans


def _line_of(text: str, start: int, end: int) -> Span:
    """The line of a name, or what is near it of a long one; with the next line if the name ends its own."""
    stop = text.find("\n", end)
    if 0 <= stop <= end + 2:
        stop = text.find("\n", stop + 1)
    return max(text.rfind("\n", 0, start) + 1, start - 200), min(end + 300, stop if stop >= 0 else len(text))


def _in_object(text: str) -> Iterator[Span]:
    """Where the values of a Kubernetes Secret stand, and those of mappings that are called `secrets`."""
    for found in re.finditer(_OF_SECRETS, text):
        for value in re.finditer(r"[:=]\s?\\{0,3}[\"']?([^\s\"'\\,{}]{4,400})", found["data"]):
            if is_password(value[1]):
                yield found.start("data") + value.start(1), found.start("data") + value.end(1)
    for found in re.finditer(_OBJECT_DATA, text):
        for value in re.finditer(r"(?m)^[ ]{1,12}[\w.-]{1,100}:[ ]{1,3}[\"']?([^\s\"'|>]{4,})", found["data"]):
            yield found.start("data") + value.start(1), found.start("data") + value.end(1)


def _below_header(text: str) -> Iterator[Span]:
    """Where passwords stand below their name: rows of CSV and tables, and the values of SQL's INSERT."""
    for header in re.finditer(_HEADER, text):
        names, cells = ("names", "rows") if header["names"] else ("columns", "values")
        columns = [cell.strip(_AROUND_CELL) for cell in re.split(_DELIMITERS, header[names])]
        hidden = [at for at, name in enumerate(columns) if is_secret_name(name) and is_certain_name(name)]
        for row in re.finditer(r"[^\n()]+", header[cells] if hidden else ""):
            yield from _hidden_cells(row[0], header.start(cells) + row.start(), hidden, len(columns))


def _hidden_cells(row: str, start: int, hidden: list[int], count: int) -> Iterator[Span]:
    cells = re.split(f"({_DELIMITERS})", row)  # with the delimiters
    for at in hidden if len(cells) == 2 * count - 1 else ():
        inside = cells[2 * at].strip(_AROUND_CELL)
        if is_password(inside) or (cells[2 * at].strip()[:1] in ("'", '"') and len(inside) >= 4):
            begin = start + sum(map(len, cells[: 2 * at])) + cells[2 * at].index(inside)
            yield begin, begin + len(inside)


def _names(text: str) -> Iterator[tuple[str, int, int]]:
    """Each secret name with its place; `api key` and `pass word` are one."""
    at = 0
    for stem in _stems(text):
        if stem[0] < at:
            continue
        start, at = _word(text, *stem)
        if _is_part(text, start, at):
            continue
        name = text[start:at].strip("-.")
        start, end = text.find(name, start), text.find(name, start) + len(name)
        if name.lower() in ("pass", "one-time") and (tail := re.compile(r"(?i) (?:word|phrase|code)\b").match(text, end)):
            name, end = name + tail[0].strip().lower(), tail.end()
        spoken = re.search(r"([A-Za-z]{2,12})[ ]\Z", text[max(0, start - 14) : start])
        if spoken and is_secret_name(f"{spoken[1]}_{name}") and not is_secret_name(name):
            name, start = f"{spoken[1]}_{name}", start - len(spoken[0])
        if is_secret_name(name) or is_key_name(name):
            yield name, start, end


def _is_part(text: str, start: int, end: int) -> bool:
    """Whether a name is part of a test's id, of a folder, of base64, or of a resource of AWS."""
    if (
        text.startswith("::", start - 2)
        or text.startswith(("/", "+"), end)
        or re.match(r"\w\+", text[max(0, start - 2) : start])
    ):
        return True
    before = text[max(0, start - 120) : start]
    return "arn:" in before and re.search(r"arn:\S*\Z", before) is not None


def _stems(text: str) -> list[Span]:
    """Where the stems of names stand, in order."""
    lower = text.lower()
    lower = lower if len(lower) == len(text) else text
    found: list[Span] = []
    for stem in STEMS:
        at = lower.find(stem)
        while at >= 0:
            found.append((at, at + len(stem)))
            at = lower.find(stem, at + len(stem))
    return sorted(found)


def _word(text: str, start: int, end: int) -> Span:
    """The whole name around a stem; in scripts without spaces the stem itself."""
    if re.match(_WIDE, text[start]):
        return start, end
    head, tail = re.match(_HEAD, text[max(0, start - 100) : start][::-1]), re.match(_HEAD, text[end : end + 100])
    return start - (head.end() if head else 0), end + (tail.end() if tail else 0)


def _value_of(text: str, name: str, start: int, end: int) -> Span | None:
    for before, after, evidence in _compiled_forms():
        joined = after.match(text, end)
        if joined is None or (before and not before.search(text, max(0, start - 60), start)):
            continue
        value = re.compile(_VALUE_ENCODED if "%" in joined[0] else _VALUE).match(text, joined.end())
        if (
            value
            and _is_shown_secret(value, name, joined[0], evidence)
            and not _is_generated(text, start, value.end(), name)
        ):
            return _span(value)
    if not is_certain_name(name):
        return None
    beside = re.compile(_VALUE_BEFORE).search(text, max(0, start - 300), start)
    said = beside or re.compile(_SAID_BEFORE).search(text, max(0, start - 240), start)
    return said.span("quoted") if said and (beside or is_password(said["quoted"])) else None


def _span(value: re.Match[str]) -> Span:
    if value.lastgroup != "bare":
        return value.span("quoted")
    rest = re.compile(_REST).match(value.string, value.end()) if value.re.pattern == _VALUE else None
    return value.start("bare"), rest.end() if rest else value.end()


@functools.lru_cache(maxsize=1)  # most texts have names that are not those of secrets: only then is this needed
def _compiled_forms() -> tuple[tuple[re.Pattern[str] | None, re.Pattern[str], str], ...]:
    return tuple((re.compile(before) if before else None, re.compile(after), evidence) for before, after, evidence in _FORMS)


# Values that say that there is none, what kind it is, or where it is.
_NO_VALUE = frozenset({
    "none", "null", "true", "false", "yes", "auto", "default", "unset", "missing", "required", "invalid", "expected",
    "wrong", "incorrect", "given", "empty", "optional", "string", "text", "bytes", "bool", "boolean", "float", "integer",
    "number", "object", "dict", "list", "environment", "redacted", "hidden", "masked", "expired", "failed", "denied",
    "valid", "found", "value", "values", "undefined", "disabled", "enabled", "password", "secret", "token", "pass", "self",
    "passed", "rejected", "accepted", "changed", "rotated", "provided", "configured", "this", "that", "your", "must", "file",
    "bearer", "basic", "digest", "negotiate", "apikey", "nil", "path",
})  # fmt: skip
# Of what is between braces, Maven's passwords are secrets.
_PLACEHOLDER = r"[$<%*\[(@]|\{(?![A-Za-z0-9+/]{12,}={0,2}(?:\}|\Z))"
_CODE = (
    r"[A-Z][A-Z_]*_[A-Z_]+|[A-Za-z_]+(?:\.[A-Za-z_]+)+"
    r"|(?:var|local|config|cfg|args|self|settings|env|secrets?|module|data)\.[\w.]+"
)
_STRONG = r"(?=.*[A-Za-z])(?=.*\d).{8,}|(?=.*[a-z])(?=.*[A-Z]).{16,}"


def _is_shown_secret(value: re.Match[str], name: str, joined: str, evidence: str) -> bool:
    """Whether a value behind a secret name is one, or a word of a sentence: `token: the`, `invalid password: too short`."""
    inside = value["bare"] or value["quoted"]
    after = value.string[value.end() : value.end() + 24]
    certain = is_certain_name(name)
    if len(inside) < 4 or (after[:1] == ":" and "=" not in joined) or _says_nothing(inside, name, after):
        return False
    if not is_secret_name(name):  # some key
        looks = (
            is_password(inside) or evidence == _GIVEN
            if name.lower().endswith("pass")
            else is_hard(inside) and len(inside) >= 16
        )
        return looks and evidence in (_GIVEN, _WRITTEN)
    if evidence == _HARD:
        return certain and is_hard(inside)
    if evidence == _RANDOM:
        return is_password(inside.rstrip("?!.,:;") if value["bare"] else inside) and _is_joined(name, joined)
    if not certain and is_harmless(inside):
        return False
    if evidence == _GIVEN and ("=" in inside[:-2] or ("/" in inside and not is_hard(inside))) and value["bare"]:
        return False  # --secret id=name,src=path
    if evidence == _GIVEN and value["bare"] and is_certain_name(inside) and re.match(r"[ ][^\s-]", after):
        return False  # --secret name value
    if evidence == _GIVEN or re.fullmatch(_STRONG, inside, re.DOTALL):
        return True
    prose = ":" in joined and joined.endswith(" ") and value["bare"] and re.match(r"[ \t]+[a-zA-Z(=]", after)
    return (certain or (name.isupper() and "=" in joined)) and not prose


def _is_joined(name: str, joined: str) -> bool:
    """Whether a value belongs to the name before it: where nothing but a space joins them, the name says so."""
    if joined.strip("\"'`\\ "):
        return True
    return re.fullmatch(_OBJECT, name) is None and (is_certain_name(name) or "_" in name or "-" in name)


def _says_nothing(value: str, name: str, after: str) -> bool:
    """Whether a value is a placeholder, code, a path or a common word."""
    lower = value.lower().strip(".:!?")
    if not lower or lower in _NO_VALUE or lower == name.lower() or re.match(_PLACEHOLDER, value) or len(set(value)) == 1:
        return True
    if after[:1] in ("(", "[", "{", "."):
        return True  # a call, an index
    if re.fullmatch(_CODE, value):
        return True  # a constant, an attribute
    place = re.match(r"(?:~|\.{1,2})?/[\w.-]|[a-z0-9+]{2,10}://|arn:aws|[A-Z]:\\", value)
    return place is not None and not value.endswith("=")


def _is_generated(text: str, start: int, end: int, name: str) -> bool:
    """Whether a token is one that a language model has put out."""
    if name.lower() != "token":
        return False
    before, after = text[max(0, start - 12) : start], text[end : end + 24]
    return re.search(_BEFORE_GENERATED, before) is not None or re.match(_AFTER_GENERATED, after) is not None
