"""Reward functions for grpo: those of a file of the user's, which is looked at before torch is loaded and run after it.

A function that has a parameter `completions` is one. It is given the answers, as texts or as messages, and of `prompts`,
`completion_ids` and the fields of the data those that it has parameters for: lists, one element an answer. It returns a
number an answer, or None where it has nothing to say. TRL's reward functions are such.
"""

from __future__ import annotations

import ast
import asyncio
import functools
import importlib.util
import inspect
import math
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from _common import Problem

Function = ast.FunctionDef | ast.AsyncFunctionDef
GIVEN = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments")  # by TRL
Judge = Callable[..., list[float | None]]


def functions_in(path: str | None) -> tuple[Path, dict[str, Function]]:
    """The file of Python that a path is or holds, and its reward functions by name. Raises Problem."""
    if not path:
        raise Problem("grpo has nothing to judge answers by: add a channel rewards, or give --rewards FILE.py")
    files = [Path(path)] if Path(path).is_file() else sorted(Path(path).glob("*.py"))
    if len(files) != 1:
        found = "has several files" if files else "is not a file, and has none,"
        raise Problem(f"rewards: {path} {found} of Python: give one")
    try:
        tree = ast.parse(files[0].read_bytes(), str(files[0]))
    except (OSError, SyntaxError, ValueError) as error:
        raise Problem(f"rewards: {files[0]} cannot be read as Python: {error}") from error
    functions = [node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    # Of two with one name Python has the second.
    named = {one.name: one for one in functions if "completions" in {a.arg for a in one.args.args + one.args.kwonlyargs}}
    if not named:
        raise Problem(f"rewards: {files[0]} has no function with a parameter completions, as in def short(completions, **_)")
    return files[0], named


def require_fields(path: str | None, fields: Collection[str], what: str) -> None:
    """Raises Problem where a reward function needs a field that the data has not. what: the data is, for a message."""
    file, functions = functions_in(path)
    for name, one in functions.items():
        given, alone = [a.arg for a in one.args.args], zip(one.args.kwonlyargs, one.args.kw_defaults, strict=True)
        needed = [*given[: len(given) - len(one.args.defaults)], *(a.arg for a, usual in alone if usual is None)]
        absent = next((each for each in needed if each not in (*GIVEN, *fields)), "")
        if absent and not one.decorator_list:  # which may give it what it needs
            there = ", ".join(sorted(fields)) or "none"
            raise Problem(f"rewards: {name} in {file.name} needs {absent}, and {what} has no such field, but {there}")


def load(path: str | None) -> list[Judge]:
    """The reward functions, which check what they give. Runs the file. Raises Problem."""
    file, names = functions_in(path)
    spec = importlib.util.spec_from_file_location("rewards", file)
    assert spec is not None and spec.loader is not None
    module = sys.modules["rewards"] = importlib.util.module_from_spec(spec)  # dataclasses look for theirs there
    sys.path.insert(0, str(file.parent))  # for what the file, and its functions, import from beside it
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise _failed(file, "the file", error) from error
    return [_checked(file, getattr(module, name)) for name in names]


def _checked(file: Path, function: Callable[..., Any]) -> Judge:
    known = inspect.signature(function).parameters.values()
    names = {one.name for one in known} if all(one.kind != one.VAR_KEYWORD for one in known) else None

    @functools.wraps(function)
    def judge(*, completions: Sequence[Any], **given: Any) -> list[float | None]:
        try:
            taken = {name: value for name, value in given.items() if names is None or name in names}
            found = function(completions=completions, **taken)
            found = asyncio.run(found) if inspect.iscoroutine(found) else found
            if not isinstance(found, Iterable) or isinstance(found, (str, bytes, Mapping)):
                raise TypeError(f"it gave {type(found).__name__}, not a list of numbers")
            rewards = [None if one is None else float(one) for one in found]
        except (Exception, SystemExit) as error:
            raise _failed(file, function.__name__, error) from error
        if len(rewards) != len(completions):
            raise Problem(f"rewards: {function.__name__} gave {len(rewards)} numbers for {len(completions)} completions")
        if not all(one is None or math.isfinite(one) for one in rewards):
            raise Problem(f"rewards: {function.__name__} gave a number that is not finite: give None for no opinion")
        return rewards

    return judge


def _failed(file: Path, what: str, error: BaseException) -> Problem:
    lines = [one.lineno for one in traceback.extract_tb(error.__traceback__) if one.filename == str(file)]
    where = f"{file.name}:{lines[-1]}" if lines else file.name
    return Problem(f"rewards: {what} failed in {where}: {type(error).__name__}: {error}")
