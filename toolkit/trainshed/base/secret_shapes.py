"""Shapes of secrets in any text: the one table of shapes, used wherever text is masked (`secrets.mask_text`).

A look for a few signs comes first (`secret_signs`). Every expression takes time in proportion to the text: none begins
with a repetition that could begin anywhere.
"""

from __future__ import annotations

import re

from .secret_signs import ISSUED, MASK, has_run
from .secret_words import STEMS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# A colour's code, `\n` in a repr and %0A, %3D in an address end in a letter, and are no part of a key.
_BEFORE = r"(?:(?<![A-Za-z0-9_])|(?<=[0-9\[;]m)|(?<=\\n)|(?<=%0A)|(?<=%3D))"
_ISSUED_KEYS = (
    f"{''.join(before)}(?:{'|'.join(map(re.escape, beginnings.split()))}){rest}" for beginnings, rest, *before in ISSUED
)
_ISSUED_KEY = _BEFORE + f"(?:{'|'.join(_ISSUED_KEYS)})(?![A-Za-z0-9])"

# It begins at the colon: to look for the scheme from its first letter would take the square of a long word's letters.
# A user alone is no secret unless it is long; a password may have a slash in it, where it cannot be a port. A placeholder
# is none.
URL_LOGIN = (
    r"(?<=[a-zA-Z0-9+.-])://(?![^/\s'\"@:]{0,200}:(?:\$\{[A-Za-z_]\w{0,60}\}|<[\w -]{1,60}>|\{\{[^{}@]{1,60}\}\})@)(?P<login>[^/\s'\"@:]{0,200}:[^/\s'\"]+|[^/\s'\"@:]{16,}|(?<=git\+https://)[^/\s'\"@:]{4,}"
    r"|[^/\s'\"@:]{0,200}:(?!\d{1,5}/|\[)[^\s'\"@<>,]{1,200})@(?=[\w.\[/-])"
)
_QUOTES = r"[\"'\\]{0,8}"
_WORD = r"[^\s\"'\\,;<>]"
# Signs in lower case, and an expression `(what stays)(the secret)` for texts that have one of them.
_AUTHORIZATION = rf"authorization{_QUOTES}\s{{0,3}}[:=,]\s{{0,3}}(?:b(?=[\"']))?{_QUOTES}"
_AFTER = (
    # Authorization: Bearer ..., in a header, JSON, a tuple, curl's -H; whole lines of Digest and AWS.
    ("authorization", rf"(?i)({_AUTHORIZATION}(?:digest|aws4-hmac-sha256|hawk|oauth)\s)([^\n]+)"),
    ("authorization", rf"(?i)({_AUTHORIZATION}(?:bearer|basic|token|negotiate|apikey|key|ntlm)\s{{1,3}})"
                      rf"(?![$<{{%])({_WORD}{{6,}})"),
    ("bearer ", r"(?i)(?<![a-z0-9])(bearer\s{1,3})(?=[a-z._~+/=-]{0,200}\d|[a-z._~+/=-]{24})([a-z0-9._~+/=-]{8,})"),
    # Cookies, whose values may be anything.
    ("cookie", rf"(?i)(?<![a-z0-9])(cookies?{_QUOTES}\s{{0,3}}[:=]\s{{0,3}}{_QUOTES})"
               r"([^\s=;:\"'\\{(]{1,64}=[^\n\"'\\]+)"),
    # Addresses that are secrets.
    ("hooks.slack.com", r"(?i)(hooks\.slack\.com/[a-z]+/)([^\s\"'<>]{8,})"),
    ("hook", r"(?i)(://[^\s\"'<>/]{1,200}(?:/[^\s\"'<>/]{1,60}){0,6}?/(?:web)?hooks?(?:b2)?/(?:[a-z]{2,12}/){0,2})"
             r"(?=[^\s\"'<>]{0,200}?(?:[a-z0-9]{16}|[0-9a-f]{8}-[0-9a-f]{4}-))(?=[^\s\"'<>\d]{0,200}\d)"
             r"(?![^\s\"'<>]{0,200}\.[a-z]{1,4}(?:[\s\"'<>]|\Z))([^\s\"'<>?]{16,})"),
    ("telegram", r"(api\.telegram\.org/bot)(\d{5,}:[A-Za-z0-9_-]{20,})"),
    ("=", r"(?i)([?&;](?:x-(?:amz|goog|oss|cos|ms)-(?:signature|security-token)|sig|signature|sign|code|api_?key|key)=)"
          r"([a-z0-9%._~+/=-]{16,})"),
    # Programs' own ways.
    ("passw", r"(?i)(?<![a-z])((?:machine|login|user)\s+(?!or\s|and\s|\W\s)\S{1,200}\s+(?:account\s+\S{1,200}\s+)?"
              r"passw(?:or)?d\s+)(\S+)"),
    # Calls and commands that log in.
    ("login", r"(?i)(\blogin\s?\((?:[^()\n]{0,200}?[\s,(])?(?:\w{0,20}_?(?:key|token)|passw(?:or)?d|pw)"
              r"\s?=\s?[bru]?['\"])([^'\"\n]{4,})"),
    (" login ", r"(?i)(\b[a-z][\w-]{1,30} login (?:--?[a-z][\w-]{0,30} ){0,6})"
                r"(?=[a-z_-]{0,60}\d)([a-z0-9_-]{20,})(?![\w./:@])"),
    ("login", r"(?i)(\b(?:login|account)(?:[ ]as[ ]|[ ]?[:=])[ ]?[\w.@-]{1,40}[ ]?[/:][ ]?)"
              r"(?=[^\s'\"/]{0,99}\d)(?=[^\s'\"/]{0,99}[a-z])([^\s'\"/]{6,99})"),
    ("securestring", r"(?i)(securestring\s(?:-string\s)?['\"])([^'\"\n]+)"),
    ("securestring", r"(['\"])([^'\"\n]{4,200})(?=['\"]\s?\|\s?ConvertTo-SecureString)"),
    ("requirepass", r"(?<!\S)(requirepass\s{1,8})(?!is\s|to\s)([^\s]{4,})"),
    ("password", r"(?i)(\bpassword(?:\sfor\s[^\n=]{1,80}=)?\s{1,3}')([^'\n]{4,})(?=')"),
    ("\"key\"", r"(\"username\"\s?:\s?\"[^\"\n]{1,80}\",\s{0,20}\"key\"\s?:\s?\")([^\"\n]{8,})"),
    ("pwd", r"(?i)(\bpwd['\"]?\s?[:=]\s?['\"])(?=[^'\"\n/]{4,}['\"])([^'\"\n/$]+)"),
    ("wandb", r"(?i)(wandb[^\n]{0,100}\bkey\b[^\n]{0,80}[:=]\s?['\"]?)([a-f0-9]{40})(?!\w)"),
    (":5432:", r"(:5432:[^\s:]{1,200}:[^\s:]{1,200}:)(\S+)"),
    ("jdbc:oracle", r"(?i)(jdbc:oracle:[a-z]+:[^\s/@:]{1,200}/)([^\s@]+)(?=@)"),
    (";pwd=", r"(?i)(;pwd=)([^\s;\"']+)"),
    ("identified", r"(?i)(identified (?:with \w{1,40} )?by\s+['\"])([^'\"\n]+)"),
    ("auth", r"((?:\w{0,20}auth\s?=\s?|\w{0,20}[aA]uth)\(\s?['\"][^'\"\n]{1,99}['\"],\s?['\"])([^'\"\n]{4,})"),
    ("/t/", r"(://[^/\s]{1,200}/t/)([\w-]{12,})(?=/|\s|\Z)"),
    # name:password@host, without a scheme
    ("@", r"(?i)(?<![\w/:.@-])((?!mailto|sip|from|to|cc|by|user|email|author|http)[a-z][\w.-]{0,63}:)"
          r"(?=[^\s@/:'\"<>]{0,99}\d)(?=[^\s@/:'\"<>]{0,99}[a-z])([^\s@/:'\"<>]{6,99})(?=@(?!sha\d)[a-z\d][\w-]*(?:\.[\w-]+)*(?:[:/\s'\"]|\Z))"),
    # connect("host", "user", "..."), NetworkCredential("user", "..."), jwt.decode(token, "...")
    ("(", r"(?i)(\b(?:\w*connect|\w{0,20}auth|\w{0,20}credentials?|jwt\.(?:en|de)code|log_?[oi]n|authenticate)[ ]?\("
          r"(?:[^()\n,]{1,200},\s{0,3}){1,3}[bru]?['\"])(?=[^'\"\n]{0,99}\d)(?=[^'\"\n]{0,99}[a-z])([^\s'\"]{6,99})(?=['\"]\s?[,)])"),
    ("$", r"(\$(?:1|2[aby]|5|6|y|apr1|argon2\w{1,2}|scrypt)\$)([^\s:'\"]{8,})"),
    # The inside of a private key, as lines or with `\\n` on one.
    ("private key", r"(-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)"
                    r"((?:\s|\\+[nr]|[\w-]{1,30}: [^\n\\]{1,100}|\[[^\]\n]{1,30}\]:?[ ]|[\w.-]{1,30}[ ]*\|[ ])*"
                    r"[A-Za-z0-9+/=]{16,}(?:[A-Za-z0-9+/=\s]|\\+[nr])*)"),
)  # fmt: skip
_BASIC = r"(?i)(?<![a-z0-9])basic\s{1,3}(?P<login>[a-z0-9+/]{8,}={0,2})"


