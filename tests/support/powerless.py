"""Root without its power over files, which tests of permissions need."""

from __future__ import annotations

import ctypes
import os

PR_CAPBSET_DROP = 24  # <linux/prctl.h>
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2  # <linux/capability.h>
_LIBC = ctypes.CDLL(None, use_errno=True)


def heed_permissions() -> None:
    """Between fork and exec: takes away root's power to read and write whatever it likes; nothing for other users."""
    if os.geteuid() == 0:
        for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
            if _LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
                raise OSError(ctypes.get_errno(), "prctl")
