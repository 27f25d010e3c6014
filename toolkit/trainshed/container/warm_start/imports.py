"""Imports what a script imports first, and watches what that depends on.

Lives in an interpreter of the user's that has just begun (`template`): imports nothing that Python has not loaded by then.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType, ModuleType
    from typing import Any

_MOST_RENEWALS = 20
EVERYTHING = "*"  # among the names that were read: the whole environment
_ONLY_AST = 0x400  # ast.PyCF_ONLY_AST; `ast` itself is for the script to load
# These look through the whole environment for names that begin so, and at no others. Ours reads more, and anew in each rank.
_BY_PREFIX = {"tqdm.utils": "TQDM_", "fsspec.config": "FSSPEC_", "trainshed.observe.stepping.hooks": "TRAINSHED"}
_ABOVE = frozenset(("os", "collections.abc", "_collections_abc", None))
_OF_ONE = frozenset(("__getitem__", "__setitem__", "__delitem__"))


class ImportWatch:
    """Watches, from construction to `end`, what imports depend on besides their files.

    reads: variables that were read or set, `EVERYTHING` for all.
    unseeded: generators of `random.Random` that were seeded by the system.
    programs: how many programs were started.
    """

    def __init__(self) -> None:
        self.reads: set[str] = set()
        self.unseeded: list[Any] = []
        self.programs = 0
        self._undo: list[Callable[[], None]] = []
        self._seeded: dict[str, Callable[[], bool]] = {}  # whether a module's generator is not as the module has made it
        self._finder = _Finder(
            {
                "random": self._watch_random,
                "subprocess": self._watch_programs,
                "numpy.random": lambda module: self._watch_state(module, lambda: _numpys_state(module)),
                "torch": lambda module: self._watch_state(module, lambda: _torchs_state(module)),
            }
        )
        sys.meta_path.insert(0, self._finder)  # type: ignore[arg-type]
        self._watched = _watched(self.reads)
        for environment in (os.environ, os.environb):
            environment.__class__ = self._watched

    def end(self) -> None:
        """Leaves everything as it was."""
        for environment in (os.environ, os.environb):
            environment.__class__ = self._watched.__mro__[1]
        sys.meta_path.remove(self._finder)  # type: ignore[arg-type]
        for undo in self._undo:
            undo()

    def seeded(self) -> list[str]:
        """Returns the modules whose generators others have seeded, or may have: ranks seed them anew."""
        return [name for name, seeded in self._seeded.items() if seeded()]

    def _watch_state(self, module: ModuleType, state: Callable[[], Any]) -> None:
        before = state()
        self._seeded[module.__name__] = lambda: state() != before

    def _watch_random(self, module: Any) -> None:
        before = module.getstate()
        self._seeded["random"] = lambda: not _only_drawn(module, before)
        original = module.Random.seed

        def seed(generator: Any, a: Any = None, version: int = 2) -> None:
            self.unseeded[:] = [one for one in self.unseeded if one is not generator]
            if a is None:
                self.unseeded.append(generator)
            original(generator, a, version)

        module.Random.seed = seed
        self._undo.append(lambda: setattr(module.Random, "seed", original))

    def _watch_programs(self, module: ModuleType) -> None:
        original = module.Popen._execute_child

        def execute(popen: Any, *arguments: Any) -> None:
            self.programs += 1
            if arguments[6] is None:  # its `env`: it gets all of ours
                self.reads.add(EVERYTHING)
            original(popen, *arguments)

        module.Popen._execute_child = execute  # type: ignore[attr-defined]
        self._undo.append(lambda: setattr(module.Popen, "_execute_child", original))


class _Finder:
    """First on `sys.meta_path`: has a function look at a module when that has been imported."""

    def __init__(self, actions: dict[str, Callable[[ModuleType], None]]) -> None:
        self._actions = actions
        for name in sys.modules.keys() & actions.keys():
            actions.pop(name)(sys.modules[name])

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Returns the module's own spec with its loader watched; None for most modules."""
        action = self._actions.pop(name, None)
        spec = find_spec(name, path) if action is not None else None
        if spec is not None and spec.loader is not None:
            loader, run = spec.loader, spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                del loader.exec_module
                run(module)
                action(module)  # type: ignore[misc]

            loader.exec_module = exec_module
        return spec


def _numpys_state(module: Any) -> tuple[bytes, int]:
    _, key, position, *_ = module.get_state()
    return key.tobytes(), position


