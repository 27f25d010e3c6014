"""Finds what looks like a secret, and masks it: by the name it goes by, by its form, and by its value in any text.

What is masked by value, once `secret_values` has found it (docs/threat-model.md, "Secrets"):

    8 characters or more       wherever they stand
    4 to 7                     likewise; a plain word or number of that length only where it stands alone: the password
                               `tiger` must not take `tigers` with it, nor the pin 1234 a step 12345
    fewer than 4               nowhere: blanking "0" or "yes" out would leave nothing to read
    a common word, or a name   nowhere: `true`, `train`, `admin`, a name of the same mapping. Blanking those hides nothing
    several lines              as a whole, and each line on its own by the rules above

Each in the spellings that logs and our own files have: as it is, in JSON (and in JSON inside JSON), as Python and a shell
quote it, and as it stands in a URL.
"""

from __future__ import annotations

import itertools
import os

from . import quick_json
from .secret_signs import MASK as MASK
from .secret_signs import SUSPECTS, block_has_signs, has_signs, is_suspect

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from typing import Any, AnyStr

SHORTEST_SECRET = 4
LONG_ENOUGH = 8  # characters: from here on a word, too, is masked wherever it stands
LONG_LOGIN = 16  # characters: so long a user in a URL is a token
# Words that jobs are full of, and passwords that everybody knows.
_COMMON = frozenset({
    "true", "false", "none", "null", "auto", "default", "train", "training", "test", "testing",
    "eval", "validation", "model", "models", "data", "input", "output", "script", "main",
    "python", "local", "localhost", "host", "admin", "administrator", "root", "user", "guest",
    "password", "passwd", "secret", "token", "login", "anonymous", "postgres", "mysql", "redis",
    "mongo", "example", "changeme", "public", "private", "completed", "failed", "stopped",
})  # fmt: skip

# Variables that most environments have, as `secret_words` judges them.
_JUDGED = {
    "PWD": False, "OLDPWD": False, "GPG_KEY": True, "SSH_AUTH_SOCK": False,
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": True, "AWS_CONTAINER_CREDENTIALS_FULL_URI": True,
    "AWS_ACCESS_KEY_ID": True, "AWS_SECRET_ACCESS_KEY": True, "AWS_SESSION_TOKEN": True,
}  # fmt: skip
_URL_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~")


# --- by name ----------------------------------------------------------------------------------------------------------


def new_token() -> str:
    """A random secret of 256 bits, as text."""
    return os.urandom(32).hex()


def is_secret_name(name: str) -> bool:
    """Returns whether the value of a hyperparameter or variable of this name must not be shown."""
    if name in _JUDGED or not is_suspect(name):
        return _JUDGED.get(name, False)
    from . import secret_words  # for suspects alone: `re` takes long to load

    return secret_words.is_secret_name(name)


def _shapes_masked(text: str) -> str:
    """A text that has signs of a secret, with all masked that has the shape of one."""
    from .secret_shapes import mask_shapes

    return mask_shapes(text)


def mask_mapping(values: Mapping[str, Any], secrets: tuple[str, ...] = ()) -> dict[str, Any]:
    """A copy in which the values of secret names, the given secrets and logins in URLs are masked, at any depth.

    Names stay as they are. Text that holds JSON is masked inside.
    """
    hidden = _named_beside(values)
    return {
        key: MASK if (is_secret_name(str(key)) or key == hidden) and value not in ("", None) else mask_value(value, secrets)
        for key, value in values.items()
    }


def _named_beside(values: Mapping[str, Any]) -> str | None:
    """The key of the secret in `{"name": "API_KEY", "value": ...}`, as Kubernetes and others write variables."""
    fields = {str(key).lower(): key for key in values}
    name = next((values[fields[word]] for word in ("name", "key", "parameterkey") if word in fields), None)
    value = fields.get("value", fields.get("parametervalue"))
    return value if isinstance(name, str) and is_secret_name(name) else None


def _named_before(items: Sequence[Any]) -> set[int]:
    """Which items of a list are secrets by the one before: `["--api-key", ...]`, and the pair `("api_key", ...)`."""
    pair = len(items) == 2
    return {
        at
        for at, (before, item) in enumerate(itertools.pairwise(items), 1)
        if isinstance(before, str) and isinstance(item, (str, int)) and (pair or before.startswith("-"))
        if is_secret_name(before.lstrip("-")) and "=" not in before and not str(item).startswith("-")
        if before.startswith("-") or not is_secret_name(str(item))
    }


