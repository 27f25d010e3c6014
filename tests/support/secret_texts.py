"""Texts with a secret in them, written `what stands around <<the secret>> it`, and what masking makes of them."""

from __future__ import annotations

import json

from trainshed.base.secret_shapes import MASK
from trainshed.base.secrets import mask_bytes, mask_text, mask_value, to_bytes

A20, A36 = "a1B2c3D4e5F6g7H8i9J0", "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
HEX32, HEX40 = "0123456789abcdef" * 2, "0123456789" * 4
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"


def parts(text: str) -> tuple[str, str]:
    """(the whole text, the secret in it)."""
    before, _, rest = text.partition("<<")
    secret, _, after = rest.partition(">>")
    return before + secret + after, secret


def _shows(shown: str, secret: str) -> bool:
    """Whether any piece of a secret that is worth something is left."""
    return any(piece in shown for piece in secret.replace("\\n", " ").split() if len(piece) > 5) or secret in shown


def missed(secrets: list[str]) -> list[str]:
    """The texts whose secret is shown, with what was shown."""
    found = []
    for text, secret in map(parts, secrets):
        shown = mask_text(text)
        as_bytes = mask_bytes(to_bytes(text), ()).decode()
        within = json.dumps(mask_value({"note": [text]}), ensure_ascii=False)
        if _shows(shown, secret) or _shows(as_bytes, secret) or _shows(within, secret) or MASK not in shown:
            found.append(f"{text}  ->  {shown}")
    return found


def blanked(texts: list[str]) -> list[str]:
    """The texts in which something was masked, with what was shown."""
    changed = [text for text in texts if mask_text(text) != text or mask_bytes(to_bytes(text), ()) != to_bytes(text)]
    return [f"{text}  ->  {mask_text(text)}" for text in changed]
