"""Precompiled C++ headers of inductor: made where the compile cache is empty, used wherever they are already.

On a CPU inductor compiles a library for each kernel, and most of that time goes into torch's headers. Precompiling them
takes longer than compiling one kernel, and inductor does it, or asks whether it is done, even where every kernel is in the
cache: that would be most of a warm start. They are large (150 MB), so they are not kept with the cache. Hence:

    empty cache        a cold start: the first process makes them, the others of this host wait and use them
    headers are here   used, without asking what they were made from: the cache's folder is for one torch and one CPU
    otherwise          (a new container with a filled cache) what is missing is compiled without them

With many compiling threads all kernels of a small network are compiled at once, before the headers would be ready: there a
cold start makes none either.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import os
import shutil
import threading

from trainshed.base.files import remove, write_atomic
from trainshed.contract.wire.compile_cache import HEADERS
from trainshed.contract.wire.compile_plan import plan_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# torch's variable for whether inductor precompiles its C++ headers. A user's own choice stays.
VARIABLE = "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"
ROOM = 1 << 30  # bytes that have to be free on the disk before headers are made
THREADS = 4  # making them takes as long as three kernels without, one after the other
_GRAPHS = "fxgraph"  # inductor's folder of compiled graphs, in the live cache


def install(module: Any) -> None:
    """Hooks into `torch._inductor.codecache`; in versions that do this otherwise, no headers are precompiled."""
    plan = plan_of(os.environ)
    if plan is None or VARIABLE in os.environ:
        return
    make = getattr(module, "_precompile_header", None)
    if plan.live and callable(make) and hasattr(module, "_HEADER_DIR") and hasattr(module, "_HEADER_LOCK_DIR"):
        # inductor's own switch stays on: it is a part of the names of all that is in the cache.
        pays = plan.headers and (getattr(module.config, "compile_threads", None) or 1) <= THREADS
        cold = pays and not os.path.exists(f"{plan.live}/{_GRAPHS}") and _has_room(plan.live)
        module._precompile_header = Headers(module, make, plan.live, cold).path
    elif hasattr(module.config, "cpp_cache_precompile_headers"):
        module.config.cpp_cache_precompile_headers = False


def _has_room(live: str) -> bool:
    try:
        return shutil.disk_usage(live).free >= ROOM
    except OSError:
        return False


class Headers:
    """The precompiled headers in one live folder.

    Args:
        module: `torch._inductor.codecache`, whose variables say where headers are put.
        make: its `_precompile_header`, which returns the path to include.
        cold: whether headers that are missing are made.
    """

    def __init__(self, module: Any, make: Callable[..., str], live: str, cold: bool) -> None:
        self._module, self._make, self._live, self._cold = module, make, live, cold
        self._lock = threading.Lock()

    def path(self, header: str, command: str, **options: Any) -> str:
        """The header to include in front of code that is compiled by this command; "" for nothing."""
        name = hashlib.sha256(f"{header}\n{command}".encode()).hexdigest()[:32]
        folder = f"{self._live}/{HEADERS}/{name}"
        with self._lock:
            found = _whole(folder)
            if found or not self._cold:
                return found
            try:
                os.makedirs(folder, exist_ok=True)
                with open(f"{folder}/lock", "ab") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX)
                    return _whole(folder) or self._made(folder, header, command, options)
            except Exception:  # whatever torch raises; a compiler that does not work is told with the first kernel
                self._cold = False
                return ""

    def _made(self, folder: str, header: str, command: str, options: dict[str, Any]) -> str:
        for name in (*glob.glob(f"{folder}/*.gch"), *glob.glob(f"{folder}/*.pch")):
            remove(name)  # a compiler that was killed leaves a part of its output, which would be taken for whole
        self._module._HEADER_DIR, self._module._HEADER_LOCK_DIR = folder, f"{folder}/locks"
        path = self._make(header, command, **options)
        write_atomic(f"{folder}/whole", path)
        return path


def _whole(folder: str) -> str:
    """The header in this folder, "" where it is not finished or not there any more."""
    try:
        with open(f"{folder}/whole", encoding="utf-8") as file:
            path = file.read()
    except OSError:
        return ""
    return path if os.path.isfile(path) else ""