def mask_value(value: Any, secrets: tuple[str, ...] = ()) -> Any:
    """`mask_mapping` for one value of any kind that JSON has."""
    if isinstance(value, dict):
        return mask_mapping(value, secrets)
    if isinstance(value, (list, tuple)):
        hidden = _named_before(value)
        return [MASK if at in hidden and item else mask_value(item, secrets) for at, item in enumerate(value)]
    if isinstance(value, str):
        inside = _json_inside(value)
        if inside is not None:
            masked = mask_value(inside, secrets)
            if masked != inside:
                import json

                return json.dumps(masked, ensure_ascii=False)
        return mask_text(value, secrets)
    if secrets and isinstance(value, (int, float)) and str(value) in secrets:
        return MASK
    return value


def mask_leaves(value: Any, secrets: tuple[str, ...] = ()) -> Any:
    """A copy of a JSON value in which every text is masked by value (`mask_text`), names and numbers left as they are."""
    if isinstance(value, dict):
        return {key: mask_leaves(item, secrets) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [mask_leaves(item, secrets) for item in value]
    return mask_text(value, secrets) if isinstance(value, str) else value


def _json_inside(value: str) -> Any:
    """The list or mapping that a text holds as JSON, where that could hold a secret; else None."""
    if value[:1] not in ("{", "[") or not any(word in value.lower() for word in SUSPECTS):
        return None
    try:
        return quick_json.spelled(value)
    except (ValueError, RecursionError):
        return None


# --- by value ---------------------------------------------------------------------------------------------------------


def secret_values(values: Mapping[str, Any], names: Collection[str] = ()) -> tuple[str, ...]:
    """The texts that `mask_text` masks, longest first: the values of secret names (and of those in `names`) at any depth.

    Of each value all spellings, and each of its lines; logins in URLs whatever the name.
    """
    found: set[str] = set()
    known: set[str] = set()
    for key, value in values.items():
        known.add(str(key).lower())
        _collect(value, is_secret_name(str(key)) or key in names, found, known)
    spelled = {spelling for value in found if value.lower() not in known for spelling in _spellings(value)}
    return longest_first(spelling for spelling in spelled if spelling.lower() not in known)


def longest_first(secrets: Iterable[str]) -> tuple[str, ...]:
    """Without repeats, in the order in which they are to be masked: one may contain another."""
    return tuple(sorted({*secrets}, key=lambda value: (-len(value), value)))


def _collect(value: Any, secret: bool, found: set[str], known: set[str]) -> None:
    if isinstance(value, dict):
        beside = _named_beside(value)
        for key, item in value.items():
            known.add(str(key).lower())
            _collect(item, secret or is_secret_name(str(key)) or key == beside, found, known)
    elif isinstance(value, (list, tuple)):
        hidden = _named_before(value)
        for at, item in enumerate(value):
            _collect(item, secret or at in hidden, found, known)
    elif isinstance(value, str):
        if secret:
            found.add(value)
        if "@" in value and "://" in value:
            found.update(_logins(value))
        inside = _json_inside(value)
        if inside is not None:
            _collect(inside, secret, found, known)
    elif secret and value is not None and not isinstance(value, bool):
        found.add(str(value))


def _logins(text: str) -> Iterator[str]:
    """The passwords of URLs, and users that are tokens; also as the server sees them."""
    import re

    from .secret_shapes import URL_LOGIN

    for match in re.finditer(URL_LOGIN, text):
        user, colon, password = match["login"].partition(":")
        for part in (password if colon else "", user if len(user) >= LONG_LOGIN else ""):
            yield part
            if "%" in part:
                from urllib.parse import unquote

                yield unquote(part)


def _spellings(value: str) -> set[str]:
    """A secret and each of its lines, as they may stand in text."""
    lines = value.replace("\r", "\n").split("\n")
    pieces = {value, *(line.strip() for line in lines)} if len(lines) > 1 else {value}
    found: set[str] = set()
    for piece in pieces:
        if not _is_worth_masking(piece):
            continue
        found.add(piece)
        if not piece.isalnum() or not piece.isascii():
            escaped = quick_json.dumps(piece)[1:-1]
            found |= {escaped, quick_json.dumps(escaped)[1:-1], repr(piece)[1:-1]}
            if not piece.isascii():
                import json

                found.add(json.dumps(piece, ensure_ascii=False)[1:-1])
            found |= {piece.replace("'", "'\"'\"'"), _quoted(piece), _quoted(piece, "/"), _quoted(piece, "/", plus=True)}
    return found


def _is_worth_masking(value: str) -> bool:
    """Whether blanking a value out hides something, and leaves a log that can be read."""
    if len(value) < SHORTEST_SECRET or value.lower() in _COMMON:
        return False
    if value.startswith("-----") and value.endswith("-----"):  # the frame of a key in a file
        return False
    return value[0].isalnum() or value.strip(value[0]) != ""  # not a rule like ======


def _quoted(value: str, safe: str = "", plus: bool = False) -> str:
    """As in a URL (`urllib.parse.quote`, which `train` need not load for this)."""
    kept = _URL_SAFE | set(safe.encode())
    text = "".join(chr(byte) if byte in kept else f"%{byte:02X}" for byte in to_bytes(value))
    return text.replace("%20", "+") if plus else text


def to_bytes(text: str) -> bytes:
    """UTF-8; bytes that a variable or a file name had and that are not UTF-8 come back as they were."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def mask_text(text: str, secrets: tuple[str, ...] = ()) -> str:
    """Masks the given secrets, and whatever has the shape of one (`secret_shapes`)."""
    for secret in secrets:
        if secret in text:
            text = _blank(text, secret, MASK)
    if has_signs(text):
        text = _shapes_masked(text)
    return text if text.isascii() else _mask_wide(text)


def mask_bytes(data: bytes, secrets: tuple[bytes, ...]) -> bytes:
    """The same for bytes that need not be text: what hosts and ranks print, in bulk."""
    for secret in secrets:
        if secret in data:
            data = _blank(data, secret, MASK.encode())
    if block_has_signs(data):
        data = to_bytes(_shapes_masked(data.decode("utf-8", "surrogateescape")))
    if data.isascii() or (b"\xef\xbc" not in data and b"\xef\xbd" not in data):
        return data
    return to_bytes(_mask_wide(data.decode("utf-8", "surrogateescape")))


def _mask_wide(text: str) -> str:
    """Masks what is a secret when full-width letters are read as those of ASCII; a text without one stays as it is."""
    import re

    if not re.search("[\uff01-\uff5e]", text):
        return text
    from .secret_shapes import narrow

    plain = narrow(text)
    masked = _shapes_masked(plain) if has_signs(plain) else plain
    return text if masked == plain else masked


def _blank(text: AnyStr, secret: AnyStr, mask: AnyStr) -> AnyStr:
    plain = secret.isalpha() or (secret.isalnum() and secret.isdigit())
    if len(secret) >= LONG_ENOUGH or not plain:
        return text.replace(secret, mask)
    import re

    before, after = r"(?<![A-Za-z0-9_])", r"(?![A-Za-z0-9_])"
    if isinstance(secret, bytes):
        return re.sub(before.encode() + re.escape(secret) + after.encode(), mask, text)
    return re.sub(before + re.escape(secret) + after, mask, text)


# --- in special places ------------------------------------------------------------------------------------------------


def mask_arguments(arguments: list[str], secrets: tuple[str, ...] = ()) -> list[str]:
    """Masks a command line; also the value after `--api-token`, and in `--api-token=...` and `api_token=...`."""
    shown: list[str] = []
    hide_next = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if hide_next and not (argument.startswith("--") and len(argument) > 2):
            shown.append(MASK)
        elif equals and _is_plain_name(name.lstrip("-+")) and is_secret_name(name):
            shown.append(f"{name}={MASK}")
        else:
            shown.append(str(mask_value(argument, secrets)))
        hide_next = argument.startswith("--") and not equals and is_secret_name(argument[2:])
    return shown


def _is_plain_name(text: str) -> bool:
    return all(part.isidentifier() for part in text.replace("-", ".").split("."))


def mask_broken(line: str) -> str:
    """Masks a line of a config file that does not parse: everything after the first secret name."""
    import re

    for name in re.finditer(r"[\w.-]+", line):
        if is_secret_name(name.group()):
            line = line[: name.end()] + "*" * (len(line) - name.end())
            break
    return mask_text(line)
