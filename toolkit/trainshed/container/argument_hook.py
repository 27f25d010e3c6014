"""Tells of hyperparameters that the script's argparse did not take, and of `false` for `type=bool`, which becomes True.

Lives in the script's process: `hangs/hook/sitecustomize.py` runs this file when the script imports argparse, and never
otherwise. `parse_known_args` is called as before and its result is handed on untouched; what it left is looked at. Told is
what the script drops (`args, _ = parser.parse_known_args()`), and what no parser has taken some seconds later: scripts parse
in steps. No thread waits for that: Python's garbage collector calls, and else it is told at the end. Names are told, never
values.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterable, Iterator, Sequence
    from dis import Instruction
    from types import CodeType, FrameType, ModuleType
    from typing import Any

_SETTLED = 10.0  # seconds after a parse, in which another parser takes what this one left
_ALL = "sys.argv"
_PARSERS = frozenset({"fire", "hydra", "tyro", "jsonargparse"})  # read sys.argv themselves
_FALSE = (False, "false", "False", "no", "off")


class _Told:
    """What is known of the hyperparameters among the script's arguments.

    options: option -> hyperparameter, of all that are passed. taken: options that a parser has taken.
    dropped: those that the script has dropped. at: when it last did, on the monotonic clock.
    """

    def __init__(self) -> None:
        import json

        arguments = sys.argv[1:]
        values = json.loads(os.environ.get("SM_HPS") or "{}")
        passed = json.loads(os.environ.get("SM_USER_ARGS") or "[]")
        process = sys.modules.get("multiprocessing.process")
        first = process is None or process.parent_process() is None
        ours = first and set(passed) <= set(arguments) and _leads()
        both = [(dashes + name, name) for name in values for dashes in ("--", "-")]
        self.options = {option: name for option, name in both if ours and option in passed}
        self.values = values
        self.taken: set[str] = set()
        self.dropped: set[str] = set()
        self.at = 0.0
        self.pid = os.getpid()
        self.said: set[str] = set()

    def look(self, parser: ArgumentParser, arguments: Sequence[Any], extras: Sequence[Any], caller: FrameType) -> None:
        """One parse is over."""
        if not self.options:
            return
        left = self._given(extras)
        self.taken |= self._given(arguments) - left
        for action in parser._actions:
            if action.type is bool:
                for option in self._given(arguments).intersection(action.option_strings):
                    self._say_bool(option)
        if left - self.taken and _drops_the_rest(caller):
            read = _read_otherwise(caller)
            self._drop({one for one in left - self.taken if not _is_read(self.options[one], read)})

    def _drop(self, options: set[str]) -> None:
        import atexit
        import gc

        if not options:
            return
        if not self.dropped:
            atexit.register(self.say)
            gc.callbacks.append(self.collected)
        self.dropped |= options
        self.at = time.monotonic()

    def collected(self, phase: str, info: object) -> None:
        """The garbage collector has run."""
        if time.monotonic() - self.at > _SETTLED:
            self.say()

    def say(self) -> None:
        """Tells what was dropped and is not taken, once."""
        import gc

        gc.callbacks[:] = [one for one in gc.callbacks if one != self.collected]
        if os.getpid() != self.pid:  # a process that the script has forked
            return
        names = sorted({self.options[option] for option in self.dropped - self.taken} - self.said)
        if names:
            self.said.update(names)
            listed = ", ".join(map(repr, names[:8])) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
            _print(
                f"the script's argparse did not take the hyperparameter{'s' if len(names) > 1 else ''} {listed}: "
                "check the spelling, or read SM_HPS"
            )

    def _given(self, arguments: Iterable[Any]) -> set[str]:
        return {str(one).split("=")[0] for one in arguments}.intersection(self.options)

    def _say_bool(self, option: str) -> None:
        name = self.options[option]
        if self.values[name] in _FALSE and option not in self.said:
            self.said.add(option)
            _print(
                f"hyperparameter {name!r} is false, and type=bool makes True of any text: "
                "use action='store_true', and set trainshed_argv to flags"
            )


def _print(text: str) -> None:
    try:
        os.write(2, f"trainshed: warning: {text}\n".encode("utf-8", "replace"))  # Python may be writing just then
    except OSError:
        pass


def _leads() -> bool:
    """Whether this process speaks for the job: all its ranks and hosts are given the same arguments."""
    rank = os.environ.get("RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or "0"
    return rank == os.environ.get("SM_CURRENT_HOST_RANK", "0") == "0"


def _read_otherwise(caller: FrameType) -> set[str]:
    """What the script names from where it may take the rest: `sys.argv`, variables and files with hyperparameters.

    Of code that runs just now, what comes after the parse; that parse itself may be given `sys.argv[1:]`.
    """
    found = set() if _PARSERS.isdisjoint(sys.modules) else {_ALL}
    frame: FrameType | None = caller
    running = set()
    while frame is not None:
        running.add(frame.f_code)
        if _takes_argv(frame.f_code, frame.f_lasti):
            found.add(_ALL)
        frame = frame.f_back
    for code in _with_inner(running):
        found.update(one for one in code.co_consts if isinstance(one, str))
        if code not in running and _takes_argv(code, -1):
            found.add(_ALL)
    return found


def _is_read(hyperparameter: str, read: set[str]) -> bool:
    return bool(read & {_ALL, "SM_HPS", "SM_USER_ARGS", f"SM_HP_{hyperparameter.upper().replace('-', '_')}"}) or any(
        one.endswith("hyperparameters.json") for one in read
    )


def _takes_argv(code: CodeType, last: int) -> bool:
    """Whether code names `sys.argv` after an instruction, and not for its first word alone."""
    if "argv" not in code.co_names:
        return False
    after = _instructions(code, last)
    named = [at for at, one in enumerate(after) if one.argval == "argv" and one.opname.startswith("LOAD_")]
    return any(after[at + 1].argval != 0 or not after[at + 1].opname.startswith("LOAD_") for at in named)


def _instructions(code: CodeType, last: int) -> list[Instruction]:
    """The instructions after one, without those that do nothing."""
    import dis

    idle = ("CACHE", "PRECALL", "NOP")
    return [one for one in dis.get_instructions(code) if one.offset > last and one.opname not in idle]


def _with_inner(codes: Iterable[CodeType]) -> Iterator[CodeType]:
    for code in codes:
        yield code
        yield from _with_inner(one for one in code.co_consts if hasattr(one, "co_names"))


def _drops_the_rest(caller: FrameType) -> bool:
    """Whether the calling code never looks at what `parse_known_args` left, by its instructions."""
    code = caller.f_code
    all_of_it, after = _instructions(code, -1), _instructions(code, caller.f_lasti)
    first, second = after[0], after[1]
    if first.opname == "POP_TOP":  # the values go to a namespace
        return True
    if first.opname in ("LOAD_CONST", "LOAD_SMALL_INT") and second.opname in ("BINARY_SUBSCR", "BINARY_OP"):
        return first.argval == 0
    if first.opname != "UNPACK_SEQUENCE":
        return False
    stored: list[str] = []
    for one in after[1:3]:
        if not one.opname.startswith("STORE_") or "DEREF" in one.opname or "GLOBAL" in one.opname:
            return False
        stored += one.argval if isinstance(one.argval, tuple) else [one.argval]
    if len(stored) < 2:
        return False
    name = stored[1]
    if code.co_name == "<module>" and caller.f_globals.get("__name__") != "__main__":
        return False  # another module may read it
    loads = [one for one in all_of_it if one.opname.startswith("LOAD_") or one.opname.startswith("STORE_FAST_LOAD")]
    used = any(name == one.argval or (isinstance(one.argval, tuple) and name in one.argval) for one in loads)
    return not used and not _names_it(code, name)


def _names_it(code: CodeType, name: str) -> bool:
    """Whether a function inside of the code may read the name."""
    inside = [one for one in code.co_consts if hasattr(one, "co_names")]
    return any(name in one.co_names + one.co_freevars or _names_it(one, name) for one in inside)


def install(argparse: ModuleType) -> None:
    """Has each parse of this process looked at."""
    told: list[_Told] = []  # made at the first parse: the script's arguments are known by then
    original = argparse.ArgumentParser.parse_known_args

    def parse_known_args(
        self: ArgumentParser, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Namespace, list[str]]:
        result: tuple[Namespace, list[str]] = original(self, args, namespace)
        try:
            if not told:
                told.append(_Told())
            told[0].look(self, sys.argv[1:] if args is None else list(args), result[1], sys._getframe(1))
        except Exception:  # never the reason why a script fails
            pass
        return result

    for name in ("__doc__", "__module__", "__qualname__", "__annotations__"):
        setattr(parse_known_args, name, getattr(original, name))
    parse_known_args.__wrapped__ = original  # type: ignore[attr-defined]
    argparse.ArgumentParser.parse_known_args = parse_known_args
