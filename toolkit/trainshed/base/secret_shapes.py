"""What a secret looks like in any text: the one table of shapes, used wherever text is masked (`secrets.mask_text`).

A look for a few signs comes first, so that a line of a log without any costs less than a microsecond. Every expression
takes time in proportion to the text: none begins with a repetition that could begin anywhere.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Known = Callable[[str], bool]

MASK = "******"
# One of these is part of every name of a secret; a key by its form is a run of `_LONG` letters, digits, _ and -.
_NAMES = (
    "pass", "pwd", "secret", "token", "key", "cred", "auth", "cookie", "hook", "_pat", "_sas", "_pw", "jwt", "dsn", "bearer",
    "conn",
)  # fmt: skip
_LONG = 18
_WORDS = bytes(120 if (chr(one).isalnum() and one < 128) or chr(one) in "_-" else 32 for one in range(256))
_RUN = b"x" * _LONG

# Keys that services begin in a way of their own: (how, what follows). Followed and preceded by nothing of their own kind.
_ISSUED = (
    (r"A[KS]IA", r"[A-Z0-9]{16}"), (r"LTAI", r"[A-Za-z0-9]{16,20}"), (r"AKID", r"[A-Za-z0-9]{32}"),
    (r"hf_|api_org_", r"[A-Za-z0-9]{20,}"), (r"gh[pousr]_|github_pat_", r"[A-Za-z0-9_]{20,}"),
    (r"gl(?:pat|dt|rt|cbt|ptt|ft|soat|imt|agent)-|glsa_|glc_", r"[A-Za-z0-9_-]{20,}"),
    (r"sk-|pk-lf-", r"(?=[A-Za-z_-]{0,99}\d)[A-Za-z0-9_-]{20,}"), (r"[sr]k_(?:live|test)_|whsec_", r"[A-Za-z0-9]{16,}"),
    (r"pypi-", r"(?=[A-Za-z_-]{0,99}\d)[A-Za-z0-9_-]{40,}"), (r"npm_", r"[A-Za-z0-9]{30,}"),
    (r"dckr_[po]at_", r"[A-Za-z0-9_-]{20,}"),
    (r"xox[abceoprs]-|xapp-", r"[A-Za-z0-9-]{10,}"), (r"AIza", r"[A-Za-z0-9_-]{30,}"),
    (r"ya29\.|1//0", r"[A-Za-z0-9_-]{20,}"),
    (r"GOCSPX-", r"[A-Za-z0-9_-]{20,}"), (r"SG\.", r"[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),
    (r"do[opr]_v1_", r"[a-f0-9]{40,}"), (r"shp(?:at|ss|ca|pa)_", r"[a-fA-F0-9]{32}"),
    (r"hv[sbr]\.|dp\.[a-z]{2}\.|dt0[a-z]\d\d\.", r"[A-Za-z0-9_.-]{20,}"),
    (r"nvapi-|pplx-|xai-|tvly-|tskey-|sq0[a-z]{3}-", r"[A-Za-z0-9_-]{20,}"),
    (r"gsk_|r8_|rpa_|tgp_v1_|fw_|lsv2_[ps][tk]_|wandb_v1_|figd_|ntn_|sbp_|lin_api_|pscale_\w{2,8}_|rubygems_|sntry[su]_",
     r"(?=[A-Za-z_-]{0,99}\d)[A-Za-z0-9_-]{20,}"),
    (r"dapi", r"[a-f0-9]{32}(?:-\d)?"), (r"key-", r"[a-f0-9]{32}"), (r"pul-", r"[a-f0-9]{40}"),
    (r"PMAK-|NRAK-|ATATT3|ATCTT3|ATBB|AGE-SECRET-KEY-1|CLOJARS_", r"[A-Za-z0-9_=-]{20,}"), (r"cio", r"[A-Za-z0-9]{32}"),
    (r"(?<!-)eyJ", r"[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]+){1,3}"),
    (r"\d{8,10}:AA", r"[A-Za-z0-9_-]{30,}"),
)  # fmt: skip
# A colour's code, `\n` in a repr and %0A, %3D in an address end in a letter, and are no part of a key.
_BEFORE = r"(?:(?<![A-Za-z0-9_])|(?<=[0-9\[;]m)|(?<=\\n)|(?<=%0A)|(?<=%3D))"
_ISSUED_KEY = _BEFORE + f"(?:{'|'.join(f'(?:{how}){rest}' for how, rest in _ISSUED)})(?![A-Za-z0-9])"

# It begins at the colon: to look for the scheme from its first letter would take the square of a long word's letters.
URL_LOGIN = r"(?<=[a-zA-Z0-9+.-])://(?P<login>[^/\s'\"]+)@"
_QUOTES = r"[\"'\\]{0,8}"
_WORD = r"[^\s\"'\\,;<>]"
# Signs in lower case, and an expression `(what stays)(the secret)` for texts that have one of them.
_AUTHORIZATION = rf"authorization{_QUOTES}\s{{0,3}}[:=,]\s{{0,3}}(?:b(?=[\"']))?{_QUOTES}"
_AFTER = (
    # Authorization: Bearer ..., in a header, JSON, a tuple, curl's -H; whole lines of Digest and AWS.
    ("authorization", rf"(?i)({_AUTHORIZATION}(?:digest|aws4-hmac-sha256|hawk|oauth)\s)([^\n]+)"),
    ("authorization", rf"(?i)({_AUTHORIZATION}(?:bearer|basic|token|negotiate|apikey|key|ntlm)\s{{1,3}})({_WORD}{{6,}})"),
    ("authorization", rf"(?i)({_AUTHORIZATION})(?=[a-z._~+/=-]{{0,200}}\d)([a-z0-9._~+/=-]{{12,}})"),
    ("bearer ", r"(?i)(?<![a-z0-9])(bearer\s{1,3})(?=[a-z._~+/=-]{0,200}\d|[a-z._~+/=-]{24})([a-z0-9._~+/=-]{8,})"),
    # Cookies, whose values may be anything.
    ("cookie", rf"(?i)(?<![a-z0-9])(cookies?{_QUOTES}\s{{0,3}}[:=]\s{{0,3}}{_QUOTES})"
               r"([^\s=;:\"'\\{(]{1,64}=[^\n\"'\\]+)"),
    ("sid=", r"(?i)(?<![a-z0-9])((?:phps|connect\.s?|s)?(?:ess)?sid=)([a-z0-9%._:+/=-]{12,})"),
    ("sessionid=", r"(?i)(?<![a-z0-9])([\w.]{0,20}sessionid=)([a-z0-9%._:+/=-]{12,})"),
    # Addresses that are secrets.
    ("hooks.slack.com", r"(?i)(hooks\.slack\.com/[a-z]+/)([^\s\"'<>]{8,})"),
    ("/webhooks/", r"(?i)(discord(?:app)?\.com/api/(?:v\d+/)?webhooks/)([^\s\"'<>]{8,})"),
    ("hook", r"(?i)(/(?:web)?hooks?(?:b2)?/(?:[a-z]{2,12}/){0,2})(?=[^\s\"'<>]{0,200}[a-z0-9_-]{16})"
             r"(?=[^\s\"'<>\d]{0,200}\d)([^\s\"'<>?]{16,})"),
    ("telegram", r"(api\.telegram\.org/bot)(\d{5,}:[A-Za-z0-9_-]{20,})"),
    ("=", r"(?i)([?&;](?:x-(?:amz|goog|oss|cos|ms)-(?:signature|security-token)|sig|signature|sign|code|api_?key|key)=)"
          r"([a-z0-9%._~+/=-]{16,})"),
    # Programs' own ways.
    ("passw", r"(?i)(?<![a-z])((?:machine|login|user)\s+(?!or\s|and\s)\S{1,200}\s+(?:account\s+\S{1,200}\s+)?"
              r"passw(?:or)?d\s+)(\S+)"),
    ("password", r"(?im)^(\s{0,20}password[ \t]+)(?=\S*[^a-z\s.,:;!()])(\S{4,})(?=\s*$)"),
    (" -u", r"(?<=[\s'\"])(-u[ =]?['\"]?[^\s:'\"]{1,200}:)(?!\d+(?:\s|$))([^\s'\"]+)"),
    ("-user ", r"(?<=[\s'\"])(--(?:proxy-)?user[ =]['\"]?[^\s:'\"]{1,200}:)(?!\d+(?:\s|$))([^\s'\"]+)"),
    ("sshpass", r"(sshpass\s+-p\s{0,3}['\"]?)([^\s'\"]+)"),
    ("docker login", r"(docker login\b[^\n]{0,200}?\s-p\s)(\S+)"),
    (":5432:", r"(:5432:[^\s:]{1,200}:[^\s:]{1,200}:)(\S+)"),
    ("jdbc:oracle", r"(?i)(jdbc:oracle:[a-z]+:[^\s/@:]{1,200}/)([^\s@]+)(?=@)"),
    (";pwd=", r"(?i)(;pwd=)([^\s;\"']+)"),
    ("mysql", r"(mysql\w{0,10}\s[^\n]{0,200}?(?<=\s)-p)([^\s'\"]+)"),
    ("pass", r"(?i)((?:passw(?:or)?d|passphrase)(?:\s+is|\s*=)?\s{1,3}['\"]?)"
             r"(?=[^\s'\"]{0,99}[\d!#$%&*@?^~])(?=[^\s'\"]{0,99}[A-Za-z])([^\s'\"]{8,})"),
    ("identified by", r"(?i)(identified by\s+['\"])([^'\"\n]+)"),
    # The inside of a private key, as lines or with `\\n` on one.
    ("private key", r"(-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)"
                    r"((?:\s|\\+[nr]|[\w-]{1,30}: [^\n\\]{1,100})*[A-Za-z0-9+/=]{16,}(?:[A-Za-z0-9+/=\s]|\\+[nr])*)"),
)  # fmt: skip
# Names with a value: api_key=..., "password": "...", export DB_PASS='...'; and flags: --token ...
_NAMED = (
    r"(?<![\w.-])([\w.-]{2,100})([\"'\\]{0,8}[ \t]{0,3}(?:=>|:=|[:=])[ \t]{0,3}(?:\x1b\[[\d;]{0,9}m)?)(?:[bruBRU](?=[\"']))?"
)
_FLAG = r"(?<!\S)(--[A-Za-z][\w-]{1,60})([ ])(?=[^\s-])"
_BARE = r"[^\s\"'\\,;&<>(){}\[\]`|\x1b]"
# A bare value is looked at by its beginning: many names in one long word would take the square of its length.
_VALUE = rf"\"((?:[^\"\\\n]|\\.){{1,2000}})\"|'((?:[^'\\\n]|\\.){{1,2000}})'|[\\\"']*({_BARE}{{1,300}})"
_BASIC = r"(?i)(?<![a-z0-9])basic\s{1,3}(?P<login>[a-z0-9+/]{8,}={0,2})"
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


def has_signs(text: str) -> bool:
    """Whether a text could hold a secret: in about a microsecond, so all is written out."""
    low = text.lower()
    return (
        "pass" in low or "token" in low or "key" in low or "secr" in low or "auth" in low or "://" in low
        or "pwd" in low or "cred" in low or "cook" in low or "hook" in low or "conn" in low or "jwt" in low
        or "_pat" in low or "_sas" in low or "_pw" in low or "dsn" in low or "bear" in low or "basic " in low
        or "sid=" in low or "sig=" in low or "-u" in low or ":543" in low or "jdbc:" in low or "ified by" in low
        or _has_run(text)
    )  # fmt: skip


def _has_run(text: str) -> bool:
    return _RUN in text.encode("latin-1", "replace").translate(_WORDS)


def mask_shapes(text: str, is_secret_name: Known, is_certain: Known) -> str:
    """A text with everything masked that has the shape of a secret.

    Args:
        is_secret_name: whether a value of this name is secret.
        is_certain: whether it is in prose, too: a password is, a token may be one of a language.
    """
    lower = text.lower()
    if "://" in text:
        text = re.sub(URL_LOGIN, f"://{MASK}@", text)
    for sign, pattern in _AFTER:
        if sign in lower:
            text = re.sub(pattern, rf"\1{MASK}", text)
    if "basic " in lower:
        text = re.sub(_BASIC, _mend_basic, text)
    if _has_run(text):
        text = re.sub(_ISSUED_KEY, MASK, text)
    if any(name in lower for name in _NAMES):
        if ":" in text or "=" in text:
            text = _mask_named(text, _NAMED, is_secret_name, is_certain)
        if "--" in text:
            text = _mask_named(text, _FLAG, is_secret_name, is_certain)
    return text


def _mend_basic(found: re.Match[str]) -> str:
    """`Basic` and what is a login in base64; not `basic training`."""
    import base64

    try:
        login = base64.b64decode(found["login"] + "=" * (-len(found["login"]) % 4), validate=True)
    except ValueError:
        return found[0]
    is_login = b":" in login and login.isascii() and login.decode().isprintable()
    return found[0].replace(found["login"], MASK) if is_login else found[0]


def _mask_named(text: str, pattern: str, is_secret_name: Known, is_certain: Known) -> str:
    """Masks values behind names that are said to be secret, and that could be values of such."""
    parts: list[str] = []
    done = 0
    for found in re.finditer(pattern, text, re.ASCII):
        name = found[1].strip("-.")
        if found.start() < done or not is_secret_name(name):
            continue
        value = re.compile(_VALUE).match(text, found.end())
        if value is None or value.lastindex is None:
            continue
        start, end = value.span(value.lastindex)
        if not _says_nothing(value[value.lastindex], name, text[end : end + 24]) and _is_shown_secret(
            value, name, found[2], is_certain(name)
        ):
            parts += [text[done:start], MASK]
            done = _end_of_bare(text, end) if value.lastindex == 3 else end
    return "".join([*parts, text[done:]]) if parts else text


def _end_of_bare(text: str, start: int) -> int:
    rest = re.compile(f"{_BARE}*").match(text, start)
    return rest.end() if rest else start


def _is_shown_secret(value: re.Match[str], name: str, separator: str, certain: bool) -> bool:
    """Whether a value behind a secret name is one, or a word of a sentence: `token: the`, `invalid password: too short`."""
    inside = value[value.lastindex or 0]
    if re.fullmatch(_STRONG, inside, re.DOTALL):
        return True
    if ":" in separator and separator.endswith(" ") and value.lastindex == 3:
        prose = re.match(r"[ \t]+[a-zA-Z(=]", value.string[value.end() : value.end() + 24]) is not None
    else:
        prose = False
    named = certain or (name.isupper() and "=" in separator) or separator == " "
    return named and not prose and len(inside) >= 4


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
