"""Hooks into the training loops of other libraries, for jobs that ask for them (`trainshed_checkpoint=auto`,
`trainshed_metrics=loggers`, `trainshed_profile=auto`, `trainshed_reduce`, the compiler).

The launcher puts `startup/` first on the script's PYTHONPATH and names the hooks in a variable; its `sitecustomize` calls
`install`, which only remembers what to do: a hook runs when, and if, its library is imported. This module imports only
what Python has already loaded.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys

from trainshed.contract.wire.variables import AUTOPATCH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

# Hook (the names in the variable) -> library module -> the module of ours whose `install(module)` hooks into it. By name:
# each is imported when it is needed.
HOOKS = {
    "checkpoint": {
        "transformers.trainer": "trainshed.checkpoint.hf_trainer",
        "lightning.pytorch.trainer.trainer": "trainshed.checkpoint.lightning",
        "pytorch_lightning.trainer.trainer": "trainshed.checkpoint.lightning",
    },
    "compile": {
        "torch.nn.modules.module": "trainshed.compiler.first_step",
        "torch._inductor.compile_fx": "trainshed.compiler.backend",
        "torch._inductor.codecache": "trainshed.compiler.headers",
        "torch._inductor.cpu_vec_isa": "trainshed.compiler.instructions",
    },
    "xla": {f"torch.optim.{name}": "trainshed.compiler.xla" for name in ("adagrad", "adam", "adamw", "sgd")},
    "metrics": {
        "transformers.trainer": "trainshed.metrics.loggers",
        "lightning.pytorch.trainer.trainer": "trainshed.metrics.loggers",
        "pytorch_lightning.trainer.trainer": "trainshed.metrics.loggers",
    },
    "reduce": {"torch.nn.parallel.distributed": "trainshed.parallel.data.ddp_hook"},
    "tensors": {"torch.optim.optimizer": "trainshed.studio.rules.collecting"},
    "probe": {"torch.optim.optimizer": "trainshed.compiler.batch_size"},
    "steps": {
        name: "trainshed.observe.stepping.hooks"
        for name in (
            "safetensors.torch",
            "torch.autograd",
            "torch.distributed.checkpoint.state_dict_saver",
            "torch.distributed.distributed_c10d",
            "torch.nn.parallel.distributed",
            "torch.distributed.fsdp._fully_shard._fsdp_param_group",
            "torch.optim.optimizer",
            "torch.serialization",
            "torch.utils.data.dataloader",
            "trainshed.checkpoint.checkpointer",
        )
    },
}
# The line that a hook's messages begin with.
_SIGNS = {"checkpoint": "checkpoint=auto", "metrics": "metrics=loggers", "reduce": "reduce", "steps": "profile=auto"}


def install() -> None:
    """Installs a finder that runs this job's hooks when their libraries are imported."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    chosen = [name for name in os.environ.get(AUTOPATCH, "").split(",") if name in HOOKS]
    if chosen:
        sys.meta_path.insert(0, _Finder(chosen))


class _Finder(importlib.abc.MetaPathFinder):
    """Wraps what the other finders find; finds nothing itself."""

    def __init__(self, chosen: Sequence[str]) -> None:
        self._hooks: dict[str, list[tuple[str, str]]] = {}
        for name in chosen:
            for library, ours in HOOKS[name].items():
                self._hooks.setdefault(library, []).append((name, ours))

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Returns the module's own spec with its loader wrapped; None for modules without a hook."""
        if name not in self._hooks:
            return None
        for finder in sys.meta_path:
            if isinstance(finder, _Finder):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Loader(spec.loader, self._hooks[name])
                return spec
        return None


class _Loader(importlib.abc.Loader):
    """Another loader; runs the hooks after it."""

    def __init__(self, loader: importlib.abc.Loader, hooks: list[tuple[str, str]]) -> None:
        self._loader, self._hooks = loader, hooks

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """As the other loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module, then the hooks; prints a line if a hook fails, and leaves the library unchanged."""
        self._loader.exec_module(module)
        for name, hook in self._hooks:
            try:
                importlib.import_module(hook).install(module)
            except Exception as error:
                say(name, f"{module.__name__} is left unchanged: {type(error).__name__}: {error}")


def say(hook: str, line: str) -> None:
    """Prints one line on stderr, on rank 0 only."""
    if os.environ.get("RANK", "0") == "0":
        from trainshed.base.voice import tell

        tell(f"{_SIGNS.get(hook, 'compiler')}: {line}")
