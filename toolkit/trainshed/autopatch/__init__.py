"""Hooks into other people's training loops, for jobs that ask for them (`trainshed_checkpoint=auto`).

The launcher puts `startup/` first on the script's PYTHONPATH; its `sitecustomize` calls `install`, which only remembers
what to do: a hook runs when, and if, its library is imported. Nothing is imported here but what Python has loaded anyway.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

# Library module -> the module of ours whose `install(module)` hooks into it. By name: nothing is imported before its time.
HOOKS = {
    "transformers.trainer": "trainshed.checkpoint.hf_trainer",
    "lightning.pytorch.trainer.trainer": "trainshed.checkpoint.lightning",
    "pytorch_lightning.trainer.trainer": "trainshed.checkpoint.lightning",
}


def install() -> None:
    """Waits for the libraries that we have hooks for."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing itself; adds the hook to what the others find."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's own spec, its loader wrapped; None for everything that has no hook."""
        if name not in HOOKS:
            return None
        for finder in sys.meta_path:
            if isinstance(finder, _Finder):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Loader(spec.loader, HOOKS[name])
                return spec
        return None


class _Loader(importlib.abc.Loader):
    """Another loader, and the hook afterwards."""

    def __init__(self, loader: importlib.abc.Loader, hook: str) -> None:
        self._loader, self._hook = loader, hook

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """As the other loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module, then the hook; a hook that fails leaves the library as it is, and says why."""
        self._loader.exec_module(module)
        try:
            importlib.import_module(self._hook).install(module)
        except Exception as error:
            say(f"{module.__name__} is left as it is: {type(error).__name__}: {error}")


def say(line: str) -> None:
    """One line on stderr, from the first rank only."""
    if os.environ.get("RANK", "0") == "0":
        print(f"trainshed: checkpoint=auto: {line}", file=sys.stderr, flush=True)
