"""Finds what looks like a secret, and masks it."""

from __future__ import annotations

import json
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

MASK = "******"
SHORTEST_SECRET = 4  # masking shorter values ("0", "yes") would mask harmless text
_NO_SECRETS = ("true", "false", "none", "null")  # likewise

# Patterns are strings, compiled by `re` when first used: a job without secrets never pays for them at start.
_SUSPECTS = ("secret", "passw", "passphrase", "token", "credential", "key", "auth", "bearer", "jwt", "pwd")
# What names a secret wherever it stands in a name: PGPASSWORD, DBPassword, WANDB_API_KEY, hftoken.
_CERTAIN = (
    r"(?i)secret|passw(?:or)?d|passphrase|credential"
    r"|(?:api|access|private|secret|signing|encryption|ssh|storage|account|license)[^a-z]?keys?(?![a-z])"
    r"|(?:auth|access|api|refresh|session|hub|hf|bot)[^a-z]?tokens?(?![a-z])|[^a-z]pwd$"
)
# What names one unless it is part of a harmless name: counts of tokens, tokenizers, special tokens.
_PROBABLE = r"(?i)(?:^|[^a-z])(?:auth|jwt|bearer)(?:$|[^a-z])|token(?:$|[^a-z])"
_HARMLESS = (
    r"(?i)tokeniz|tokens(?![a-z])|(?:num|max|min|n|new|per|vocab|pad|eos|bos|unk|mask|sep|cls|special|image|stop)[^a-z]?token"
    r"|token[^a-z]?(?:per|count|id|size|length|len|type|embed|level|budget|limit|drop)"
)
_CAMEL = r"(?<=[a-z0-9])(?=[A-Z])"
_URL_LOGIN = r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*://)(?P<login>[^/\s@'\"]+)@"
_KNOWN_PREFIXES = ("AKIA", "ASIA", "hf_", "gh", "sk-", "glpat-", "pypi-", "xox")
_KNOWN_FORMS = (
    r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bhf_[A-Za-z0-9]{20,}|\bgh[pousr]_[A-Za-z0-9]{20,}|\bsk-[A-Za-z0-9_-]{20,}"
    r"|\bglpat-[A-Za-z0-9_-]{20,}|\bpypi-[A-Za-z0-9_-]{40,}|\bxox[abprs]-[A-Za-z0-9-]{10,}"
)


def is_secret_name(name: str) -> bool:
    """Whether the value of a hyperparameter or variable of this name must not be shown."""
    lower = name.lower()
    if not any(word in lower for word in _SUSPECTS):
        return False
    name = re.sub(_CAMEL, "_", name)
    return bool(re.search(_CERTAIN, name) or re.search(_PROBABLE, re.sub(_HARMLESS, "", name)))


def mask_mapping(values: Mapping[str, Any]) -> dict[str, Any]:
    """A copy in which the values of secret names and logins in URLs are masked, at any depth."""
    return {
        key: MASK if is_secret_name(str(key)) and value not in ("", None) else _mask(value) for key, value in values.items()
    }


def _mask(value: Any) -> Any:
    if isinstance(value, dict):
        return mask_mapping(value)
    if isinstance(value, (list, tuple)):
        return [_mask(item) for item in value]
    return mask_text(value) if isinstance(value, str) else value


def secret_values(values: Mapping[str, Any], names: Collection[str] = ()) -> tuple[str, ...]:
    """The values of secret names (and of those in `names`) at any depth, longest first: what `mask_text` masks."""
    found: set[str] = set()
    for key, value in values.items():
        _collect(value, is_secret_name(str(key)) or key in names, found)
    return tuple(sorted(found, key=lambda value: (-len(value), value)))


def _collect(value: Any, secret: bool, found: set[str]) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _collect(item, secret or is_secret_name(str(key)), found)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _collect(item, secret, found)
    elif isinstance(value, str):
        if secret and len(value) >= SHORTEST_SECRET and value.lower() not in _NO_SECRETS:
            # As it stands, and as it stands in JSON (SM_HPS) and in what Python prints (lists, tracebacks).
            found |= {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
        if value[:1] in ("{", "[") and any(word in value for word in _SUSPECTS):
            try:
                _collect(json.loads(value), secret, found)
            except (ValueError, RecursionError):
                pass
    elif secret and value is not None and not isinstance(value, bool) and len(str(value)) >= SHORTEST_SECRET:
        found.add(str(value))


def mask_text(text: str, secrets: tuple[str, ...] = ()) -> str:
    """Masks the given secrets, logins in URLs, and keys of well-known forms."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    if "://" in text:
        text = re.sub(_URL_LOGIN, rf"\g<scheme>{MASK}@", text)
    return re.sub(_KNOWN_FORMS, MASK, text) if any(prefix in text for prefix in _KNOWN_PREFIXES) else text


def mask_arguments(arguments: list[str], secrets: tuple[str, ...] = ()) -> list[str]:
    """Masks a command line; also the value after `--api-token` or in `--api-token=...`."""
    shown: list[str] = []
    hide_next = False
    for argument in arguments:
        if hide_next and not (argument.startswith("--") and len(argument) > 2):
            shown.append(MASK)
        elif argument.startswith("--") and "=" in argument and is_secret_name(argument[2:].split("=", 1)[0]):
            shown.append(argument.split("=", 1)[0] + "=" + MASK)
        else:
            shown.append(mask_text(argument, secrets))
        hide_next = argument.startswith("--") and "=" not in argument and is_secret_name(argument[2:])
    return shown


def mask_broken(line: str) -> str:
    """Masks a line of a config file that does not parse: everything after the first secret name."""
    for name in re.finditer(r"[\w.-]+", line):
        if is_secret_name(name.group()):
            line = line[: name.end()] + "*" * (len(line) - name.end())
            break
    return mask_text(line)
