"""The training compiler as data: what a job asks for, and what `train` passes to its ranks."""

from __future__ import annotations

from trainshed.base import quick_json
from trainshed.base.record import Record

from .variables import COMPILE_PLAN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

BACKENDS = ("auto", "inductor", "xla", "neuron", "off")
# torch.compile's own.
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
SWITCHES = ("auto", "on", "off")

# The platform's names (SageMaker Training Compiler, ended 2023): sent by `TrainingCompilerConfig(enabled, debug)`.
ENABLED = "sagemaker_training_compiler_enabled"
DEBUG = "sagemaker_training_compiler_debug_mode"


class CompilerRequest(Record):
    """The job's request to the compiler.

    backend: one of `BACKENDS`, "" if the job does not ask for one.
    asked_by: the hyperparameter or variable that says so.
    debug: whether the compiler writes a log.
    mode, regional, dynamic: `settings.Settings` explains them.
    """

    backend: str = ""
    asked_by: str = ""
    debug: bool = False
    mode: str = "default"
    regional: str = "auto"
    dynamic: str = "auto"

    @property
    def on(self) -> bool:
        """Tells whether anything is to be compiled."""
        return self.backend not in ("", "off")


class CompilePlan(Record):
    """The plan of what the ranks compile and how, passed in the variable `COMPILE_PLAN`.

    backend: `inductor` or `xla`.
    host: this host's name, for reports.
    report: folder for the ranks' reports, `<host>.rank<rank>.json`.
    live: folder of the compile cache on local disk, "" for none.
    store: file that keeps the cache between runs, "" for none.
    keeper: whether this host writes `store` (otherwise only where it is missing).
    headers: whether ranks precompile C++ headers where the cache is empty.
    """

    backend: str
    mode: str = "default"
    regional: str = "auto"
    dynamic: str = "auto"
    debug: bool = False
    host: str = ""
    report: str = ""
    live: str = ""
    store: str = ""
    keeper: bool = True
    headers: bool = False

    def to_text(self) -> str:
        """The variable's value."""
        return quick_json.dumps(self.plain(), sort_keys=True, separators=(",", ":"))


def plan_of(environ: Mapping[str, str]) -> CompilePlan | None:
    """Returns the plan in a rank's environment, None if it is absent or unreadable."""
    try:
        value = quick_json.loads(environ.get(COMPILE_PLAN) or "null")
        return CompilePlan(**value) if isinstance(value, dict) else None
    except (ValueError, TypeError):
        return None
