"""Which names are those of secrets: of variables, fields and options, and in a sentence; in several languages."""

from __future__ import annotations

import functools
import re

from .secret_signs import FOREIGN, is_suspect

# A secret's name in a text has one of these.
STEMS = (
    "pass", "pw", "secr", "token", "cred", "key", "auth", "bear", "jwt", "hook", "cookie", "conn", "dsn", "_pat",
    "_sas", "-pat",
    "psk", "parol", "senha", "contras", "clave", "kennwo", "wachtw", "pa$$", "p4ss", "w0rd", "pasw", "pswd", *FOREIGN,
)  # fmt: skip
# Patterns are strings, compiled by `re` when first used.
# What names a secret wherever it stands in a name: PGPASSWORD, DBPassword, WANDB_API_KEY, hftoken.
_CERTAIN = (
    r"(?i)secret(?!ar|s?[^a-z]?(?:manager|storage|names?$))|pass[^a-z]?(?:phrase|code)|credential"
    r"|p[a4][s5$]{1,2}(?:w[o0]?r?d|w[o0]rt|w[o0][o0]rd|[o0]rd)(?!s?[^a-z]?(?:strength"
    r"|length|policy|policies|rule|score))|pswd|(?:api|access|private|secret|signing|encryption|ssh|storage|account"
    r"|license|subscription|unseal|pre[^a-z]?shared)[^a-z]?keys?(?![a-z])"
    r"|(?:auth|access|api|refresh|session|hub|hf|bot|sas|id|root)[^a-z]?tokens?(?![a-z])"
    r"|(?:^|[^a-z]|bind|root|user|my|db|admin|mail|new|old)pw$|(?:^|[^a-z])(?:psk|passe)$|[^a-z]pwd$"
    r"|(?:^|[^a-z])cookies?$|authorization$|webhook(?:[^a-z]?ur[il])?$|client[^a-z]key[^a-z]data$"
    r"|connection[^a-z]?string|conn[^a-z]?str$|(?:^|[^a-z])sas$|(?:store|key|trust|bind|require)[^a-z]?pass$"
    r"|(?:git(?:hub|lab)?|azure|devops|ado|bitbucket|jira)[^a-z]?pat$|(?:^|[^a-z])creds$|sentry[^a-z]?dsn$"
    r"|(?:db|database|sql|mysql|pg|postgres|smtp|mail|redis|ftp|ssh"
    r"|sudo|become|ldap|proxy|registry|user|admin|root|basic)[^a-z]?(?:pass|pw)$"
    r"|(?:openai|anthropic|wandb|stripe|sendgrid|datadog|mistral|cohere"
    r"|comet|neptune|deploy|master|service|client)[^a-z]?keys?$"
    r"|(?<![a-z])(?:senha|clave|parol[ae]?|kennwort|wachtwoord|contrasen[ay]a?"
    r"|haslo|heslo|sifre|losenord|salasana|jelszo|mnemonic)(?![a-z])|парол|密码|密碼|口令|パスワード|비밀번호|암호|κωδικ|סיסמ|รหัสผ่าน"
)
# What names one in capitals, as variables have it, unless a key or pass of this kind is harmless.
_VARIABLE = r"[A-Z0-9_]*_(?:KEY|PAT|PASS|PW|TOKEN)|(?:[A-Z0-9_]*_)?TOKEN_[A-Z0-9_]+"
_OPEN_KEYS = (
    r"(?i)(?:PRIMARY|FOREIGN|PARTITION|SORT|CACHE|GROUP|LABEL|IMAGE"
    r"|TEXT|TARGET|INPUT|OUTPUT|FEATURE|PUBLIC|COLUMN|COL|INDEX|ROW"
    r"|HASH|SHARD|JOIN|METRIC|MONITOR|LOSS|PROMPT|QUERY|DATA|CONFIG"
    r"|UNIQUE|LOOKUP|CAPTION|QUESTION|ANSWER|OBJECT|S3|ROUTING|DICT"
    r"|SUB|REG|REGISTRY|HOT|SHORTCUT|ARROW|MAP|VALUE|FILE|NAME|RANK"
    r"|STATE|MODEL|STEP|RUN|JOB|FORWARD|BACKWARD|FIRST|SECOND|SINGLE"
    r"|ONE|TWO|LAST|PER|LOW|HIGH|BAND|BY|HOST|LAYER|MODULE|PARAM|TENSOR"
    r"|STORAGE|BLOB|IDEMPOTENCY|KV|ATTN|QK)[_-]?KEYS?$"
    r"|(?:FORWARD|BACKWARD|FIRST|SECOND|SINGLE|ONE|TWO|LAST|PER|LOW|HIGH|BAND|BY)[_-]?(?:PASS|PAT)$"
)
# What names one unless it is part of a harmless name: counts of tokens, tokenizers, special tokens.
_PROBABLE = (
    r"(?i)(?:(?:^|[^a-z])(?:auth|jwt|bearer)|token)"
    r"(?:$|[^a-z]?\d{1,2}$|[^a-z](?:header|value|string|basic|data|code|secret|hf|hub|gh|github|gitlab|prod|dev|staging)$)"
)
_HARMLESS = (
    r"(?i)tokeniz|tokens(?![a-z])|(?:num|max|min|n|new|per|vocab|pad|eos|bos|unk|mask|sep|cls|special"
    r"|image|stop|request|idempotency|continuation|next|page|cancellation|fencing|pagination)[^a-z]?token"
    r"|token[^a-z]?(?:per|count|id|size|length|len|type|embed|level|budget|limit|drop)"
)
_CAMEL = r"(?<=[a-z0-9])(?=[A-Z])"


@functools.lru_cache(maxsize=1024)  # the lines of a log have the same names again and again
def is_secret_name(name: str) -> bool:
    """Whether the value of a hyperparameter or variable of this name must not be shown."""
    if not is_suspect(name):
        return False
    variable = name if name.isupper() and not name.startswith("SM_HP_") else ""
    name = _plain(name)
    return bool(
        re.search(_CERTAIN, name)
        or re.search(_PROBABLE, harmless := re.sub(_HARMLESS, "", name))
        or (re.fullmatch(_VARIABLE, variable) and harmless == name and not re.search(_OPEN_KEYS, variable))
    )


@functools.lru_cache(maxsize=1024)
def is_certain_name(name: str) -> bool:
    """Whether it is one in a sentence, too: a password is, a token may be one of a language."""
    return re.search(_CERTAIN, _plain(name)) is not None


@functools.lru_cache(maxsize=1024)
def is_key_name(name: str) -> bool:
    """Whether it is some key, of which nothing says that it is that of a table, a cache, a metric."""
    name = _plain(name)
    return (
        re.search(r"(?i)[a-z0-9](?:[ _.-]keys?|[_.-]pass)$|^pass$", name) is not None and re.search(_OPEN_KEYS, name) is None
    )


def _plain(name: str) -> str:
    """Words apart, and letters without their marks."""
    name = re.sub(_CAMEL, "_", name)
    if name.isascii():
        return name
    import unicodedata

    composed = unicodedata.normalize("NFC", name)
    if not re.search("[\u00c0-\u024f]", composed):  # other scripts' marks are letters of their own
        return composed
    marked = unicodedata.normalize("NFKD", composed.replace("ł", "l").replace("ı", "i"))
    return "".join(one for one in marked if not unicodedata.combining(one))
