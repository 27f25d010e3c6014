"""Runs a script of the Training Compiler's contract: `python -m trainshed.compiler.mp_fn SCRIPT [ARGUMENT ...]`.

A script that defines `_mp_fn(index)` is imported, and the function is called in each process: by torch_xla's own launcher
on XLA, which starts a process for each chip, else once in each rank that torchrun's launcher has started, with its local
rank. A script without it is run as it is.
"""

from __future__ import annotations

import ast
import importlib
import os
import runpy
import sys

from trainshed.contract.wire.compile_plan import plan_of

from .messages import local_rank, say

NAME = "_mp_fn"


def defines_mp_fn(path: str) -> bool:
    """Returns whether the script has a function of this name at its top level, defined or imported."""
    with open(path, "rb") as file:
        tree = ast.parse(file.read(), path)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == NAME:
            return True
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            if any((alias.asname or alias.name) == NAME for alias in node.names):
                return True
        elif isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == NAME for target in node.targets
        ):
            return True
    return False


def main() -> None:
    """The command; its exit status is the script's."""
    script, *arguments = sys.argv[1:]
    sys.argv = [script, *arguments]
    folder, file = os.path.split(os.path.abspath(script))
    sys.path[0] = folder  # as Python itself does for a script
    plan = plan_of(os.environ)
    on_xla = plan is not None and plan.backend == "xla" and "RANK" not in os.environ
    if not defines_mp_fn(script):
        if on_xla and os.environ.get("PJRT_DEVICE") == "TPU":
            say(f"{script} has no {NAME}(index): it runs in one process, on one chip")
        runpy.run_path(script, run_name="__main__")
        return
    name = os.path.splitext(file)[0]
    function = getattr(importlib.import_module(name), NAME)
    if not on_xla:
        function(local_rank())
        return
    import torch_xla

    torch_xla.launch(function)


if __name__ == "__main__":
    main()