def narrow(text: str) -> str:
    """Full-width letters, as East Asian keyboards make them, as those of ASCII."""
    return text.translate({0x3000: " ", **{0xFF00 + one: chr(0x20 + one) for one in range(1, 0x5F)}})


def mask_shapes(text: str) -> str:
    """A text with everything masked that has the shape of a secret."""
    lower = text.lower()
    if "://" in text:
        text = re.sub(URL_LOGIN, f"://{MASK}@", text)
    for sign, pattern in _AFTER:
        if sign in lower:
            text = re.sub(pattern, rf"\1{MASK}", text)
    if "basic " in lower:
        text = re.sub(_BASIC, _mend_basic, text)
    spans: list[tuple[int, int]] = []  # what is needed is loaded: most of it not at the start of `train`
    if any(stem in lower for stem in STEMS):
        from .secret_named import named_spans

        spans += named_spans(text)
    if " " in text:
        from .secret_programs import program_spans

        spans += program_spans(text, lower)
    text = _blanked(text, spans)
    if has_run(text):
        from .secret_looks import random_spans

        text = _blanked(text, random_spans(text, mask_shapes, _ISSUED_KEY))
    return text


def _blanked(text: str, spans: Iterable[tuple[int, int]]) -> str:
    parts: list[str] = []
    done = 0
    for start, end in sorted(spans):
        if start >= done:
            parts += [text[done:start], MASK]
        done = max(done, end)
    return "".join([*parts, text[done:]]) if parts else text


def _mend_basic(found: re.Match[str]) -> str:
    """`Basic` and what is a login in base64; not `basic training`."""
    import base64

    try:
        login = base64.b64decode(found["login"] + "=" * (-len(found["login"]) % 4), validate=True)
    except ValueError:
        return found[0]
    is_login = b":" in login and login.isascii() and login.decode().isprintable()
    return found[0].replace(found["login"], MASK) if is_login else found[0]
