"""Remembers which vector instructions inductor has found to work, with the code that it compiled for them.

For each set of instructions inductor compiles a small library, with torch's headers precompiled first, and has a new Python
import torch to load it: seconds of CPU in every new container, warm or not. The compile cache is for one CPU, one torch and
one Python, so what worked once works again; a mark says so, and travels with the cache.
"""

from __future__ import annotations

import functools
import hashlib
import os

from trainshed.contract.wire.compile_plan import plan_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FOLDER = "instructions"  # of the live cache


def install(module: Any) -> None:
    """Hooks into `torch._inductor.cpu_vec_isa`; versions that ask otherwise are left alone."""
    plan = plan_of(os.environ)
    check = getattr(getattr(module, "VecISA", None), "check_build", None)
    if plan is not None and plan.live and callable(check):
        module.VecISA.check_build = remembered(check, plan.live)


def remembered(check: Any, live: str) -> Any:
    """`check_build`, which is not asked again about instructions that worked where this cache was made."""

    @functools.wraps(check)
    def works(self: Any, code: str) -> bool:
        name = hashlib.sha256(f"{self} {self.build_arch_flags()} {code}".encode()).hexdigest()[:32]
        mark = f"{live}/{FOLDER}/{name}"
        if os.path.exists(mark):
            return True
        good = bool(check(self, code))
        if good:
            try:
                os.makedirs(os.path.dirname(mark), exist_ok=True)
                open(mark, "w").close()
            except OSError:
                pass
        return good

    return works
