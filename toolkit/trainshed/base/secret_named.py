"""Values behind names that are said to be secret, in the forms in which tools write them: where they stand in a text.

A form says how a name and its value follow each other, and how much a value must look like a secret there. Every expression
takes time in proportion to the text: none begins with a repetition that could begin anywhere, and all are bounded.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Known = Callable[[str], bool]

_QUOTES = r"[\"'\\]{0,8}"
_QUOTE = r"\\{0,7}[\"']"
_NAME = r"(?<![\w.-])(?<!::)([\w.-]{2,100})"
_SPOKEN = (
    r"(?<![\w.-])((?i:(?:api|access|secret|private|auth|refresh|license)[ ](?:access[ ])?(?:key|token)"
    r"|passw(?:or)?d|passphrase))"
)
# A colour; YAML's `!!str`, and `|` with a new line; SecretStr(; b, r and u of Python and $ of a shell before quotes.
_BEFORE_VALUE = (
    r"(?:\x1b\[[\d;]{0,9}m)?(?:!{1,2}[\w/:.-]{0,40}[ ]{1,3})?(?:[|>][+-]?[ ]{0,3}\n[ ]{1,40})?"
    r"(?:(?:[a-z]\w{0,30}\.){0,3}\w{0,20}(?:Secret|Secure)\w{0,12}\(\s{0,3})?(?:[bruBRU$](?=[\"']))?"
)
_BARE = r"[^\s\"'\\,;&<>(){}\[\]`|\x1b]"
# A bare value is looked at by its beginning: many names in one long word would take the square of its length.
_VALUE = rf"\"((?:[^\"\\\n]|\\.){{1,2000}})\"|'((?:[^'\\\n]|\\.){{1,2000}})'|[\\\"']*({_BARE}{{1,300}})"
# In an address it ends where %22, %26 and the like end it.
_IN_ADDRESS = r"()()((?:[^\s\"'&<>,;%]|%(?!2[267cC]|3[bB]|7[dD])){1,300})"
_CELL = r"(?:[|\u2502\u2503]|\xe2\x94[\x82\x83])"  # as text, and as the bytes of UTF-8

_SUSPECT = r"(?i)pass|pwd|secret|token|key|cred|auth|cookie|hook|[_-](?:pat|sas|pw)|jwt|dsn|bearer|conn"

# How much a value must look like a secret.
_WRITTEN = "written"  # a password may be any word, a token is not that of a sentence or of a language model
_GIVEN = "given"  # nobody writes a word of a sentence there
_RANDOM = "random"  # words may stand there, too

# Signs, of which a text has one; the expression of a name and what follows it; that of the value; its evidence.
_FORMS = (
    # api_key=..., "password": "...", export DB_PASS='...', but not file.py::test
    ("=:", rf"{_NAME}({_QUOTES}\]?[ \t]{{0,3}}(?:=>|:=|:(?!:)|=)[ \t]{{0,3}}){_BEFORE_VALUE}", _VALUE, _WRITTEN),
    ("-", r"(?<!\S)(--[A-Za-z][\w-]{1,60})([ ])(?=[^\s-])", _VALUE, _GIVEN),
    # ['--api-key', '...'] and ("api_key", "...")
    ("-", rf"[\"'](--?[A-Za-z][\w-]{{1,60}})({_QUOTE},\s{{0,40}}[bru]?)(?={_QUOTE}[^-\s])", _VALUE, _GIVEN),
    (",", rf"[(\[]{_QUOTE}([A-Za-z][\w.-]{{1,60}})({_QUOTE},\s{{0,3}}[bru]?)(?={_QUOTE})", _VALUE, _RANDOM),
    # name: API_KEY, value: ..., <add key="ApiKey" value="..."/>, <name>api.key</name><value>..., <password>...</password>
    (":=", rf"{_NAME}({_QUOTES}(?:,\s{{0,40}}|\s{{1,40}}){_QUOTES}\w{{0,20}}[Vv]alue{_QUOTES}\s{{0,3}}[:=]\s{{0,3}})",
     _VALUE, _GIVEN),
    (" ", rf"{_NAME}({_QUOTES}\s{{1,40}}(?:--?[Vv]alue[ =]|\{{\s{{0,40}}default\s{{0,20}}=\s{{0,3}}))", _VALUE, _GIVEN),
    ("<", rf"{_NAME}((?:</(?:name|key)>|\"[^<>\n]{{0,100}}>)\s{{0,40}}<(?:[Vv]alue|string)>)", _VALUE, _GIVEN),
    ("<", r"<(?:\w{1,20}:)?([A-Za-z][\w.-]{1,60})((?:\s[^<>\n]{0,100})?>)(?=[^<\n]{1,300}</)", _VALUE, _WRITTEN),
    ("%", rf"{_NAME}((?:%22|%27)?%3[AaDd](?:%20|\+)?(?:%22|%27)?)", _IN_ADDRESS, _WRITTEN),
    # ENV API_TOKEN ..., set -x API_TOKEN ...
    (" ", r"(?<![\w.-])(?:ENV|setenv|setx|SETX|set(?: -\w{1,3})?)[ \t]{1,4}([\w-]{2,100})([ \t]{1,4})"
          r"(?=\S{1,2000}\s{0,9}(?:\n|\Z))", _VALUE, _GIVEN),
    # WANDB_API_KEY 0123..., and columns
    (" ", r"(?<![\w.-])((?:[A-Za-z0-9]{0,30}[_-]){1,6}[A-Za-z]{2,30}"
          r"|[A-Za-z]{1,30}(?:Key|Token|Password|Secret))([ \t]{1,8})"
          r"(?=\S{0,99}[^A-Za-z\s_])", _VALUE, _RANDOM),
    ("\t", rf"{_NAME}(\t[ \t]{{0,40}})(?=\S{{0,99}}[^A-Za-z\s_])", _VALUE, _RANDOM),
    ("|\u2502\u2503\xe2", rf"(?m)^[^|\u2502\u2503\xe2\n]{{0,60}}"
     rf"{_CELL}[ \t]{{0,60}}([\w.-]{{2,60}})([ \t]{{0,60}}{_CELL}[ \t]{{0,60}})"
     rf"(?=\S{{1,300}}\s{{0,200}}{_CELL}\s{{0,20}}$)", _VALUE, _WRITTEN),
    ("|\u2502\u2503\xe2", rf"{_NAME}([ \t]{{0,60}}{_CELL}[ \t]{{0,60}})(?=\S)", _VALUE, _RANDOM),
    # API key: ..., Password for bob: ..., the access token is ...
    (":=", rf"{_SPOKEN}((?:[ ]for[ ]\S{{1,80}}?)?[ ]?[:=][ ]{{0,3}})(?=\S)", _VALUE, _WRITTEN),
    (" ", rf"{_SPOKEN}([ ](?:is|was|set to|changed to)[ ]{{1,3}})(?=\S)", _VALUE, _RANDOM),
)  # fmt: skip

# Values that say that there is none, what kind it is, or where it is.
_NO_VALUE = frozenset({
    "none", "null", "true", "false", "yes", "auto", "default", "unset", "missing", "required", "invalid", "expected",
    "wrong", "incorrect", "given", "empty", "optional", "string", "text", "bytes", "bool", "boolean", "float", "integer",
    "number", "object", "dict", "list", "environment", "redacted", "hidden", "masked", "expired", "failed", "denied",
    "valid", "found", "value", "values", "undefined", "disabled", "enabled", "password", "secret", "token", "pass", "self",
    "passed", "rejected", "accepted", "changed", "rotated", "provided", "configured", "this", "that", "your", "must", "file",
    "bearer", "basic", "digest", "negotiate", "apikey",
})  # fmt: skip
_STRONG = r"(?=.*[A-Za-z])(?=.*\d).{8,}|(?=.*[a-z])(?=.*[A-Z]).{16,}"
_RANDOM_WORD = r"(?=.*[A-Za-z])(?=.*[\d!#$%&*@?^~]).{6,}|(?=.*\d)[\w+/=-]{20,}"
# What a language model has put out: the word before `token: 'Hello123World'`, or what follows in a table of probabilities.
_BEFORE_GENERATED = (
    r"(?i)(?:next|predicted|sampled|generated|decoded|last|first|top|best|current|previous|output|input|target)[ _-]$"
)
_AFTER_GENERATED = r"\s{0,3}[,|]\s{0,3}[\"']?(?:log_?)?(?:prob|score|id\b)"


def named_spans(text: str, is_secret_name: Known, is_certain: Known) -> list[tuple[int, int]]:
    """Finds where in a text the values of secret names stand, in order; two may overlap.

    Args:
        is_secret_name: whether a value of this name is secret.
        is_certain: whether it is in prose, too: a password is, a token may be one of a language.
    """
    spans: list[tuple[int, int]] = []
    if not _has_a_name(text, is_secret_name):
        return spans
    for signs, name, value, evidence in _FORMS:
        if any(sign in text for sign in signs):
            spans += _of_form(text, name, re.compile(value), evidence, is_secret_name, is_certain)
    return sorted(spans)


def _has_a_name(text: str, is_secret_name: Known) -> bool:
    """Whether any name in a text is that of a secret: most that are looked at speak of tokens and keys of other kinds."""
    words = filter(re.compile(_SUSPECT).search, re.split(r"[^\w.-]+", text, flags=re.ASCII))
    return any(is_secret_name(word.strip("-.")) for word in words if len(word) <= 102) or (
        " key" in text.lower() and re.search(_SPOKEN, text) is not None
    )


def _of_form(
    text: str, names: str, values: re.Pattern[str], evidence: str, is_secret_name: Known, is_certain: Known
) -> Iterator[tuple[int, int]]:
    done = 0
    for found in re.finditer(names, text, re.ASCII):
        name = found[1].strip("-.")
        if found.start() < done or not is_secret_name(name):
            continue
        value = values.match(text, found.end())
        if value is None or value.lastindex is None:
            continue
        start, end = value.span(value.lastindex)
        if _says_nothing(text[start:end], name, text[end : end + 24]) or _is_generated(
            text, found.start(1), value.end(), name
        ):
            continue
        if _is_shown_secret(value, found[2], evidence, is_certain(name) or (name.isupper() and "=" in found[2])):
            done = _end_of_bare(text, end) if value.lastindex == 3 and values.pattern == _VALUE else end
            yield start, done


def _end_of_bare(text: str, start: int) -> int:
    rest = re.compile(f"{_BARE}*").match(text, start)
    return rest.end() if rest else start


def _is_shown_secret(value: re.Match[str], separator: str, evidence: str, certain: bool) -> bool:
    """Whether a value behind a secret name is one, or a word of a sentence: `token: the`, `invalid password: too short`."""
    inside = value[value.lastindex or 0]
    if evidence == _RANDOM:
        return re.fullmatch(_RANDOM_WORD, inside, re.DOTALL) is not None
    if evidence == _GIVEN or re.fullmatch(_STRONG, inside, re.DOTALL):
        return len(inside) >= 4
    prose = False
    if ":" in separator and separator.endswith(" ") and value.lastindex == 3:
        prose = re.match(r"[ \t]+[a-zA-Z(=]", value.string[value.end() : value.end() + 24]) is not None
    return certain and not prose and len(inside) >= 4


def _says_nothing(value: str, name: str, after: str) -> bool:
    """Whether a value is a placeholder, code, a path or a common word."""
    lower = value.lower().strip(".:!?")
    if not lower or lower in _NO_VALUE or lower == name.lower() or value[0] in "$<{%*[(@" or len(set(value)) == 1:
        return True
    if after[:1] in ("(", "[", "{") or after.startswith("."):
        return True  # a call, an index
    if re.fullmatch(r"[A-Z][A-Z_]*_[A-Z_]+|[A-Za-z_]+(?:\.[A-Za-z_]+)+", value):
        return True  # a constant, an attribute
    place = re.match(r"(?:~|\.{1,2})?/[\w.-]|[a-z0-9+]{2,10}://|arn:aws|[A-Z]:\\", value)
    return place is not None and not value.endswith("=")


def _is_generated(text: str, start: int, end: int, name: str) -> bool:
    """Whether a token is one that a language model has put out."""
    if name.lower() != "token":
        return False
    before, after = text[max(0, start - 12) : start], text[end : end + 24]
    return re.search(_BEFORE_GENERATED, before) is not None or re.match(_AFTER_GENERATED, after) is not None
