"""`Voice`: says lines to the user, and never a secret that it knows."""

from __future__ import annotations

import sys

from .errors import one_line, visible
from .secrets import longest_first, mask_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Voice:
    """The way by which one run speaks; hand `voice.say` down to whatever has something to say.

    Args:
        write: shows a message of one or more lines as it is; must not raise.
        secrets: values that are masked in every message (`secrets.secret_values` finds them).

    Attributes:
        secrets: these values, longest first.
    """

    def __init__(self, write: Callable[[str], None], secrets: Iterable[str] = ()) -> None:
        self._write = write
        self.secrets: tuple[str, ...] = ()
        self.hide(secrets)

    def hide(self, secrets: Iterable[str]) -> None:
        """Masks these values too, from now on, also for those who already hold `say`."""
        self.secrets = longest_first((*self.secrets, *secrets))

    def mask(self, text: str) -> str:
        """`text` without known secrets, logins in URLs and keys of well-known forms."""
        return mask_text(text, self.secrets)

    def say(self, message: str) -> None:
        """Shows a message, masked; what would control a terminal is spelled out."""
        self._write(visible(self.mask(message)))


def tell(line: str) -> None:
    """Says a line on standard error, from inside the user's process or a small command; never raises."""
    try:
        print(f"trainshed: {one_line(line)}", file=sys.stderr, flush=True)
    except (OSError, ValueError, AttributeError):  # closed, or None
        pass
