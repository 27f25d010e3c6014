"""Which names are those of secrets: judged by expressions, for names that `secrets.is_secret_name` suspects."""

from __future__ import annotations

import functools
import re

# What names a secret wherever it stands in a name: PGPASSWORD, DBPassword, WANDB_API_KEY, hftoken.
_CERTAIN = (
    r"(?i)secret(?!ar)|passw(?:or)?d(?!s?[^a-z]?(?:strength|length|policy|policies|rule|score))|passphrase|credential"
    r"|(?:api|access|private|secret|signing|encryption|ssh|storage|account|license)[^a-z]?keys?(?![a-z])"
    r"|(?:auth|access|api|refresh|session|hub|hf|bot|sas|id)[^a-z]?tokens?(?![a-z])|[^a-z]pwd$|(?:^|[^a-z])cookies?$"
    r"|authorization$|webhook(?:[^a-z]?ur[il])?$|client[^a-z]key[^a-z]data$|connection[^a-z]?string|conn[^a-z]?str$|(?:^|[^a-z])sas$"
    r"|(?:git(?:hub|lab)?|azure|devops|ado|bitbucket|jira)[^a-z]?pat$|(?:^|[^a-z])creds$|sentry[^a-z]?dsn$"
    r"|(?:db|database|sql|mysql|pg|postgres|smtp|mail|redis|ftp|ssh|sudo|become|ldap|proxy|registry|user|admin|root|basic)[^a-z]?(?:pass|pw)$"
    r"|(?:openai|anthropic|wandb|stripe|sendgrid|datadog|mistral|cohere|comet|neptune|deploy|master|service|client)[^a-z]?keys?$"
)
# What names one in capitals, as variables have it, unless a key or pass of this kind is harmless.
_VARIABLE = r"[A-Z0-9_]*_(?:KEY|PAT|PASS|PW|TOKEN)"
_OPEN_KEYS = (
    r"(?:PRIMARY|FOREIGN|PARTITION|SORT|CACHE|GROUP|LABEL|IMAGE|TEXT|TARGET|INPUT|OUTPUT|FEATURE|PUBLIC|COLUMN|COL|INDEX|ROW|HASH"
    r"|SHARD|JOIN|METRIC|MONITOR|LOSS|PROMPT|QUERY|DATA|CONFIG|UNIQUE|LOOKUP|CAPTION|QUESTION|ANSWER|OBJECT|S3|ROUTING|DICT|SUB|REG"
    r"|REGISTRY|HOT|SHORTCUT|ARROW|MAP|VALUE|FILE|NAME|RANK|STATE|MODEL|STEP|RUN|JOB|FORWARD|BACKWARD|FIRST|SECOND|SINGLE|ONE|TWO"
    r"|LAST|PER|LOW|HIGH|BAND|BY)_(?:KEY|PASS|PAT)$"
)
# What names one unless it is part of a harmless name: counts of tokens, tokenizers, special tokens.
_PROBABLE = r"(?i)(?:^|[^a-z])(?:auth|jwt|bearer)(?:$|[^a-z])|token(?:$|[^a-z])"
_HARMLESS = (
    r"(?i)tokeniz|tokens(?![a-z])|(?:num|max|min|n|new|per|vocab|pad|eos|bos|unk|mask|sep|cls|special|image|stop)[^a-z]?token"
    r"|token[^a-z]?(?:per|count|id|size|length|len|type|embed|level|budget|limit|drop)"
)
_CAMEL = r"(?<=[a-z0-9])(?=[A-Z])"


@functools.lru_cache(maxsize=1024)  # the lines of a log have the same names again and again
def names_secret(name: str) -> bool:
    """Whether a suspect name is that of a secret."""
    variable = name if name.isupper() and not name.startswith("SM_HP_") else ""
    name = re.sub(_CAMEL, "_", name)
    return bool(
        re.search(_CERTAIN, name)
        or re.search(_PROBABLE, harmless := re.sub(_HARMLESS, "", name))
        or (re.fullmatch(_VARIABLE, variable) and harmless == name and not re.search(_OPEN_KEYS, variable))
    )


def names_certain_secret(name: str) -> bool:
    """Whether it is in prose, too: a password is, a token may be one of a language."""
    return re.search(_CERTAIN, re.sub(_CAMEL, "_", name)) is not None