def _torchs_state(module: Any) -> list[int]:
    state: list[int] = module.default_generator.get_state().tolist()
    return state


def _only_drawn(module: Any, before: Any) -> bool:
    """Whether Python's generator is where some draws lead from a state; it is renewed after so many numbers."""
    now, twin = module.getstate(), module.Random()
    twin.setstate(before)
    for _ in range(_MOST_RENEWALS):
        if twin.getstate()[1][:-1] == now[1][:-1]:
            return True
        for _ in now[1][:-1]:
            twin.getrandbits(32)
    return False


def find_spec(name: str, path: Any = None) -> Any:
    """Returns the spec of a module that has not been imported; None where there is none."""
    return sys.modules["_frozen_importlib"]._find_spec(name, path)  # type: ignore[attr-defined]


def _watched(reads: set[str]) -> Any:
    """A class for `os.environ` that notes which variables are read or set."""

    class Watched(type(os.environ)):  # type: ignore[misc]
        @property
        def _data(self) -> Any:  # what every method of the class goes through
            frame = sys._getframe(1)
            name = frame.f_locals["key"] if frame.f_code.co_name in _OF_ONE else EVERYTHING
            name = os.fsdecode(name) if isinstance(name, (str, bytes)) else EVERYTHING
            if name.startswith(_prefix(frame)):
                reads.add(name)
            return self.__dict__["_data"]

    return Watched


def _prefix(frame: FrameType | None) -> str:
    """What the names begin with that the code above `os.environ` looks for."""
    while frame is not None and frame.f_globals.get("__name__") in _ABOVE:
        frame = frame.f_back
    return _BY_PREFIX.get(frame.f_globals.get("__name__", ""), "") if frame is not None else ""


def run_leading_imports(script: str) -> int:
    """Runs the imports at the beginning of a script, up to the first statement that does anything else.

    Imports of modules that are not installed, like those beside the script, are such statements.

    Returns:
        How many modules were loaded that are not Python's own.

    Raises:
        BaseException: whatever an import raises.
    """
    before = set(sys.modules)
    main = sys.modules["__main__"]
    path = os.path.abspath(script)
    folder = os.path.dirname(os.path.realpath(script))
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, folder)  # as it will be when the script runs
    main.__file__ = path
    try:
        names = {"__name__": "__main__", "__file__": path, "__builtins__": sys.modules["builtins"]}
        for code in _leading_imports(path):
            exec(code, names)
        if "__warningregistry__" in names:  # what the script's own line has warned of already
            vars(main)["__warningregistry__"] = names["__warningregistry__"]
    finally:
        del main.__file__
        if not getattr(sys.flags, "safe_path", False):
            sys.path.remove(folder)
    return sum(is_library(name) and not _is_pythons(name) for name in sys.modules.keys() - before)


def _leading_imports(path: str) -> Iterator[Any]:
    """The code of each import; the next is looked at when those before it have run."""
    with open(path, "rb") as file:
        tree: Any = compile(file.read(), path, "exec", _ONLY_AST, dont_inherit=True)
    for node in tree.body:
        kind = type(node).__name__
        if kind == "Import":
            modules = [alias.name for alias in node.names]
        elif kind == "ImportFrom" and not node.level:
            modules = [node.module]
        elif kind == "Expr" and type(node.value).__name__ == "Constant":
            continue
        else:
            return
        if not all(is_library(module.partition(".")[0]) for module in modules):
            return
        tree.body = [node]
        yield compile(tree, path, "exec", dont_inherit=True)


def is_library(name: str) -> bool:
    """Returns whether a module is installed, or Python's own."""
    places = _places(name)
    return bool(places) and all(
        place in ("built-in", "frozen") or is_library_path(place) for place in places if place is not None
    )


def is_library_path(path: str) -> bool:
    """Returns whether a path lies where Python and packages are installed, or is ours."""
    ours = os.path.abspath(__file__).rsplit(os.sep, 3)[0]
    parts = path.split(os.sep)
    own = os.path.dirname(os.__file__)
    return "site-packages" in parts or "dist-packages" in parts or path.startswith((own + os.sep, ours + os.sep))


def _is_pythons(name: str) -> bool:
    return name.partition(".")[0] in sys.stdlib_module_names


def _places(name: str) -> list[str]:
    """The file of a module, or the folders of a package without one."""
    spec = getattr(sys.modules[name], "__spec__", None) if name in sys.modules else find_spec(name)
    if spec is None:
        return []
    return [spec.origin] if spec.origin else list(spec.submodule_search_locations or [])
