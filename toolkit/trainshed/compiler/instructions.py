"""Remembers which vector instructions inductor has found to work, with the code that it compiled for them.

For each set of instructions inductor compiles a small library and has a new Python import torch to load it: seconds of CPU
at every start, warm or not. The compile cache is for one CPU, one torch and one Python, so what could be loaded once can be
loaded again; a mark beside the library says so, and travels with the cache.
"""

from __future__ import annotations

import functools
import os

from trainshed.contract.compiler import plan_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MARK = ".loads"


def install(module: Any) -> None:
    """Hooks into `torch._inductor.cpu_vec_isa`; versions that ask otherwise are left alone."""
    plan = plan_of(os.environ)
    probe = getattr(getattr(module, "VecISA", None), "_probe_load", None)
    if plan is not None and plan.live and callable(probe):
        module.VecISA._probe_load = remembered(probe, plan.live)


def remembered(probe: Any, live: str) -> Any:
    """`_probe_load`, which is not asked again about a library of the live cache that could be loaded."""

    @functools.wraps(probe)
    def loads(self: Any, output_path: str) -> bool:
        mark = f"{output_path}{MARK}"
        ours = os.path.realpath(output_path).startswith(f"{os.path.realpath(live)}/")
        if ours and os.path.exists(mark):
            return True
        good = bool(probe(self, output_path))
        if good and ours:
            try:
                open(mark, "w").close()
            except OSError:
                pass
        return good

    return loads
