"""Installs the hooks of a job. Python runs this file at its start; the launcher puts its folder on PYTHONPATH.

Python runs only one `sitecustomize`, so this file first runs the one that it hides (the user's or the distribution's).
"""

from __future__ import annotations


def _run_the_hidden_one() -> None:
    import importlib.machinery
    import importlib.util
    import os
    import sys

    here = os.path.dirname(os.path.abspath(__file__))
    elsewhere = [path for path in sys.path if os.path.abspath(path or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _install() -> None:
    import sys

    try:
        from trainshed import autopatch
    except ImportError as error:
        print(f"trainshed: the hooks of this job cannot be installed: {error}", file=sys.stderr)
        return
    autopatch.install()


try:
    _run_the_hidden_one()
finally:
    _install()
