"""Has a rank of torchrun's agent leave its exception where the agent looks for it, as `@record` would, and end with it: the
agent ends with `train`, however that ends, and would leave its ranks behind.

Python imports `sitecustomize` at its start; this folder is on PYTHONPATH of jobs with `trainshed_engine=torchrun`. Only the
rank itself writes, not what it starts. A `sitecustomize` of the user's is run as if this one were not there. It never raises
but to say that there is no other one. The file's form: torch.distributed.elastic.multiprocessing.errors.ErrorHandler.
"""

import os
import sys


def _install() -> None:
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    agent = os.environ.get(_agent_variable())
    if agent != str(os.getppid()):
        return
    _end_with(int(agent))
    shown = sys.excepthook

    def leave(kind, value, trace) -> None:  # type: ignore[no-untyped-def]
        try:
            import json
            import time
            import traceback

            if not os.path.exists(path) and not issubclass(kind, (SystemExit, KeyboardInterrupt)):
                lines = "".join(traceback.format_exception(kind, value, trace))
                extra = {"py_callstack": lines, "timestamp": str(int(time.time()))}
                with open(path, "w") as file:
                    json.dump({"message": {"message": f"{kind.__name__}: {value}", "extraInfo": extra}}, file)
        except Exception:  # the exception itself matters more
            pass
        shown(kind, value, trace)

    sys.excepthook = leave


def _agent_variable() -> str:
    """The variable that holds the agent's process id, by the file's path: this Python may not have trainshed installed."""
    names: dict = {}
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "..", "..", "..", "contract", "wire", "variables.py")) as file:
        exec(file.read(), names)
    return names["AGENT_PID"]


def _end_with(parent: int) -> None:
    """SIGKILL when the parent dies."""
    import ctypes
    import signal

    ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG of <linux/prctl.h>
    if os.getppid() != parent:  # it died before that
        os.kill(os.getpid(), signal.SIGKILL)


def _step_aside() -> None:
    """Imports the module that would have been imported without this one; an ImportError where there is none, as always."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if folder != here]
    del sys.modules["sitecustomize"]
    import sitecustomize  # noqa: F401 (the next one on the path)


try:
    _install()
except Exception:  # never the reason why a program does not start
    pass
_step_aside()
