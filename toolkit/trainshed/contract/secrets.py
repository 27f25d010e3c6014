"""What looks like a secret, and how it is shown: never."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

MASK = "******"
SHORTEST_SECRET = 4  # shorter values ("0", "yes") would blank out innocent text

# Patterns are strings, compiled by `re` when first used: a job without secrets never pays for them at start.
_SUSPECTS = ("secret", "passw", "passphrase", "token", "credential", "key", "auth")
_WORDS = "secret|password|passwd|passphrase|token|credential|private_?key|access_?key|api_?key|auth"
_SECRET_NAME = rf"(?i)(?:^|[^a-z])(?:{_WORDS})s?(?:$|[^a-z])"
# Names that carry such a word and are no secret: token counts, tokenizers, paths to them.
_HARMLESS = (
    r"(?i)tokeniz|(?:num|max|min|n|new|per|vocab|pad|eos|bos|unk|mask|sep|cls)_?tokens?"
    r"|tokens?_?(?:per|count|id|ids|size|length|type|embed)|author"
)
_CAMEL = r"(?<=[a-z0-9])(?=[A-Z])"
_URL_LOGIN = r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*://)(?P<login>[^/\s@'\"]+)@"
_KNOWN_PREFIXES = ("AKIA", "ASIA", "hf_", "gh", "sk-", "glpat-", "pypi-", "xox")
_KNOWN_FORMS = (
    r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bhf_[A-Za-z0-9]{20,}|\bgh[pousr]_[A-Za-z0-9]{20,}|\bsk-[A-Za-z0-9_-]{20,}"
    r"|\bglpat-[A-Za-z0-9_-]{20,}|\bpypi-[A-Za-z0-9_-]{40,}|\bxox[abprs]-[A-Za-z0-9-]{10,}"
)


def is_secret_name(name: str) -> bool:
    """Whether a hyperparameter or variable of this name should never be shown."""
    lower = name.lower()
    if not any(word in lower for word in _SUSPECTS):
        return False
    name = re.sub(_CAMEL, "_", name)
    return bool(re.search(_SECRET_NAME, re.sub(_HARMLESS, "", name)))


def mask_mapping(values: Mapping[str, Any]) -> dict[str, Any]:
    """A copy in which the values of secret names are masked and logins in URLs are blanked, at any depth."""
    return {
        key: MASK if is_secret_name(str(key)) and value not in ("", None) else _mask(value) for key, value in values.items()
    }


def _mask(value: Any) -> Any:
    if isinstance(value, dict):
        return mask_mapping(value)
    if isinstance(value, (list, tuple)):
        return [_mask(item) for item in value]
    return mask_text(value) if isinstance(value, str) else value


def secret_values(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The values of secret names, longest first: what `mask_text` is to blank out."""
    found = {str(value) for key, value in values.items() if is_secret_name(str(key)) and len(str(value)) >= SHORTEST_SECRET}
    return tuple(sorted(found, key=lambda value: (-len(value), value)))


def mask_text(text: str, secrets: tuple[str, ...] = ()) -> str:
    """`text` without the given secrets, without logins in URLs, without keys of well-known forms."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    if "://" in text:
        text = re.sub(_URL_LOGIN, rf"\g<scheme>{MASK}@", text)
    return re.sub(_KNOWN_FORMS, MASK, text) if any(prefix in text for prefix in _KNOWN_PREFIXES) else text


def mask_arguments(arguments: list[str], secrets: tuple[str, ...] = ()) -> list[str]:
    """A command line for showing: the value after `--api-token` (or in `--api-token=...`) is masked, too."""
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
