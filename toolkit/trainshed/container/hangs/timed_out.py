"""Lines that ranks print when a collective has timed out: they have given up waiting for another rank.

torch 2.9 to 2.13, with gloo and NCCL.
"""

from __future__ import annotations

import re

# A rank did not come to a collective.
COLLECTIVE = r"Watchdog caught collective operation timeout|Timed out waiting \d+ms for (?:recv|send) operation"
# A rank did not come to the start of a process group.
MEETING = r"[Tt]imed out after \d+ seconds waiting for clients|wait timeout after \d+ms, keys"
_WORDS = re.compile(f"{COLLECTIVE}|{MEETING}".encode())


def gave_up(lines: bytes) -> bool:
    """Returns whether a rank that prints this has waited for another one in vain."""
    return _WORDS.search(lines) is not None
