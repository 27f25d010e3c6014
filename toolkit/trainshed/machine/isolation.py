"""Keeps the user's modules out of our own interpreters: PYTHONPATH, the working folder, `--user` packages.

Those come last on our search path, after Python's own modules and the packages beside trainshed: a `json.py` of the
user's cannot stand for Python's, while a library that only PYTHONPATH has (boto3) is still found. What `train` starts
for the user has the user's own environment, and is not touched.

Run by its path, this file starts a module isolated, and ours from the trainshed that it is a part of:
`python -I .../isolation.py trainshed.container.main --dry-run`.
"""

from __future__ import annotations

import os
import sys


def isolated(module: str, *arguments: str, python: str = "") -> list[str]:
    """The command line that runs a module as `python -m` does, but where the user's modules come last.

    python: the interpreter, "" for this one.
    """
    options = "-IB" if sys.dont_write_bytecode else "-I"
    return [python or sys.executable, options, os.path.abspath(__file__), module, *arguments]


def isolate() -> None:
    """Moves the user's folders to the end of this interpreter's search path, or adds them there (`python -I`)."""
    given = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    theirs = [os.path.abspath(folder) for folder in given] if has_folder() else given
    if user := _user_packages():
        theirs.append(user)
    out = {"", *given, *theirs, *([os.getcwd()] if has_folder() else ())}
    sys.path[:] = [*(folder for folder in sys.path if folder not in out), *dict.fromkeys(theirs)]


def has_folder() -> bool:
    """Returns whether the working folder still exists."""
    try:
        os.getcwd()
    except OSError:
        return False
    return True


def _user_packages() -> str:
    """The folder of `pip install --user`, "" where this Python does not have it."""
    site = sys.modules.get("site")  # there unless Python was started with -S
    if site is None or sys.prefix != sys.base_prefix or os.environ.get("PYTHONNOUSERSITE"):
        return ""
    folder = site.getusersitepackages()
    return folder if os.path.isdir(folder) else ""


def _start() -> None:
    """Loads trainshed from where this file is, and runs the module that the first argument names."""
    import runpy
    from importlib.util import module_from_spec, spec_from_file_location

    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    spec = spec_from_file_location("trainshed", f"{package}/__init__.py", submodule_search_locations=[package])
    assert spec is not None and spec.loader is not None
    sys.modules["trainshed"] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    isolate()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _start()
